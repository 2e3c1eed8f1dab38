"""The engine's loop: take in, drop what is late, plan, decode, sample, report; run() is a while around it."""

import math
import threading
from collections import deque
from collections.abc import Callable

from shared.clock import Clock, RealClock
from shared.jobs.outcomes import EndCode, FinishReason, Outcome
from workers.engine.backend import END, Backend, BatchRow, Prepared, prepare_to_fit
from workers.engine.events import DROPPED, RETURNED, Ended, Event, FreeCapacity, JobSpec, Text
from workers.engine.inbox import Cancel, Inbox, Recall
from workers.engine.planner import BatchPlan, PlanLimits, PromptLeft, plan, split_into_calls
from workers.engine.prefix_cache import PrefixCache
from workers.engine.sequence import Sequence, SequenceState
from workers.engine.slots import Slots
from workers.engine.stats import EngineSettings, EngineStats
from workers.engine.step_time import StepTimeModel, attention_reads

#: An end is near when it comes within so long, in s: a claim's round trip, tokenizing included, on a busy machine;
#: and at least in the next step, at most in so many.
_NEAR_S, _NEAR_STEPS = 0.02, 16


class Engine:
    """Continuous batching over one backend; its contract is the package's docstring."""

    def __init__(
        self,
        backend: Backend,
        settings: EngineSettings,
        emit: Callable[[Event], None],
        clock: Clock | None = None,
        fit: StepTimeModel | None = None,
        on_ending: Callable[[], None] = lambda: None,
    ) -> None:
        self.backend, self.settings, self.stats = backend, settings, EngineStats()
        self._emit, self._clock = emit, clock or RealClock()
        self._limits = PlanLimits(settings.prefill_chunk, settings.step_target_ms, backend.lockstep, backend.compact)
        self._fit = fit or StepTimeModel()
        self._inbox = Inbox(backend.slots, backend.cells)
        # The engine's thread's own from here on.
        self._slots = Slots(backend.slots, backend.cells)
        self._prefixes = PrefixCache(self._slots, backend.forget, compact=backend.compact)
        self._reuses = settings.reuse and backend.reuses
        for slot in range(backend.slots):
            backend.forget(slot)
        self._waiting: deque[Sequence] = deque()
        self._running: dict[int, Sequence] = {}
        self._by_key: dict[str, Sequence] = {}
        #: Before this moment nobody inside is late.
        self._late_from_s = math.inf
        #: An end is near when a sequence has at most so many tokens to go.
        self._near = 1
        #: When the last step was planned, if it had answers.
        self._answered_s: float | None = None
        #: Called when more ends are near.
        self.on_ending = on_ending

    def prepare(self, spec: JobSpec) -> Prepared:
        """Tokenize and validate a job; any thread. Raises JobRejected."""
        return prepare_to_fit(self.backend, spec)

    def submit(self, job: Prepared) -> None:
        """Hand a job over; any thread. Exactly one Ended will come for it."""
        self._inbox.put(job)

    def cancel(self, key: str, *, drop: bool = False) -> None:
        """Ask for a job's end within one step; any thread. An unknown key has ended already."""
        self._inbox.cancel(key, drop=drop, asked_s=self._clock.monotonic())

    def recall(self) -> None:
        """Ask back, within one step, the jobs that have no slot; any thread."""
        self._inbox.recall()

    def room(self) -> FreeCapacity:
        """Slots, free now and soon, and free cells after all that was submitted; any thread."""
        return self._inbox.room()

    def step_times_ms(self) -> tuple[float, float, float, float]:
        """Fitted ms of a call, a decoding row, a prompt token, and a token's look at one key; any thread."""
        return self._fit.coefficients()

    def step(self) -> bool:
        """One step; whether there was anything to do. The engine's thread only."""
        took_in = self._take_in()
        self._drop_late()
        self._fill_slots()
        batch = self._plan()
        if batch:
            for rows in split_into_calls(batch, self._running, split=self._limits.split):
                self._sample(self._decode(rows))
            self.stats.steps += 1
        return took_in or bool(batch)

    def run(self, stop: threading.Event) -> None:
        """Step until `stop` is set (and `wake` was called); what is left then ends as dropped."""
        while not stop.is_set():
            if self.step() or self._waiting or self._running:
                continue
            self.check_idle()
            self._inbox.wait(stop)
            self._inbox.wait_for_company(stop, self._clock.monotonic, self.settings.batch_timeout_ms / 1000)
        self.drop_all()

    def check_idle(self) -> None:
        """Audit the books; raises SlotAccountingError. The engine's thread only, with nothing inside."""
        self._slots.check_integrity(running=0)
        self.backend.check_idle(self._prefixes.kept)

    def wake(self) -> None:
        """Make an idle `run` look at its stop event; any thread."""
        self._inbox.wake()

    def drop_all(self) -> None:
        """End all that is inside as dropped. The engine's thread only, or any once it has stopped."""
        self._take_in()
        for sequence in [*self._running.values(), *self._waiting]:
            self._end(sequence, DROPPED, "")

    # What step() is made of.

    def _take_in(self) -> bool:
        came = self._inbox.take()
        now = self._clock.monotonic()
        for item in came:
            if isinstance(item, Cancel):
                self._cancel_now(item)
            elif isinstance(item, Recall):
                self._return_waiting()
            else:
                self._by_key[item.spec.key] = sequence = Sequence.of(item, now)
                self._late_from_s = min(self._late_from_s, sequence.late_from_s)
                self._waiting.append(sequence)
        return bool(came)

    def _cancel_now(self, cancel: Cancel) -> None:
        sequence = self._by_key.get(cancel.key)
        if sequence is None:
            return
        self.stats.dead_tokens += sequence.computed_after(cancel.asked_s)
        if cancel.drop:
            self._end(sequence, DROPPED, "")
        else:
            self._end(sequence, Outcome.CANCELED, FinishReason.CANCELED, EndCode.CANCELED)

    def _return_waiting(self) -> None:
        """What could have a slot now gets it: it was claimed for one that is free."""
        self._fill_slots()
        for sequence in list(self._waiting):
            self._end(sequence, RETURNED, "")

    def _drop_late(self) -> None:
        now = self._clock.monotonic()
        if now < self._late_from_s:
            return
        late = [sequence for sequence in self._by_key.values() if now >= sequence.late_from_s]
        for sequence in late:
            self.stats.dead_tokens += sequence.computed_after(sequence.late_from_s)
            message = f"the deadline passed in {sequence.stage}"
            self._end(sequence, Outcome.EXPIRED, FinishReason.DEADLINE, EndCode.DEADLINE_EXCEEDED, message)
        self._late_from_s = min((sequence.late_from_s for sequence in self._by_key.values()), default=math.inf)

    def _fill_slots(self) -> None:
        """First in, first served: a job that does not fit holds up those behind it, so that it will fit."""
        while self._waiting and self._slots.fits(self._waiting[0].job.cells):
            sequence = self._waiting.popleft()
            self._take_place(sequence)
            try:
                self.backend.open(sequence.slot, sequence.job)
            except Exception as fault:  # noqa: BLE001 - whatever is wrong with one job ends that job only
                self._fail(sequence, fault)

    def _take_place(self, sequence: Sequence) -> None:
        job = sequence.job
        tenant, prompt = job.spec.tenant, job.prompt if self._reuses else None
        mates = ((slot, mate.known) for slot, mate in self._running.items() if mate.job.spec.tenant == tenant)
        place = self._prefixes.take(tenant, prompt, job.cells, mates)
        self.backend.begin(place.slot, place.source, place.n)
        sequence.slot, sequence.n_past, sequence.cached_tokens = place.slot, place.n, place.n
        self.stats.cached_tokens += place.n
        sequence.state, sequence.started_s = SequenceState.PREFILL, self._clock.monotonic()
        self._running[place.slot] = sequence

    def _plan(self) -> BatchPlan:
        decoding, prompts, ending = [], [], set()
        self._look_how_near()
        for slot, sequence in self._running.items():
            if sequence.state is SequenceState.DECODE:
                decoding.append(slot)
                if sequence.tokens_left <= self._near:
                    ending.add(sequence.key)
            else:
                prompts.append(PromptLeft(slot, sequence.prompt_left, self._span(sequence), sequence.late_from_s))
        self._answered_s = self._clock.monotonic() if decoding else None
        if self._inbox.end_soon(ending):
            self.on_ending()
        return plan(decoding, prompts, self._limits, self._fit, self.stats.steps)

    def _look_how_near(self) -> None:
        """By the last step whole: what is computed beside the answers holds up the next ones as long as they do."""
        if self.backend.lockstep and self._answered_s is not None:
            step_s = self._clock.monotonic() - self._answered_s
            self._near = 1 + min(_NEAR_STEPS - 1, int(_NEAR_S / max(step_s, 1e-6)))

    def _span(self, sequence: Sequence) -> int:
        """KV cells that its next prompt token looks over: its own in a split cache, everybody's in a shared one."""
        return sequence.n_past if self._limits.split else sum(mate.n_past for mate in self._running.values())

    def _decode(self, rows: list[BatchRow]) -> list[BatchRow]:
        began = self._clock.monotonic()
        try:
            done = self.backend.decode(rows)
        except Exception as fault:  # noqa: BLE001 - the sequence at fault is looked for
            return self._decode_apart(rows, fault)
        took_s = self._clock.monotonic() - began
        self.stats.decode_s += took_s
        pieces = [row for row in done if row.token < 0]
        looks = sum(attention_reads(row.n, self._span(self._running[row.slot])) for row in pieces)
        self._fit.observe(len(done) - len(pieces), sum(row.n for row in pieces), took_s * 1000, looks)
        self._count(done)
        return done

    def _decode_apart(self, rows: list[BatchRow], fault: Exception) -> list[BatchRow]:
        """A batch failed: each sequence alone, sampled at once, and those that fail alone end."""
        if len(rows) == 1:
            self._fail(self._running[rows[0].slot], fault)
            return []
        for row in rows:
            try:
                done = self.backend.decode([row])
            except Exception as own_fault:  # noqa: BLE001 - this sequence is the one at fault
                self._fail(self._running[row.slot], own_fault)
            else:
                self._count(done)
                self._sample(done)
        return []

    def _count(self, done: list[BatchRow]) -> None:
        now = self._clock.monotonic()
        for row in done:
            self._running[row.slot].note_step(row.n, now)
            if row.token < 0:
                self.stats.prompt_tokens += row.n

    def _sample(self, done: list[BatchRow]) -> None:
        now = self._clock.monotonic()
        for row in done:
            if not row.samples:
                continue
            sequence = self._running[row.slot]
            try:
                token = self.backend.sample(row)
                new = "" if token == END else sequence.text.feed(self.backend.piece(token))
            except Exception as fault:  # noqa: BLE001 - one sequence's sampler does not end the others
                self._fail(sequence, fault)
                continue
            self._report(sequence, token, new, now)

    def _report(self, sequence: Sequence, token: int, new: str, now: float) -> None:
        if sequence.first_token_s is None:
            sequence.first_token_s, sequence.state = now, SequenceState.DECODE
        if token != END:
            sequence.answer.append(token)
            self.stats.completion_tokens += 1
        if new:
            self._emit(Text(sequence.key, new, sequence.completion_tokens))
        if token == END or sequence.text.stopped:
            self._end(sequence, Outcome.SUCCEEDED, FinishReason.STOP)
        elif sequence.completion_tokens >= sequence.job.max_tokens:
            self._end(sequence, Outcome.SUCCEEDED, FinishReason.LENGTH)

    def _fail(self, sequence: Sequence, fault: Exception) -> None:
        message = f"{type(fault).__name__}: {fault}"
        self._end(sequence, Outcome.FAILED, "", EndCode.ENGINE_ERROR, message)

    def _end(self, sequence: Sequence, outcome: str, reason: str, code: str = "", message: str = "") -> None:
        """The one way out: the slot is free, the promise taken back, and the Ended event out, in this order."""
        rest = sequence.text.finish()
        if rest:
            self._emit(Text(sequence.key, rest, sequence.completion_tokens))
        text, extra = sequence.text.text, {}
        if sequence.state is SequenceState.WAITING:
            self._waiting.remove(sequence)
        else:
            extra = self.backend.more(sequence.slot, text)
            self.backend.close_slot(sequence.slot)
            keeps = self._reuses and outcome != Outcome.FAILED
            self._prefixes.give_back(sequence.slot, sequence.known if keeps else None)
            del self._running[sequence.slot]
        stage = sequence.stage if code else ""
        sequence.state = SequenceState.ENDED
        del self._by_key[sequence.key]
        self._inbox.ended(sequence.key)
        usage = sequence.usage(self._clock.monotonic())
        self._emit(Ended(sequence.key, str(outcome), str(reason), text, usage, str(code), stage, message, extra))

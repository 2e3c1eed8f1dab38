"""The engine and its loop: each step takes in jobs, ends expired ones, plans, decodes, samples and emits events."""

import math
import threading
from collections import deque
from collections.abc import Callable

from shared.clock import Clock, RealClock
from shared.jobs.outcomes import EndCode, FinishReason, Outcome
from workers.engine.backend import END, Backend, BatchRow, Prepared, prepare_within_context
from workers.engine.events import DROPPED, RETURNED, Ended, Event, FreeCapacity, JobSpec, Text
from workers.engine.inbox import Cancel, Inbox, Recall
from workers.engine.planner import BatchPlan, PendingPrompt, PlanLimits, plan, split_into_calls, taking_part
from workers.engine.prefix_cache import PrefixCache
from workers.engine.sequence import Sequence, SequenceState
from workers.engine.slots import Slots
from workers.engine.stats import EngineSettings, EngineStats
from workers.engine.step_time import StepTimeModel, attention_reads, soon_tokens
from workers.engine.structured.share import GrammarShare


class Engine:
    """Continuous batching with one backend. The contract of this class is in the docstring of `workers.engine`."""

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
        self.facts, self.shares_steps = backend.facts, backend.lockstep
        self._emit, self._clock = emit, clock or RealClock()
        self._limits = PlanLimits(settings.prefill_chunk, settings.step_target_ms, backend.lockstep, backend.compact)
        self._fit, self._share = fit or StepTimeModel(), GrammarShare()
        self._inbox = Inbox(backend.slots, backend.cells)
        # The attributes below are used by the engine's thread only.
        self._slots = Slots(backend.slots, backend.cells)
        self._prefixes = PrefixCache(self._slots, backend.clear_slot, compact=backend.compact)
        self._reuses = settings.reuse and backend.reuses
        for slot in range(backend.slots):
            backend.clear_slot(slot)
        self._waiting: deque[Sequence] = deque()
        self._running: dict[int, Sequence] = {}
        self._by_key: dict[str, Sequence] = {}
        #: No sequence expires before this time, so deadlines are not checked until then.
        self._next_expiry_s = math.inf
        #: A sequence ends soon if it has at most this number of tokens left.
        self._soon_tokens = 1
        #: Time at which the last step was planned; None if no sequence decoded in that step.
        self._last_decode_s: float | None = None
        #: Called when the engine first finds that a sequence will end soon.
        self.on_ending = on_ending

    def prepare(self, spec: JobSpec) -> Prepared:
        """Tokenize and validate a job. May be called from any thread. Raises JobRejected."""
        return prepare_within_context(self.backend, spec)

    def submit(self, job: Prepared) -> None:
        """Pass a job to the engine, which emits exactly one Ended event for it. May be called from any thread."""
        self._inbox.put(job)

    def cancel(self, key: str, *, drop: bool = False) -> None:
        """Ask the engine to end a job within one step, if it has not ended yet. May be called from any thread."""
        self._inbox.cancel(key, drop=drop, requested_s=self._clock.monotonic())

    def recall(self) -> None:
        """Ask the engine to return the jobs without a slot within one step. May be called from any thread."""
        self._inbox.recall()

    def free_capacity(self) -> FreeCapacity:
        """Return how many slots and cells are free, and how many slots soon will be. May be called from any thread."""
        return self._inbox.free_capacity()

    def figures(self) -> dict[str, str | int | float]:
        """Return the fitted step times, or nothing if slots share no steps. May be called from any thread."""
        return {**self._fit.figures()} if self.shares_steps else {}

    def step(self) -> bool:
        """Run one step and return whether there was anything to do. Called on the engine's thread only."""
        took_in = self._take_in()
        self._end_expired()
        self._fill_slots()
        batch = self._plan()
        if batch:
            for rows in split_into_calls(batch, self._running, split=self._limits.split):
                self._sample(self._decode(rows))
            self.stats.steps += 1
        return took_in or bool(batch)

    def run(self, stop: threading.Event) -> None:
        """Run steps until `stop` is set and `wake` was called. Then end the remaining sequences as dropped."""
        while not stop.is_set():
            if self.step() or self._waiting or self._running:
                continue
            self.check_idle()
            self._inbox.wait(stop)
            self._inbox.wait_until_full(stop, self._clock.monotonic, self.settings.batch_timeout_ms / 1000)
        self.drop_all()

    def check_idle(self) -> None:
        """Check the accounting of an idle engine. Raises SlotAccountingError. Called on the engine's thread only."""
        self._slots.check_integrity(running=0)
        self.backend.check_idle(self._prefixes.kept)

    def wake(self) -> None:
        """Wake up an idle `run`, so that it checks its stop event. May be called from any thread."""
        self._inbox.wake()

    def drop_all(self) -> None:
        """End all sequences as dropped. While `run` is running, only the engine's thread may call this."""
        self._take_in()
        for sequence in [*self._running.values(), *self._waiting]:
            self._end(sequence, DROPPED, "")

    # The parts of a step.

    def _take_in(self) -> bool:
        taken = self._inbox.take()
        now = self._clock.monotonic()
        for item in taken:
            if isinstance(item, Cancel):
                self._cancel_now(item)
            elif isinstance(item, Recall):
                self._return_waiting()
            else:
                self._by_key[item.spec.key] = sequence = Sequence.create(item, now)
                self._next_expiry_s = min(self._next_expiry_s, sequence.expires_at_s)
                self._waiting.append(sequence)
        return bool(taken)

    def _cancel_now(self, cancel: Cancel) -> None:
        sequence = self._by_key.get(cancel.key)
        if sequence is None:
            return
        self.stats.dead_tokens += sequence.tokens_computed_after(cancel.requested_s)
        if cancel.drop:
            self._end(sequence, DROPPED, "")
        else:
            self._end(sequence, Outcome.CANCELED, FinishReason.CANCELED, EndCode.CANCELED)

    def _return_waiting(self) -> None:
        # A job that fits into a free slot was claimed for that slot, so start it. Return only prefetched jobs.
        self._fill_slots()
        for sequence in list(self._waiting):
            self._end(sequence, RETURNED, "")

    def _end_expired(self) -> None:
        now = self._clock.monotonic()
        if now < self._next_expiry_s:
            return
        expired = [sequence for sequence in self._by_key.values() if now >= sequence.expires_at_s]
        for sequence in expired:
            self.stats.dead_tokens += sequence.tokens_computed_after(sequence.expires_at_s)
            message = f"the deadline passed in {sequence.stage}"
            self._end(sequence, Outcome.EXPIRED, FinishReason.DEADLINE, EndCode.DEADLINE_EXCEEDED, message)
        self._next_expiry_s = min((sequence.expires_at_s for sequence in self._by_key.values()), default=math.inf)

    def _fill_slots(self) -> None:
        """Start waiting sequences in order. If one does not fit, start no later one, which could delay it further."""
        while self._waiting and self._slots.fits(self._waiting[0].job.cells):
            sequence = self._waiting.popleft()
            self._assign_slot(sequence)
            try:
                self.backend.open_slot(sequence.slot, sequence.job)
            except Exception as fault:  # noqa: BLE001 - an error of one job must end only that job
                self._fail(sequence, fault)

    def _assign_slot(self, sequence: Sequence) -> None:
        job = sequence.job
        tenant, prompt = job.spec.tenant, job.prompt if self._reuses else None
        running = ((slot, other.cached) for slot, other in self._running.items() if other.job.spec.tenant == tenant)
        assigned = self._prefixes.take(tenant, prompt, job.cells, running)
        reused = self.backend.set_prefix(assigned.slot, assigned.source, assigned.reused)
        sequence.slot, sequence.n_past, sequence.cached_tokens = assigned.slot, reused, reused
        self.stats.cached_tokens += reused
        sequence.state, sequence.started_s = SequenceState.PREFILL, self._clock.monotonic()
        self._running[assigned.slot] = sequence

    def _plan(self) -> BatchPlan:
        decoding, prompts, ending = [], [], set()
        self._update_soon_tokens()
        others = taking_part(self._running, self._share.sits_out)
        self._share.begin_step(charges=bool(others))
        for slot, sequence in (others or self._running).items():
            if sequence.state is SequenceState.DECODE:
                decoding.append(slot)
                if sequence.tokens_left <= self._soon_tokens:
                    ending.add(sequence.key)
            else:
                cells = self._attended_cells(sequence)
                prompts.append(PendingPrompt(slot, sequence.prompt_left, cells, sequence.expires_at_s))
        self._last_decode_s = self._clock.monotonic() if decoding else None
        if self._inbox.set_ending_soon(ending):
            self.on_ending()
        return plan(decoding, prompts, self._limits, self._fit, self.stats.steps)

    def _update_soon_tokens(self) -> None:
        # Measure the whole last step, prompts included, because prompts in a step delay the next token of each answer.
        if self.backend.lockstep and self._last_decode_s is not None:
            self._soon_tokens = soon_tokens(self._clock.monotonic() - self._last_decode_s)

    def _attended_cells(self, sequence: Sequence) -> int:
        """Return how many cells a prompt token reads: the sequence's own if the cache is split, else all in use."""
        return sequence.n_past if self._limits.split else sum(other.n_past for other in self._running.values())

    def _decode(self, rows: list[BatchRow]) -> list[BatchRow]:
        began = self._clock.monotonic()
        try:
            done = self.backend.decode(rows)
        except Exception as fault:  # noqa: BLE001 - _decode_apart finds the sequence that caused the error
            return self._decode_apart(rows, fault)
        took_s = self._clock.monotonic() - began
        self.stats.decode_s += took_s
        self._share.earn(took_s)
        pieces = [row for row in done if row.token < 0]
        reads = sum(attention_reads(row.n, self._attended_cells(self._running[row.slot])) for row in pieces)
        self._fit.observe(len(done) - len(pieces), sum(row.n for row in pieces), took_s * 1000, reads)
        self._count(done)
        return done

    def _decode_apart(self, rows: list[BatchRow], fault: Exception) -> list[BatchRow]:
        """Decode and sample each row of a failed batch on its own. Fail each sequence whose row fails again."""
        if len(rows) == 1:
            self._fail(self._running[rows[0].slot], fault)
            return []
        for row in rows:
            try:
                done = self.backend.decode([row])
            except Exception as own_fault:  # noqa: BLE001 - this sequence caused the batch to fail
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
                text = "" if token == END else sequence.detokenizer.feed(self.backend.piece(token))
            except Exception as fault:  # noqa: BLE001 - an error in one sequence's sampler must not end the others
                self._fail(sequence, fault)
                continue
            self._share.spend(sequence.job.spec.tenant, sequence.note_grammar(self.backend.grammar_cpu_s(row.slot)))
            self._report(sequence, token, text, now)

    def _report(self, sequence: Sequence, token: int, text: str, now: float) -> None:
        if sequence.first_token_s is None:
            sequence.first_token_s, sequence.state = now, SequenceState.DECODE
        if token != END:
            sequence.answer.append(token)
            self.stats.completion_tokens += 1
        if text:
            self._emit(Text(sequence.key, text, sequence.completion_tokens, sequence.grammar_cpu_s))
        if token == END or sequence.detokenizer.stopped:
            self._end(sequence, Outcome.SUCCEEDED, FinishReason.STOP)
        elif sequence.completion_tokens >= sequence.job.max_tokens:
            self._end(sequence, Outcome.SUCCEEDED, FinishReason.LENGTH)

    def _fail(self, sequence: Sequence, fault: Exception) -> None:
        self._end(sequence, Outcome.FAILED, "", EndCode.ENGINE_ERROR, f"{type(fault).__name__}: {fault}")

    def _end(self, sequence: Sequence, outcome: str, reason: str, code: str = "", message: str = "") -> None:
        """Free a sequence's slot, then its reservation, then emit its Ended event. No other method does so."""
        rest = sequence.detokenizer.finish()
        if rest:
            self._emit(Text(sequence.key, rest, sequence.completion_tokens, sequence.grammar_cpu_s))
        text, extra = sequence.detokenizer.text, {}
        if sequence.state is SequenceState.WAITING:
            self._waiting.remove(sequence)
        else:
            extra = self.backend.extra_fields(sequence.slot, text)
            grown_s = sequence.note_grammar(self.backend.grammar_cpu_s(sequence.slot))
            self._share.spend(sequence.job.spec.tenant, grown_s)
            self.backend.close_slot(sequence.slot)
            keeps = self._reuses and outcome != Outcome.FAILED
            self._prefixes.give_back(sequence.slot, sequence.cached if keeps else None)
            del self._running[sequence.slot]
        stage = sequence.stage if code else ""
        sequence.state = SequenceState.ENDED
        del self._by_key[sequence.key]
        self._inbox.note_ended(sequence.key)
        usage = sequence.usage(self._clock.monotonic())
        result = (text, usage, str(code), stage, message, extra, sequence.grammar_cpu_s)
        self._emit(Ended(sequence.key, str(outcome), str(reason), *result))

"""The engine and its loop: each step takes in jobs, ends expired ones, plans, decodes, samples and emits events."""

import math
import threading
from collections.abc import Callable

from shared.clock import Clock, RealClock
from shared.jobs.job import ClaimRef
from shared.jobs.outcomes import EndCode, FinishReason, Outcome
from workers.engine.adapter_turns import Turn, next_turn
from workers.engine.backend import END, Backend, BatchRow, Prepared, prepare_within_context
from workers.engine.decoder import Decoder
from workers.engine.events import DROPPED, RETURNED, Ended, Event, FreeCapacity, JobSpec
from workers.engine.inbox import RECALL, Inbox, JobRequest
from workers.engine.planner import BatchPlan, PlanLimits, plan, sort_by_stage, split_into_calls, taking_part
from workers.engine.running.drafter import Drafter
from workers.engine.running.job import EngineJob
from workers.engine.running.slot_queue import SlotQueue
from workers.engine.running.text_events import TextEvents
from workers.engine.sequence import Sequence, SequenceState
from workers.engine.slot_table import SlotTable
from workers.engine.stats import EngineSettings, EngineStats
from workers.engine.step_time import StepTimeModel, soon_tokens
from workers.engine.structured.share import GrammarShare

#: The longest time that an idle engine waits before it looks for expired sequences.
_MAX_WAIT_S = 60.0


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
        # An input of an embedding model is computed in one step, so a pause would give nobody a slot sooner.
        self.can_pause = not backend.facts.pooling
        self._emit, self._clock = emit, clock or RealClock()
        self._limits = PlanLimits(settings.prefill_chunk, settings.step_target_ms, backend.lockstep, backend.compact)
        self._fit, self._share = fit or StepTimeModel(), GrammarShare()
        self._inbox = Inbox(backend.slots, backend.cells)
        # The attributes below are used by the engine's thread only.
        self._table = SlotTable(backend, self.stats.ways, reuse=settings.reuse, paused_bytes=settings.paused_bytes)
        self._running = self._table.running
        self._by_key: dict[ClaimRef, EngineJob] = {}
        self._texts = TextEvents(backend, self._by_key, emit, settings.resume_tokens)
        self._decoder = Decoder(
            backend,
            self._running,
            self.stats,
            self._fit,
            self._clock,
            on_time=self._share.earn,
            fail=self._fail,
            meanwhile=self._texts.tell_all,
        )
        self._queue = SlotQueue(
            self._table, backend, self.stats, self._clock, self._by_key, leave=self._leave, fail=self._fail
        )
        self._drafter = Drafter(self._table, backend, self.stats, settings, self._fit, lose=self._queue.recompute)
        #: No job expires before this time, so deadlines are not checked until then.
        self._next_expiry_s = math.inf
        #: A sequence ends soon if it has at most this number of tokens left.
        self._soon_tokens = 1
        #: Time at which the last step was planned; None if no sequence decoded in that step.
        self._last_decode_s: float | None = None
        #: The adapter whose sequences run; None before the first step, and if the model has no adapters.
        self._turn: Turn | None = None
        #: Called when the engine first finds that a sequence will end soon.
        self.on_ending = on_ending

    def prepare(self, spec: JobSpec) -> Prepared:
        return prepare_within_context(self.backend, spec)

    def submit(self, job: Prepared) -> None:
        self._inbox.put(job)

    def cancel(self, key: ClaimRef, *, drop: bool = False) -> None:
        self._inbox.cancel(key, drop=drop, requested_s=self._clock.monotonic())

    def pause(self, key: ClaimRef) -> bool:
        return self._inbox.pause(key)

    def resume(self, key: ClaimRef, *, if_free: bool = False) -> bool:
        return self._inbox.resume(key, if_free=if_free)

    def recall(self) -> None:
        self._inbox.recall()

    @property
    def slots(self) -> int:
        return self.facts.slots

    def free_capacity(self) -> FreeCapacity:
        return self._inbox.free_capacity()

    def note_demand(self) -> None:
        """Do nothing: the number of slots is fixed."""

    def figures(self) -> dict[str, str | int | float]:
        """Return the fitted step times, or nothing if slots share no steps. May be called from any thread."""
        return {**self._fit.figures(self.facts.slots)} if self.shares_steps else {}

    def step(self) -> bool:
        """Run one step and return whether there was anything to do. Called on the engine's thread only."""
        took_in = self._take_in()
        for sequence, fault in self._texts.take_faulty():
            self._fail(sequence, fault)
        self._end_expired()
        self._queue.fill()
        self._queue.lend()
        batch = self._plan()
        if batch:
            for rows in split_into_calls(batch, self._running, split=self._limits.split):
                self._decoder.compute(rows, self._sample)
            self.stats.steps += 1
            self._queue.spare.note_step()
        return took_in or bool(batch)

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            if self.step() or self._queue or self._running:
                continue
            self.check_idle()
            # A paused sequence may expire while there is nothing to compute.
            left_s = self._next_expiry_s - self._clock.monotonic()
            self._inbox.wait(stop, min(_MAX_WAIT_S, max(0.0, left_s)))
            self._inbox.wait_until_full(stop, self._clock.monotonic, self.settings.batch_timeout_ms / 1000)
        self.drop_all()

    def check_idle(self) -> None:
        """Check the accounting of an idle engine. Raises SlotAccountingError. Called on the engine's thread only."""
        self._table.check_idle()

    def wake(self) -> None:
        self._inbox.wake()

    def drop_all(self) -> None:
        """End all jobs as dropped. While `run` is running, only the engine's thread may call this."""
        self._take_in()
        for job in list(self._by_key.values()):
            self._end(job, DROPPED, "")

    # The parts of a step.

    def _take_in(self) -> bool:
        taken = self._inbox.take()
        for item in taken:
            if isinstance(item, Prepared):
                self._add(item)
            elif item == RECALL:
                self._return_waiting()
            elif (job := self._by_key.get(item.key)) is not None:
                self._handle(item, job)
        return bool(taken)

    def _add(self, prepared: Prepared) -> None:
        self._by_key[prepared.spec.key] = job = EngineJob.create(prepared, self._clock.monotonic())
        self._next_expiry_s = min(self._next_expiry_s, job.expires_at_s)
        job.repeat(self.backend.piece)
        if (reason := job.completed_by) is not None:
            self._end(job, Outcome.SUCCEEDED, reason)
        else:
            self._queue.add(job.idle[0])

    def _handle(self, request: JobRequest, job: EngineJob) -> None:
        now = self._clock.monotonic()
        if request.kind == "resume":
            job.times.resume(now)
            self._queue.add_first(job.idle[0])
        elif request.kind == "pause":
            self._queue.pause(job)
            job.times.pause(now)
        else:
            self.stats.dead_tokens += job.tokens_computed_after(request.requested_s)
            if request.kind == "drop":
                self._end(job, DROPPED, "")
            else:
                self._end(job, Outcome.CANCELED, FinishReason.CANCELED, EndCode.CANCELED)

    def _return_waiting(self) -> None:
        # A job that fits into a free slot was claimed for that slot, so start it. Others are prefetched or paused.
        self._queue.fill()
        for job in [job for job in self._by_key.values() if not job.in_slots]:
            self._end(job, RETURNED, "")

    def _end_expired(self) -> None:
        now = self._clock.monotonic()
        if now < self._next_expiry_s:
            return
        for job in [job for job in self._by_key.values() if now >= job.expires_at_s]:
            self.stats.dead_tokens += job.tokens_computed_after(job.expires_at_s)
            message = f"the deadline passed in {job.stage}"
            self._end(job, Outcome.EXPIRED, FinishReason.DEADLINE, EndCode.DEADLINE_EXCEEDED, message)
        self._next_expiry_s = min((job.expires_at_s for job in self._by_key.values()), default=math.inf)

    def _plan(self) -> BatchPlan:
        self._update_soon_tokens()
        running = self._of_one_adapter() if self.backend.adapters else self._running
        others = taking_part(running, self._share.sits_out) if self._share.has_spenders else running
        self._share.begin_step(charges=bool(others))
        part, split = others or running, self._limits.split
        decoding, prompts, ending = sort_by_stage(part, self._running, self._soon_tokens, split=split)
        self._last_decode_s = self._clock.monotonic() if decoding else None
        ending = {key for key in ending if self._by_key[key].ends_within(self._soon_tokens)}
        if self._inbox.set_ending_soon(ending):
            self.on_ending()
        return self._drafter.extend(plan(decoding, prompts, self._limits, self._fit, self.stats.steps))

    def _of_one_adapter(self) -> dict[int, Sequence]:
        """Return the running sequences of the adapter whose turn it is."""
        by_adapter: dict[str, dict[int, Sequence]] = {}
        for slot, sequence in self._running.items():
            by_adapter.setdefault(sequence.job.spec.adapter, {})[slot] = sequence
        if not by_adapter:
            return {}
        now_s, order = self._clock.monotonic(), ("", *self.backend.adapters)
        self._turn = next_turn(order, by_adapter, self._turn, now_s, self.backend.turn_s)
        return by_adapter[self._turn.adapter]

    def _update_soon_tokens(self) -> None:
        # Measure the whole last step, prompts included, because prompts in a step delay the next token of each answer.
        if self.backend.lockstep and self._last_decode_s is not None:
            self._soon_tokens = soon_tokens(self._clock.monotonic() - self._last_decode_s)

    def _sample(self, done: list[BatchRow]) -> None:
        now = self._clock.monotonic()
        for row in done:
            # The failure of a candidate ends those of the same job.
            sequence = self._running.get(row.slot)
            if sequence is None or not row.samples or (row.is_draft and not self._drafter.takes(sequence, row)):
                continue
            known = sequence.next_known() if sequence.known else None
            try:
                token = END if known == END else self.backend.sample(row, known)
                is_last = token == END or sequence.tokens_left <= 1
                waits = self._texts.may_wait(sequence, is_last=is_last)
                text = "" if waits else self._read(sequence, token)
            except Exception as fault:  # noqa: BLE001 - an error in one sequence's sampler must not end the others
                self._fail(sequence, fault)
                continue
            if sequence.job.grammar is not None:
                self._count_grammar(sequence)
            job, sequence.state = self._by_key[sequence.key], SequenceState.DECODE
            job.times.note_token(now)
            if token != END:
                sequence.add(token)
                self.stats.completion_tokens += 1
            if waits:
                self._texts.add(sequence)
            else:
                self._report(job, sequence, "" if known is not None else text, ended=token == END)
        self._drafter.settle(done)

    def _read(self, sequence: Sequence, token: int) -> str:
        """Add the token to the answer's text, after those that have waited."""
        text = sequence.read_unread(self.backend.piece)
        return text if token == END else text + sequence.read(token, self.backend.piece)

    def _leave(self, sequence: Sequence) -> None:
        """Finish what depends on the slot of a sequence, which is about to lose it."""
        self._texts.tell(sequence)
        self._count_grammar(sequence)

    def _count_grammar(self, sequence: Sequence) -> None:
        if cpu_s := self.backend.grammar_cpu_s(sequence.slot):
            self._share.spend(sequence.job.spec.tenant, sequence.note_grammar(cpu_s))

    def _report(self, job: EngineJob, sequence: Sequence, text: str, *, ended: bool) -> None:
        """Emit the newest text of an answer, and end the answer if it is complete."""
        reason, tells_end = sequence.completed_by(ended=ended), False
        if reason is not None and job.has_candidates:
            extra = self.backend.extra_fields(sequence.slot, sequence.detokenizer.whole_text)
            text += job.end_candidate(sequence, reason, extra)
            tells_end = sequence.unreported > 0
        self._texts.report(job, sequence, text, tells_end=tells_end)
        if reason is not None:
            self._complete(job, sequence, reason)

    def _complete(self, job: EngineJob, sequence: Sequence, reason: FinishReason) -> None:
        """End a job whose answers are complete, or let its next candidate use the slot of one that is."""
        if not job.has_candidates or job.completed_by is not None:
            self._end(job, Outcome.SUCCEEDED, job.completed_by or reason)
        else:
            self._queue.pass_on(job, sequence)

    def _fail(self, sequence: Sequence, fault: Exception) -> None:
        job, message = self._by_key[sequence.key], f"{type(fault).__name__}: {fault}"
        self._end(job, Outcome.FAILED, "", EndCode.ENGINE_ERROR, message)

    def _end(self, job: EngineJob, outcome: str, reason: str, code: str = "", message: str = "") -> None:
        """Free a job's slots, then its reservation, then emit its Ended event. No other method does so."""
        for sequence in job.sequences:
            if sequence.state is not SequenceState.ENDED:
                self._close(job, sequence, outcome)
        stage = job.stage if code else ""
        del self._by_key[job.key]
        self._inbox.note_ended(job.key)
        self._queue.spare.note_demand()
        usage = job.usage(self._clock.monotonic())
        result = (job.text, usage, str(code), stage, message, job.fields(), job.grammar_cpu_s)
        self._emit(Ended(job.key, str(outcome), str(reason), *result))

    def _close(self, job: EngineJob, sequence: Sequence, outcome: str) -> None:
        """End a sequence that is not complete, or is the only one of its job."""
        self._texts.tell(sequence)
        cells = self._table.cells_of(sequence)
        sequence.keep_known(self.backend.piece)
        # A job that continues elsewhere holds back the same text again.
        rest = "" if outcome in {DROPPED, RETURNED} or sequence.end is not None else sequence.finish_text()
        if rest:
            self._emit(job.text_event(sequence, rest)._replace(is_last=True))
        self._queue.discard(sequence)
        if sequence.slot >= 0:
            sequence.extra = self.backend.extra_fields(sequence.slot, sequence.detokenizer.text)
            self._count_grammar(sequence)
        self._table.close(sequence, cells if outcome != Outcome.FAILED else None)
        sequence.state = SequenceState.ENDED

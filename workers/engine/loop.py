"""The engine and its loop: each step takes in jobs, ends expired ones, plans, decodes, samples and emits events."""

import math
import threading
from collections import deque
from collections.abc import Callable

from shared.clock import Clock, RealClock
from shared.jobs.outcomes import EndCode, FinishReason, Outcome
from workers.engine.backend import END, Backend, BatchRow, Prepared, prepare_within_context
from workers.engine.decoder import Decoder
from workers.engine.events import DROPPED, RETURNED, Ended, Event, FreeCapacity, JobSpec
from workers.engine.inbox import Cancel, Inbox, Pause, Recall, Resume
from workers.engine.planner import BatchPlan, PlanLimits, plan, sort_by_stage, split_into_calls, taking_part
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
        self._decoder = Decoder(
            backend, self._running, self.stats, self._fit, self._clock, on_time=self._share.earn, fail=self._fail
        )
        self._waiting: deque[Sequence] = deque()
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

    def pause(self, key: str) -> bool:
        """Ask the engine to pause a job: see `JobEngine.pause`. May be called from any thread."""
        return self._inbox.pause(key)

    def resume(self, key: str, *, if_free: bool = False) -> bool:
        """Ask the engine to go on with a paused job: see `JobEngine.resume`. May be called from any thread."""
        return self._inbox.resume(key, if_free=if_free)

    def recall(self) -> None:
        """Ask the engine to return the jobs without a slot within one step. May be called from any thread."""
        self._inbox.recall()

    @property
    def slots(self) -> int:
        """The number of slots, which does not change."""
        return self.facts.slots

    def free_capacity(self) -> FreeCapacity:
        """Return how many slots and cells are free, and how many slots soon will be. May be called from any thread."""
        return self._inbox.free_capacity()

    def figures(self) -> dict[str, str | int | float]:
        """Return the fitted step times, or nothing if slots share no steps. May be called from any thread."""
        return {**self._fit.figures(self.facts.slots)} if self.shares_steps else {}

    def step(self) -> bool:
        """Run one step and return whether there was anything to do. Called on the engine's thread only."""
        took_in = self._take_in()
        self._end_expired()
        self._fill_slots()
        batch = self._plan()
        if batch:
            for rows in split_into_calls(batch, self._running, split=self._limits.split):
                self._decoder.compute(rows, self._sample)
            self.stats.steps += 1
        return took_in or bool(batch)

    def run(self, stop: threading.Event) -> None:
        """Run steps until `stop` is set and `wake` was called. Then end the remaining sequences as dropped."""
        while not stop.is_set():
            if self.step() or self._waiting or self._running:
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
        """Wake up an idle `run`, so that it checks its stop event. May be called from any thread."""
        self._inbox.wake()

    def drop_all(self) -> None:
        """End all sequences as dropped. While `run` is running, only the engine's thread may call this."""
        self._take_in()
        for sequence in list(self._by_key.values()):
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
            elif isinstance(item, Pause | Resume):
                self._pause_or_resume(item)
            else:
                self._by_key[item.spec.key] = sequence = Sequence.create(item, now)
                self._next_expiry_s = min(self._next_expiry_s, sequence.expires_at_s)
                self._waiting.append(sequence)
                sequence.repeat(self.backend.piece)
                if (reason := sequence.completed_by()) is not None:
                    self._complete(sequence, reason)
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

    def _pause_or_resume(self, item: Pause | Resume) -> None:
        sequence = self._by_key.get(item.key)
        if sequence is None:
            return
        if isinstance(item, Resume):
            sequence.resume(self._clock.monotonic())
            self._waiting.appendleft(sequence)
            return
        if sequence.slot >= 0:
            sequence.extra = self.backend.extra_fields(sequence.slot, sequence.detokenizer.whole_text)
            self._count_grammar(sequence)
            self._table.pause(sequence)
            self.stats.pauses += 1
        else:
            self._waiting.remove(sequence)
        sequence.pause(self._clock.monotonic())

    def _return_waiting(self) -> None:
        # A job that fits into a free slot was claimed for that slot, so start it. Others are prefetched or paused.
        self._fill_slots()
        for sequence in [sequence for sequence in self._by_key.values() if sequence.slot < 0]:
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
        while self._waiting and self._table.fits(self._waiting[0]):
            sequence = self._waiting.popleft()
            try:
                self.stats.cached_tokens += self._table.open(sequence, self._clock.monotonic())
            except Exception as fault:  # noqa: BLE001 - an error of one job must end only that job
                self._fail(sequence, fault)

    def _plan(self) -> BatchPlan:
        self._update_soon_tokens()
        others = taking_part(self._running, self._share.sits_out)
        self._share.begin_step(charges=bool(others))
        part, split = others or self._running, self._limits.split
        decoding, prompts, ending = sort_by_stage(part, self._running, self._soon_tokens, split=split)
        self._last_decode_s = self._clock.monotonic() if decoding else None
        if self._inbox.set_ending_soon(ending):
            self.on_ending()
        return plan(decoding, prompts, self._limits, self._fit, self.stats.steps)

    def _update_soon_tokens(self) -> None:
        # Measure the whole last step, prompts included, because prompts in a step delay the next token of each answer.
        if self.backend.lockstep and self._last_decode_s is not None:
            self._soon_tokens = soon_tokens(self._clock.monotonic() - self._last_decode_s)

    def _sample(self, done: list[BatchRow]) -> None:
        now = self._clock.monotonic()
        for row in done:
            if not row.samples:
                continue
            sequence = self._running[row.slot]
            known = sequence.next_known()
            try:
                token = END if known == END else self.backend.sample(row, known)
                text = "" if token == END else sequence.read(token, self.backend.piece)
            except Exception as fault:  # noqa: BLE001 - an error in one sequence's sampler must not end the others
                self._fail(sequence, fault)
                continue
            self._count_grammar(sequence)
            self._report(sequence, token, "" if known is not None else text, now)

    def _count_grammar(self, sequence: Sequence) -> None:
        grown_s = sequence.note_grammar(self.backend.grammar_cpu_s(sequence.slot))
        self._share.spend(sequence.job.spec.tenant, grown_s)

    def _report(self, sequence: Sequence, token: int, text: str, now: float) -> None:
        sequence.first_token_s, sequence.state = sequence.first_token_s or now, SequenceState.DECODE
        if token != END:
            sequence.add(token)
            self.stats.completion_tokens += 1
        reason = sequence.completed_by(ended=token == END)
        if reason is not None and sequence.candidates is not None:
            whole = sequence.detokenizer.whole_text
            text += sequence.end_candidate(reason, self.backend.extra_fields(sequence.slot, whole))
        if text or sequence.unreported >= self.settings.resume_tokens:
            self._emit(sequence.text_event(text))
        if reason is not None:
            self._complete(sequence, reason)

    def _complete(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence whose answer is complete, or begin its next candidate."""
        if sequence.candidates is None or sequence.candidates.done:
            self._end(sequence, Outcome.SUCCEEDED, sequence.candidates.reason if sequence.candidates else reason)
        else:
            try:
                self._table.begin_candidate(sequence)
            except Exception as fault:  # noqa: BLE001 - an error of one job must end only that job
                self._fail(sequence, fault)

    def _fail(self, sequence: Sequence, fault: Exception) -> None:
        self._end(sequence, Outcome.FAILED, "", EndCode.ENGINE_ERROR, f"{type(fault).__name__}: {fault}")

    def _end(self, sequence: Sequence, outcome: str, reason: str, code: str = "", message: str = "") -> None:
        """Free a sequence's slot, then its reservation, then emit its Ended event. No other method does so."""
        # Before the words of an earlier attempt that were not computed again, which may be those of later candidates.
        cells, is_partly_repeated = self._table.cells_of(sequence), sequence.knows_an_end
        sequence.keep_known(self.backend.piece)
        # A job that goes on elsewhere holds back the same text again.
        rest = "" if outcome in {DROPPED, RETURNED} else sequence.finish_text()
        if rest:
            self._emit(sequence.text_event(rest)._replace(is_last=True))
        extra = sequence.extra
        if sequence.state is SequenceState.WAITING:
            self._waiting.remove(sequence)
        elif sequence.slot >= 0:
            # The log probabilities in the slot are those of a candidate that the text is past.
            if not is_partly_repeated:
                extra = self.backend.extra_fields(sequence.slot, sequence.detokenizer.text)
            self._count_grammar(sequence)
        self._table.close(sequence, cells if outcome != Outcome.FAILED else None)
        stage = sequence.stage if code else ""
        sequence.state = SequenceState.ENDED
        del self._by_key[sequence.key]
        self._inbox.note_ended(sequence.key)
        usage = sequence.usage(self._clock.monotonic())
        extra = sequence.with_own_fields(extra)
        result = (sequence.text, usage, str(code), stage, message, extra, sequence.grammar_cpu_s)
        self._emit(Ended(sequence.key, str(outcome), str(reason), *result))

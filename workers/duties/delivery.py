"""Delivers the engine's events to the store, in order: appends text to the event streams, and settles ended jobs.

While the store is unavailable, events are kept in order. When the engine has reported that a job ended, this file keeps
the job's end until the store has confirmed it. In the worst case the process dies before the store has confirmed it:
the job's lease expires, and the job runs again on another worker.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from shared import failpoints
from shared.clock import Clock
from shared.errors import StoreUnavailable
from shared.jobs.answer_ids import PackedIds
from shared.jobs.job import ClaimRef, Deferral, Ending, Usage
from shared.jobs.outcomes import EndCode, Outcome
from shared.log import get_logger
from shared.store.replies import Appended, SettleAnswer, Settled
from shared.store.store import Store
from workers.answer_check import failed_check, may_escalate
from workers.duties.claimed_jobs import ClaimedJobs, HeldJob
from workers.duties.endings import encodable, ending_of
from workers.duties.job_spans import JobSpans
from workers.duties.text_pacing import FreshTokens, TextPacing
from workers.engine.backend import Facts
from workers.engine.events import ATTEMPT_FAILED, DROPPED, RETURNED, Ended, Event, Text

log = get_logger()

#: The most jobs that are settled in one round trip. This many settles occupy the store for a few ms at most, so the
#: answers arrive before the call times out.
_SETTLE_BATCH = 32


class Delivery:
    """Accepts events on the engine's thread and writes them to the store in passes, one at a time."""

    def __init__(
        self,
        store: Store,
        worker: str,
        claimed_jobs: ClaimedJobs,
        clock: Clock,
        *,
        wake: Callable[[], None],
        drop: Callable[[ClaimRef], None],
        record_usage: Callable[[Usage], None],
        facts: Facts,
        pacing: TextPacing,
        spans: JobSpans,
        settle: Callable[[Sequence[Ending], bool], list[Settled | Exception]],
    ) -> None:
        """Create a delivery, which calls the functions `wake`, `drop`, `record_usage` and `settle`.

        `wake` starts the next pass at once. `drop` takes the claim of a job whose lease was lost, and makes the engine
        drop the job. `record_usage` is called with what this worker computed of each settled job. `settle` writes ends
        to the store like `Store.settle_many`; it is told whether they are the last ones of a pass. CPU time is charged
        by the prefill rate in `facts`.
        """
        self._store, self._settle = store, settle
        self._worker = worker
        self._claimed_jobs = claimed_jobs
        self._clock, self._spans = clock, spans
        self._pacing = pacing
        #: Events that are not processed yet. The engine's thread appends events, and the passes remove them.
        self._inbox: deque[Event] = deque()
        #: Claims of jobs that somebody has begun to follow. Any thread appends claims, and the passes remove them.
        self._newly_followed: deque[ClaimRef] = deque()
        #: Ends of jobs to settle, in order of arrival. Only the passes use this queue.
        self._endings: deque[Ending] = deque()
        #: Jobs to release, and how they wait, by whether the attempt counts. Only the passes use these lists.
        self._returned: dict[bool, list[tuple[HeldJob, Deferral]]] = {False: [], True: []}
        #: Usage of jobs that this worker no longer held when they ended in the engine. Only the passes use this.
        self._unsettled_usage: list[tuple[ClaimRef, Usage]] = []
        #: Claims of jobs that have produced text. Only the engine's thread uses this set.
        self._text_started: set[ClaimRef] = set()
        self._fresh_tokens = FreshTokens()
        #: Number of jobs that have ended or have been released or lost so far. Each of them freed a slot.
        self.slots_freed = 0
        self.wake, self.drop, self.record_usage = wake, drop, record_usage
        self._prefill_tps = facts.prefill_tps

    def emit(self, event: Event) -> None:
        """Accept an event without blocking.

        A job's end starts a pass at once. So do its first text and many tokens, if somebody follows the job.
        """
        self._inbox.append(event)
        if isinstance(event, Ended):
            self._text_started.discard(event.key)
            self._fresh_tokens.forget(event.key)
            self.wake()
            return
        is_due = self._pacing.interval_s == 0
        if event.tokens and self._fresh_tokens.add(event.key, len(event.tokens)) >= self._pacing.most_unsent:
            is_due = True
        if event.text and event.key not in self._text_started:
            self._text_started.add(event.key)
            is_due = True
        if is_due and self._is_sent_at_once(event.key):
            self.wake()

    def _is_sent_at_once(self, claim: ClaimRef) -> bool:
        held_job = self._claimed_jobs.get(claim)
        return held_job is None or held_job.is_followed or _begins_at_once(held_job)

    def note_follower(self, job_id: str) -> None:
        """Send the job's text so far at once, and the rest as it comes. May be called from any thread."""
        if (claim := self._claimed_jobs.note_follower(job_id)) is not None:
            self._newly_followed.append(claim)
            self.wake()

    def send_all_text(self) -> None:
        """Send all text from now on as if somebody followed it. May be called from any thread."""
        self._pacing.sends_all = True
        self.wake()

    def fail(self, held_job: HeldJob, code: EndCode, message: str, param: str = "") -> None:
        """End a job that was never submitted to the engine. `param` names the field of the request that is to blame.

        Its tenant is charged for the preparation only. May be called only inside a pass.
        """
        job = held_job.claimed
        said, extra = encodable(message), {"param": param} if param else {}
        usage = Usage(cpu_tokens=held_job.cpu_tokens(self._prefill_tps))
        self._endings.append(Ending(*job.held, Outcome.FAILED, code=code, message=said, usage=usage, extra=extra))
        self.wake()

    @property
    def has_unsent(self) -> bool:
        """Whether anything remains to be written to the store."""
        returned = any(self._returned.values())
        return bool(self._endings or returned or self._unsettled_usage or self._inbox or self._pacing.has_unsent)

    def one_pass(self) -> float | None:
        """Write everything that is due to the store.

        Return the clock time at which more text is due, or None if no job has produced text. If it raises
        StoreUnavailable, everything that was not written is kept, in order, for the next pass.
        """
        self._fresh_tokens.passes += 1
        self._process_inbox()
        self._release_returned(failed=True)
        self._append_text()
        # Only now, because a job that was paused is given back with its last text and the ids of that text.
        self._release_returned(failed=False)
        if self._unsettled_usage:
            self._store.account(self._unsettled_usage, self._worker)
            self._unsettled_usage.clear()
        # Last, because jobs may be claimed with the ends, and whatever fails after that delays their start.
        while self._endings:
            self._settle_batch()
        if self._unsettled_usage:
            self.wake()
        return self._pacing.next_due_s(self._clock.monotonic(), holds_jobs=len(self._claimed_jobs) > 0)

    def _process_inbox(self) -> None:
        now_s = self._clock.monotonic()
        while self._inbox:
            event = self._inbox.popleft()
            held_job = self._claimed_jobs.get(event.key)
            if held_job is not None and isinstance(event, Text):
                held_job.generated = event.completion_tokens
                held_job.grammar_cpu_s = event.grammar_cpu_s
                if not may_escalate(held_job.claimed.payload):
                    self._add_text(held_job, event, now_s)
            elif isinstance(event, Text):
                self._pacing.forget(event.key)
            elif held_job is None or event.outcome == DROPPED:
                self._forget(event.key)
                self._keep_usage(event.key, event.usage)
            elif event.outcome in {RETURNED, ATTEMPT_FAILED}:
                refusal = event.message if event.outcome == RETURNED else ""
                deferral = Deferral(round(1_000 * event.wait_s), encodable(refusal))
                self._returned[event.outcome == ATTEMPT_FAILED].append((held_job, deferral))
                self._keep_usage(event.key, event.usage)
                self._spans.ended(held_job, event.usage, event.outcome)
            else:
                held_job.ended_s = self._clock.monotonic()
                held_job.grammar_cpu_s = event.grammar_cpu_s
                cpu_tokens = held_job.cpu_tokens(self._prefill_tps)
                self._endings.append(ending_of(held_job, event, cpu_tokens))

        # After the inbox: the text of a job must be known before its follower.
        while self._newly_followed:
            self._pacing.follow(self._newly_followed.popleft())

    def _add_text(self, held_job: HeldJob, text: Text, now_s: float) -> None:
        self._pacing.add(
            text,
            now_s,
            kept=held_job.claimed.answer,
            is_followed=held_job.is_followed,
            begins_at_once=_begins_at_once(held_job),
        )

    def _release_returned(self, *, failed: bool) -> None:
        returned = self._returned[failed]
        if returned:
            held = [held_job.claim for held_job, _ in returned]
            deferrals = {held_job.claimed.id: deferral for held_job, deferral in returned}
            self._store.release(self._worker, held, counts_as_attempt=failed, deferrals=deferrals)
        while returned:
            self._forget(returned.pop()[0].claim)

    def _append_text(self) -> None:
        """Append all text that is due.

        If an earlier call was not answered, its chunks are sent again first, and newer text is sent in a second call.
        The loop makes both calls, because a job's end must not be written before its text.
        """
        ending = {each.claim for each in self._endings}
        # The store may take a paused job back for another worker.
        leaving = {held_job.claim for held_job, _ in self._returned[False]} | self._claimed_jobs.paused_claims()
        while chunks := self._pacing.due(self._clock.monotonic(), ending, leaving):
            pairs = [(chunk, self._claimed_jobs.get(chunk.claim)) for chunk in chunks]
            texts = [(job.claim, chunk.text, chunk.completion_tokens) for chunk, job in pairs if job]
            ids = {job.claimed.id: chunk.ids for chunk, job in pairs if job and chunk.ids.ids}
            for held, text, _ in texts:
                if text:
                    failpoints.reach("before_first_token", held.id)
            appended = self._append(texts, ids)
            lost = set(appended.lost)
            for held in (held for held, _, _ in texts if held.id in lost):
                self._drop_lost(held)
            self._pacing.sent(self._clock.monotonic())
            for job_id in appended.followed:
                if (claim := self._claimed_jobs.note_follower(job_id)) is not None:
                    self._pacing.follow(claim)

    def _append(self, texts: list[tuple[ClaimRef, str, int]], ids: dict[str, PackedIds]) -> Appended:
        """Append texts to the event streams.

        If the streams cannot be written, clients that follow them miss the text, but the jobs continue.
        """
        if not texts:
            return Appended([], [])
        is_repeat, asks = self._pacing.is_repeat, self._pacing.has_unfollowed
        try:
            return self._store.append(texts, ids, repeated=is_repeat, asks=asks)
        except StoreUnavailable:
            raise
        except Exception:  # another program has changed a stream's key; the job's result will still contain the text
            log.exception("stream.fault", jobs=[held.id for held, _, _ in texts])
            return Appended([], [])

    def _settle_batch(self) -> None:
        """Settle the oldest entries of `_endings` in one round trip. Remove them only after the store has answered."""
        batch = list(islice(self._endings, _SETTLE_BATCH))
        held = [(job, ending) for ending in batch if (job := self._claimed_jobs.get(ending.claim)) is not None]
        for held_job, ending in held:
            held_job.settling = True
            failpoints.reach("before_settle", ending.id)
        moved = {held_job.claim for held_job, ending in held if self._escalate(held_job, ending)}
        held = [(held_job, ending) for held_job, ending in held if held_job.claim not in moved]
        is_last = len(batch) == len(self._endings)
        answers = self._settle([ending for _, ending in held], is_last) if held else []
        for (held_job, ending), answer in zip(held, answers, strict=True):
            failpoints.reach("after_settle", ending.id)
            self._forget(held_job.claim)
            self._handle_answer(held_job, ending, answer)
        held_claims = {held_job.claim for held_job, _ in held} | moved
        for ending in batch:
            if ending.claim not in held_claims:
                self._keep_usage(ending.claim, ending.usage)
            self._pacing.forget(ending.claim)
            self._endings.popleft()

    def _escalate(self, held_job: HeldJob, ending: Ending) -> bool:
        """Move a job whose answer fails its check to a later pool. Return whether it was moved."""
        why = failed_check(held_job.claimed.payload, ending)
        pool = self._store.escalate(ending) if why else None
        if pool is None:
            return False
        self._forget(held_job.claim)
        self._learn(ending.id, ending.usage)
        self._spans.ended(held_job, ending.usage, "escalated")
        log.info("job.escalated", job=ending.id, why=why, pool=pool, completion_tokens=ending.usage.completion_tokens)
        return True

    def _handle_answer(self, held_job: HeldJob, ending: Ending, answer: Settled | Exception) -> None:
        if isinstance(answer, Exception):
            # The job's record is broken. Retries would delay the ends of other jobs, so its lease is left to expire.
            log.error("job.settle_fault", job=ending.id, error=str(answer))
        elif answer.answer in {SettleAnswer.SETTLED, SettleAnswer.ALREADY}:
            self._learn(ending.id, held_job.own_usage(ending.usage))
            outcome = answer.outcome or ending.outcome
            self._spans.ended(held_job, ending.usage, outcome.value, ending.code)
            self._log_end(held_job, ending, outcome)
        else:
            self._spans.ended(held_job, ending.usage, answer.answer.value)
            log.info("job.settle_refused", job=ending.id, answer=answer.answer.value, attempt=held_job.claimed.attempt)

    def _learn(self, job_id: str, usage: Usage) -> None:
        try:
            self.record_usage(usage)
        except Exception:  # only statistics: the other ends must be written regardless
            log.exception("job.learn_fault", job=job_id)

    def _keep_usage(self, claim: ClaimRef, usage: Usage) -> None:
        """Keep the token counts of a job that this worker cannot settle, until they are reported to the store."""
        if usage.read_tokens - usage.cached_tokens + usage.completion_tokens > 0:
            self._unsettled_usage.append((claim, usage))

    def _drop_lost(self, claim: ClaimRef) -> None:
        """Drop a job whose lease was lost, because the store accepts nothing more under its claim."""
        if self._claimed_jobs.remove(claim) is not None:
            log.info("job.lost", job=claim.id, told_by="append")
            self.drop(claim)
        self._pacing.forget(claim)

    def _forget(self, claim: ClaimRef) -> None:
        self._claimed_jobs.remove(claim)
        self._pacing.forget(claim)
        self.slots_freed += 1

    def _log_end(self, held_job: HeldJob, ending: Ending, outcome: Outcome) -> None:
        job, usage = held_job.claimed, ending.usage
        log.info(
            "job.ended",
            job=job.id,
            tenant=job.tenant,
            key_label=job.key_label,
            model=job.model,
            outcome=outcome.value,
            finish_reason=ending.finish_reason,
            code=ending.code,
            attempt=job.attempt,
            prompt_tokens=usage.read_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            ttft_ms=usage.ttft_ms,
            worker=self._worker,
            traceparent=job.traceparent,
        )


def _begins_at_once(held_job: HeldJob) -> bool:
    """Return whether the first text is stored even if nobody follows it: it shows that the job has begun in time."""
    return held_job.claimed.start_in_ms is not None

"""Engine events out: text to the streams, ends to the store; held in order while the store is away.

From `Ended` on, this file owns the job's end until the store has answered for it. In the worst case
the process dies in between: the lease lapses and the job runs again elsewhere.
"""

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

import structlog

from shared import failpoints
from shared.clock import Clock
from shared.errors import StoreUnavailable
from shared.jobs.job import Ending, Held, Usage
from shared.jobs.outcomes import EndCode, Outcome, Stage
from shared.store.replies import SettleAnswer, Settled
from workers.duties.claimed_jobs import ClaimedJobs, HeldJob, key_of
from workers.duties.text_pacing import TextPacing
from workers.engine.events import DROPPED, RETURNED, Ended, Event, Text

if TYPE_CHECKING:
    from shared.store.store import Store

log = structlog.get_logger()

#: Ends in one round trip: the store is held up for a few ms at most, and an answer comes within the patience.
_SETTLED_AT_ONCE = 32


class Delivery:
    """Takes events on the engine's thread, gives them to the store on the thread that runs the passes."""

    def __init__(
        self,
        store: "Store",
        worker: str,
        claimed_jobs: ClaimedJobs,
        clock: Clock,
        *,
        wake: Callable[[], None],
        drop: Callable[[str], None],
        learn: Callable[[Usage], None],
    ) -> None:
        """`wake` ends the rest between passes; `drop` drops a key in the engine; `learn` gets the usage of an end."""
        self._store = store
        self._worker = worker
        self._claimed_jobs = claimed_jobs
        self._clock = clock
        self._pacing = TextPacing()
        #: Appended by the engine's thread (and by intake for jobs that never reach it), emptied by the passes.
        self._inbox: deque[Event] = deque()
        #: Only the passes touch it: ends in the order in which they came, with the key they belong to.
        self._endings: deque[tuple[str, Ending]] = deque()
        #: Only the passes touch it: jobs that the engine was asked to hand back and had not begun.
        self._returned: list[HeldJob] = []
        #: Only the passes touch it: what was computed for jobs that are not ours any more.
        self._strays: list[tuple[Held, Usage]] = []
        #: Only the engine's thread touches it: keys whose first text was seen.
        self._spoken: set[str] = set()
        #: How often a job went out of this worker's hands, which frees a slot.
        self.freed = 0
        self.wake, self.drop, self.learn = wake, drop, learn

    def emit(self, event: Event) -> None:
        """Take an event; never blocks. Wakes the passes for a first text and for an end, not for every token."""
        self._inbox.append(event)
        if isinstance(event, Ended):
            self._spoken.discard(event.key)
            self.wake()
        elif event.key not in self._spoken:
            self._spoken.add(event.key)
            self.wake()

    def fail(self, entry: HeldJob, code: EndCode, message: str) -> None:
        """End a job that the engine never sees; nothing was computed, nothing is charged. For the passes' thread."""
        job = entry.claimed
        ending = Ending(job.id, job.token, Outcome.FAILED, code=code, message=_writable(message))
        self._endings.append((entry.key, ending))
        self.wake()

    @property
    def owes(self) -> bool:
        """Whether something waits to be told to the store."""
        return bool(self._endings or self._returned or self._strays or self._inbox or self._pacing.waits)

    def one_pass(self) -> float | None:
        """Tell the store what is due. When to look for text again, as a moment; None while no job speaks.

        Raises StoreUnavailable; what was not told by then is kept, in its order.
        """
        self._sort_inbox()
        self._give_back()
        self._append_text()
        while self._endings:
            self._settle_some()
        if self._strays:
            self._store.account(self._strays, self._worker)
            self._strays.clear()
        return self._pacing.next_tick_s(self._clock.monotonic())

    def _sort_inbox(self) -> None:
        while self._inbox:
            event = self._inbox.popleft()
            entry = self._claimed_jobs.get(event.key)
            if entry is not None and isinstance(event, Text):
                entry.generated = event.completion_tokens
                self._pacing.add(event.key, event.text, event.completion_tokens)
            elif isinstance(event, Text):
                self._pacing.forget(event.key)
            elif entry is None or event.outcome == DROPPED:
                self._forget(event.key)
                self._note_stray(event.key, event.usage)
            elif event.outcome == RETURNED:
                self._returned.append(entry)
            else:
                self._endings.append((event.key, _ending(entry, event)))

    def _give_back(self) -> None:
        if self._returned:
            self._store.release(self._worker, [entry.claimed.held for entry in self._returned])
        while self._returned:
            self._forget(self._returned.pop().key)

    def _append_text(self) -> None:
        """All that is due; a second time after what was in doubt, for an end must not overtake its text."""
        ending = {key for key, _ in self._endings}
        while chunks := self._pacing.due(self._clock.monotonic(), ending):
            entries = [(chunk, self._claimed_jobs.get(chunk.key)) for chunk in chunks]
            told = [(entry.claimed.held, chunk.text, chunk.completion_tokens) for chunk, entry in entries if entry]
            for held, _, _ in told:
                failpoints.reach("before_first_token", held.id)
            keys = {held.id: key_of(held) for held, _, _ in told}
            for job_id in self._appended(told):
                self._lose(keys[job_id])
            self._pacing.sent(self._clock.monotonic())

    def _appended(self, told: list[tuple[Held, str, int]]) -> list[str]:
        """The ids that are lost. A stream that cannot be written costs its followers, not the jobs."""
        try:
            return self._store.append(told) if told else []
        except StoreUnavailable:
            raise
        except Exception:  # somebody's hand in a key: the answer still reaches the result
            log.exception("stream.fault", jobs=[held.id for held, _, _ in told])
            return []

    def _settle_some(self) -> None:
        """The oldest ends in one round trip, or as many as one may be long; each is taken off when it is answered."""
        some = list(islice(self._endings, _SETTLED_AT_ONCE))
        held = [(entry, ending) for key, ending in some if (entry := self._claimed_jobs.get(key)) is not None]
        for entry, ending in held:
            entry.settling = True
            failpoints.reach("before_settle", ending.id)
        answers = self._store.settle_many([ending for _, ending in held], self._worker) if held else []
        for (entry, ending), answer in zip(held, answers, strict=True):
            failpoints.reach("after_settle", ending.id)
            self._forget(entry.key)
            self._note_settled(entry, ending, answer)
        ours = {entry.key for entry, _ in held}
        for key, ending in some:
            if key not in ours:
                self._note_stray(key, ending.usage)
            self._pacing.forget(key)
            self._endings.popleft()

    def _note_settled(self, entry: HeldJob, ending: Ending, answer: Settled | Exception) -> None:
        if isinstance(answer, Exception):
            # One job's broken record must not hold up the others' ends: its lease lapses.
            log.error("job.settle_fault", job=ending.id, error=str(answer))
        elif answer.answer in {SettleAnswer.SETTLED, SettleAnswer.ALREADY}:
            self.learn(ending.usage)
            self._log_end(entry, ending, answer.outcome or ending.outcome)
        else:
            log.info("job.settle_refused", job=ending.id, answer=answer.answer.value, attempt=entry.claimed.attempt)

    def _note_stray(self, key: str, usage: Usage) -> None:
        if usage.prompt_tokens - usage.unread_tokens - usage.cached_tokens + usage.completion_tokens > 0:
            job_id, _, token = key.partition(":")
            self._strays.append((Held(job_id, token), usage))

    def _lose(self, key: str) -> None:
        """The store says that another claim owns the job: nothing of ours is wanted any more."""
        if self._claimed_jobs.let_go(key) is not None:
            log.info("job.lost", job=key.partition(":")[0], told_by="append")
            self.drop(key)
        self._pacing.forget(key)

    def _forget(self, key: str) -> None:
        self._claimed_jobs.let_go(key)
        self._pacing.forget(key)
        self.freed += 1

    def _log_end(self, entry: HeldJob, ending: Ending, outcome: Outcome) -> None:
        job, usage = entry.claimed, ending.usage
        log.info(
            "job.ended",
            job=job.id,
            tenant=job.tenant,
            model=job.model,
            outcome=outcome.value,
            finish_reason=ending.finish_reason,
            code=ending.code,
            attempt=job.attempt,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            ttft_ms=usage.ttft_ms,
            worker=self._worker,
            traceparent=job.traceparent,
        )


def _writable(message: str) -> str:
    """Without halves of characters, which nothing encodes: a reason may quote what somebody's hand has written."""
    return message.encode(errors="replace").decode()


def _ending(entry: HeldJob, ended: Ended) -> Ending:
    """The engine's last word as the store takes it."""
    return Ending(
        id=entry.claimed.id,
        token=entry.claimed.token,
        outcome=Outcome(ended.outcome),
        finish_reason=ended.finish_reason,
        code=ended.code,
        stage=Stage(ended.stage) if ended.stage else None,
        message=_writable(ended.message),
        text=ended.text,
        usage=ended.usage,
        extra=ended.extra,
    )

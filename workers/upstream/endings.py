"""Decides how a job ends when its exchange with the upstream has ended, and what that says about the upstream."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import structlog

from shared.clock import Clock
from shared.jobs.outcomes import EndCode, FinishReason, Outcome
from workers.engine.events import ATTEMPT_FAILED, DROPPED, RETURNED
from workers.upstream.availability import Availability
from workers.upstream.backoff import FailureBackoff
from workers.upstream.concurrency import Concurrency
from workers.upstream.faults import Busy, Lost, Misconfigured, Rejected, Unreachable, UpstreamFault
from workers.upstream.prompt_sizes import PromptSizes
from workers.upstream.run import Run

log = structlog.get_logger()

#: A request whose connection the upstream closes before the first byte costs no attempt, but a request that makes the
#: upstream crash must not come back for ever. Of this many jobs the worker remembers how often that happened.
_REMEMBERED_JOBS, _MAX_RETURNS = 1024, 2


@dataclass(frozen=True)
class Limits:
    """How long an upstream may send nothing, and after how many attempts a job ends."""

    first_token_s: float
    gap_s: float
    max_attempts: int

    def silence_s(self, run: Run) -> float:
        """Return how long the upstream may send no further part of this answer."""
        return self.first_token_s if run.first_token_s is None else self.gap_s


@dataclass(frozen=True)
class Ending:
    """What an Ended event says beside the answer; see `workers.engine.events.Ended`."""

    outcome: str
    reason: str = ""
    code: str = ""
    message: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


_RETURNS = Ending(RETURNED)


class Endings:
    """Ends the jobs of one engine. Only the event loop's thread uses it, but any thread may read `backoff.suspects`."""

    def __init__(
        self, limits: Limits, availability: Availability, concurrency: Concurrency, sizes: PromptSizes, clock: Clock
    ) -> None:
        self.limits, self.backoff = limits, FailureBackoff()
        self._availability, self._concurrency, self._sizes, self._clock = availability, concurrency, sizes, clock
        #: Job id → how often the upstream closed the job's connection before its first byte.
        self._returns: OrderedDict[str, int] = OrderedDict()

    def ending(self, run: Run, task: asyncio.Task[None]) -> Ending:
        """Return how a job ends whose exchange has ended, and note what follows for the upstream."""
        if task.cancelled():
            if run.requested_end == Outcome.CANCELED:
                return Ending(Outcome.CANCELED, FinishReason.CANCELED, EndCode.CANCELED)
            return Ending(DROPPED)
        fault = task.exception()
        # After its finish reason, an answer is complete.
        if fault is None or (isinstance(fault, TimeoutError) and run.answer.finish_reason):
            return self._after_success(run)
        if isinstance(fault, TimeoutError):
            return self._after_silence(run)
        if isinstance(fault, UpstreamFault):
            return self._after_fault(run, fault)
        raise fault

    def _after_success(self, run: Run) -> Ending:
        self.backoff.note_success()
        self._returns.pop(run.job_id, None)
        if run.answer.counts.prompt:
            self._sizes.observe(run.job.spec.payload, run.answer.counts.prompt)
        return Ending(Outcome.SUCCEEDED, run.answer.finish_reason)

    def _after_silence(self, run: Run) -> Ending:
        if self._clock.monotonic() >= run.expires_at_s:
            message = f"the deadline passed in {run.stage}"
            return Ending(Outcome.EXPIRED, FinishReason.DEADLINE, EndCode.DEADLINE_EXCEEDED, message)
        return self._fail_attempt(run, Lost(f"the upstream sent nothing for {self.limits.silence_s(run):g} s"))

    def _after_fault(self, run: Run, fault: UpstreamFault) -> Ending:
        if isinstance(fault, Busy):
            if fault.too_many:
                self._concurrency.note_refused(self._clock.monotonic())
            self._availability.note_busy(fault.pause_s, str(fault))
            return _RETURNS
        if isinstance(fault, Unreachable):
            self._availability.note_away(str(fault))
            may_return = not fault.sent or self._count_return(run) <= _MAX_RETURNS
            return _RETURNS if may_return else self._fail_attempt(run, fault)
        if isinstance(fault, Rejected):
            self.backoff.note_success()
            extra = {"param": fault.param} if fault.param else {}
            return Ending(Outcome.FAILED, "", EndCode.UPSTREAM_REJECTED, fault.message, extra)
        if isinstance(fault, Misconfigured):
            log.error("upstream.misconfigured", why=str(fault))
            return Ending(Outcome.FAILED, "", EndCode.ENGINE_ERROR, fault.message)
        return self._fail_attempt(run, fault)

    def _count_return(self, run: Run) -> int:
        self._returns[run.job_id] = self._returns.pop(run.job_id, 0) + 1
        while len(self._returns) > _REMEMBERED_JOBS:
            self._returns.popitem(last=False)
        return self._returns[run.job_id]

    def _fail_attempt(self, run: Run, fault: UpstreamFault) -> Ending:
        """End a failed attempt. The job's next one begins, or the job fails if this was its last."""
        attempt = run.job.spec.attempt
        log.warning("upstream.lost", job=run.job_id, attempt=attempt, why=str(fault))
        pause_s = self.backoff.note_failure(run.started_s, self._clock.monotonic())
        if pause_s:
            self._availability.note_busy(pause_s, "the upstream failed several times in a row")
        if attempt < self.limits.max_attempts:
            return Ending(ATTEMPT_FAILED)
        return Ending(Outcome.FAILED, "", EndCode.UPSTREAM_LOST, fault.message)

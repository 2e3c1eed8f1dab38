"""Decides how a job ends when its exchange with the upstream has ended, and what that says about the upstream."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from shared.clock import Clock
from shared.jobs.outcomes import EndCode, FinishReason, Outcome
from shared.log import get_logger
from workers.engine.events import ATTEMPT_FAILED, DROPPED, RETURNED
from workers.prompt_sizes import PromptSizes
from workers.upstream.availability import Availability
from workers.upstream.backoff import Backoff
from workers.upstream.concurrency import Concurrency
from workers.upstream.faults import (
    Broken,
    Busy,
    Lost,
    Misconfigured,
    NoEmbeddings,
    Rejected,
    Unreachable,
    UpstreamFault,
)
from workers.upstream.run import Run

log = get_logger()

#: A request whose connection the upstream closes before the first byte costs no attempt, nor does another failure in a
#: crash that has cost one. But a request that makes the upstream crash must not come back for ever. Of this many jobs
#: the worker remembers how often that happened.
_REMEMBERED_JOBS, _MAX_FREE = 1024, 2
#: How long the upstream is left alone before it is probed after an answer broke off, in seconds: one that crashes may
#: still answer for a moment.
_DOUBT_S = 0.5
#: How long a job waits in its queue after its first failed attempt, and twice as long after each further one; and after
#: a failure that costs no attempt, in seconds.
_FIRST_RETRY_S, _RETRY_S = 0.25, 1.0

T = TypeVar("T")


@dataclass(frozen=True)
class PatienceLimits:
    """How long an upstream may send nothing, and after how many attempts a job ends."""

    first_token_s: float
    gap_s: float
    max_attempts: int

    def silence_s(self, run: Run) -> float:
        return self.first_token_s if run.first_token_s is None else self.gap_s


@dataclass(frozen=True)
class ExchangeEnding:
    """The fields of an Ended event beside the answer; see `workers.engine.events.Ended`."""

    outcome: str
    reason: str = ""
    code: str = ""
    message: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    wait_s: float = 0.0


class Endings:
    """Ends the jobs of one engine. Only the event loop's thread uses it, but any thread may read its attributes."""

    def __init__(
        self,
        limits: PatienceLimits,
        availability: Availability,
        concurrency: Concurrency,
        sizes: PromptSizes,
        clock: Clock,
        probe_as_client: Callable[[str], Awaitable[str]],
    ) -> None:
        self.limits, self.backoff = limits, Backoff()
        self._availability, self._concurrency, self._sizes, self._clock = availability, concurrency, sizes, clock
        self._probe_as_client = probe_as_client
        #: Whether a job on its last attempt has succeeded since the last attempt that failed.
        self.trusts_last_attempts = False
        #: Job id → how often a failure of the upstream cost the job no attempt.
        self._free: _Remembered[int] = _Remembered()
        #: Job id → the crash that has cost the job an attempt: how many successes and outages there were before it.
        self._crashes: _Remembered[tuple[int, int]] = _Remembered()
        #: The jobs that the upstream had too many requests for.
        self._refused: _Remembered[bool] = _Remembered()
        self._successes = 0

    def ending(self, run: Run, task: asyncio.Task[None]) -> ExchangeEnding:
        if task.cancelled():
            if run.requested_end == Outcome.CANCELED:
                return ExchangeEnding(Outcome.CANCELED, FinishReason.CANCELED, EndCode.CANCELED)
            return ExchangeEnding(DROPPED)
        fault = task.exception()
        # After its finish reason, an answer is complete.
        if fault is None or (isinstance(fault, TimeoutError) and run.answer.finish_reason):
            return self._after_success(run)
        if isinstance(fault, TimeoutError):
            return self._after_silence(run)
        if isinstance(fault, UpstreamFault):
            return self._after_fault(run, fault)
        raise fault

    def _after_success(self, run: Run) -> ExchangeEnding:
        self.backoff.note_success(run.tenant)
        self._successes += 1
        self._free.pop(run.job_id, None)
        self.trusts_last_attempts |= run.job.spec.attempt >= self.limits.max_attempts
        if self._refused.pop(run.job_id, None):
            # The number of requests was refused, not the contents of this one.
            self._concurrency.note_refused(self._clock.monotonic())
        # Some servers count the prompt once for each answer.
        if run.answer.counts.prompt and run.places == 1:
            self._sizes.observe(run.job.spec.payload, run.answer.counts.prompt)
        return ExchangeEnding(Outcome.SUCCEEDED, run.answer.finish_reason)

    def _after_silence(self, run: Run) -> ExchangeEnding:
        if self._clock.monotonic() >= run.expires_at_s:
            message = f"the deadline passed in {run.stage}"
            return ExchangeEnding(Outcome.EXPIRED, FinishReason.DEADLINE, EndCode.DEADLINE_EXCEEDED, message)
        return self._fail_attempt(run, Lost(f"the upstream sent nothing for {self.limits.silence_s(run):g} s"))

    def _after_fault(self, run: Run, fault: UpstreamFault) -> ExchangeEnding:
        if isinstance(fault, Busy):
            return self._after_refusal(run, fault)
        if isinstance(fault, Unreachable):
            self._availability.note_away(str(fault))
            may_return = not fault.sent or self._costs_nothing(run)
            return ExchangeEnding(RETURNED) if may_return else self._fail_attempt(run, fault)
        if isinstance(fault, Rejected):
            self.backoff.note_success(run.tenant)
            extra = {"param": fault.param} if fault.param else {}
            code = EndCode.EMBEDDINGS_UNSUPPORTED if isinstance(fault, NoEmbeddings) else EndCode.UPSTREAM_REJECTED
            return ExchangeEnding(Outcome.FAILED, "", code, fault.message, extra)
        if isinstance(fault, Misconfigured):
            log.error("upstream.misconfigured", why=str(fault))
            self._availability.note_away(str(fault), partial(self._probe_as_client, fault.model))
            return ExchangeEnding(RETURNED, message=fault.message, wait_s=_RETRY_S)
        return self._fail_attempt(run, fault)

    def _after_refusal(self, run: Run, fault: Busy) -> ExchangeEnding:
        """Give a job back. It waits by itself; the others do only if the upstream refuses theirs too, or a probe."""
        now_s = self._clock.monotonic()
        log.info("upstream.busy", job=run.job_id, why=str(fault), pause_s=round(fault.pause_s, 2))
        pause_s = self.backoff.note_refusal(run.tenant, run.job_id, fault.pause_s, run.started_s, now_s)
        if fault.too_many:
            self._refused[run.job_id] = True
        if pause_s:
            self._availability.note_busy(pause_s, str(fault))
        if self.backoff.suspects and fault.too_many:
            self._concurrency.note_refused(now_s)
        self._availability.check()
        return ExchangeEnding(RETURNED, message=fault.message, wait_s=fault.pause_s)

    def _costs_nothing(self, run: Run) -> bool:
        """Count a failure of the upstream that costs the job no attempt. Return whether that may be so once more."""
        self._free[run.job_id] = self._free.pop(run.job_id, 0) + 1
        return self._free[run.job_id] <= _MAX_FREE

    def _fail_attempt(self, run: Run, fault: UpstreamFault) -> ExchangeEnding:
        """End a failed attempt. The job's next one begins, or the job fails if this was its last."""
        attempt, now_s = run.job.spec.attempt, self._clock.monotonic()
        log.warning("upstream.lost", job=run.job_id, attempt=attempt, why=str(fault))
        pause_s = self.backoff.note_failure(run.tenant, run.job_id, run.started_s, now_s)
        if pause_s:
            self._availability.note_busy(pause_s, "the upstream failed several times in a row")
        crash = (self._successes, self._availability.outages)
        if self._crashes.get(run.job_id) == crash and self._costs_nothing(run):
            return ExchangeEnding(RETURNED, wait_s=_RETRY_S)
        if isinstance(fault, Broken):
            self._crashes[run.job_id] = crash
            if self.backoff.concerns_one_tenant(run.tenant):
                self._availability.check()
            else:
                self._availability.doubt(_DOUBT_S)
        self.trusts_last_attempts = False
        if attempt < self.limits.max_attempts:
            return ExchangeEnding(ATTEMPT_FAILED, wait_s=_FIRST_RETRY_S * 2 ** min(4, attempt - 1))
        return ExchangeEnding(Outcome.FAILED, "", EndCode.UPSTREAM_LOST, fault.message)


class _Remembered(OrderedDict[str, T]):
    """A value per job, kept for the jobs that were set last."""

    def __setitem__(self, job_id: str, value: T) -> None:
        super().__setitem__(job_id, value)
        while len(self) > _REMEMBERED_JOBS:
            self.popitem(last=False)

"""The states of a job and the lettered arrows between them (docs/states.md draws them)."""

from enum import StrEnum


class JobState(StrEnum):
    """Where a job is. The value is what `penstock_state` holds and what `status` says over HTTP."""

    #: Admitted, in its tenant's list, under no lease.
    QUEUED = "queued"
    #: Claimed by one worker under one lease, named by its claim token.
    RUNNING = "running"
    #: Ended: the worker generated all that was asked for.
    SUCCEEDED = "succeeded"
    #: Ended: the job itself was at fault, or its last attempt was used up.
    FAILED = "failed"
    #: Ended: its owner, or an operator, no longer wanted it.
    CANCELED = "canceled"
    #: Ended: its deadline passed, in the queue or while running.
    EXPIRED = "expired"


#: States in which a job counts as inflight.
ACTIVE_STATES = frozenset({JobState.QUEUED, JobState.RUNNING})
#: States that nothing leaves.
TERMINAL_STATES = frozenset(JobState) - ACTIVE_STATES


class Arrow(StrEnum):
    """A movement of a job; each is made by exactly the scripts that docs/states.md names."""

    ADMITTED = "a"
    CLAIMED = "b"
    SUCCEEDED = "c"
    FAILED = "d"
    EXPIRED_QUEUED = "e"
    EXPIRED_RUNNING = "f"
    CANCELED_QUEUED = "g"
    CANCELED_RUNNING = "h"
    REQUEUED = "i"
    POISONED = "j"


#: What each arrow leaves and reaches; None is "not yet a job".
ARROWS: dict[Arrow, tuple[JobState | None, JobState]] = {
    Arrow.ADMITTED: (None, JobState.QUEUED),
    Arrow.CLAIMED: (JobState.QUEUED, JobState.RUNNING),
    Arrow.SUCCEEDED: (JobState.RUNNING, JobState.SUCCEEDED),
    Arrow.FAILED: (JobState.RUNNING, JobState.FAILED),
    Arrow.EXPIRED_QUEUED: (JobState.QUEUED, JobState.EXPIRED),
    Arrow.EXPIRED_RUNNING: (JobState.RUNNING, JobState.EXPIRED),
    Arrow.CANCELED_QUEUED: (JobState.QUEUED, JobState.CANCELED),
    Arrow.CANCELED_RUNNING: (JobState.RUNNING, JobState.CANCELED),
    Arrow.REQUEUED: (JobState.RUNNING, JobState.QUEUED),
    Arrow.POISONED: (JobState.RUNNING, JobState.FAILED),
}

"""The states of a job and the transitions between them; docs/states.md draws the transitions as lettered arrows."""

from enum import StrEnum


class JobState(StrEnum):
    """The state of a job, as stored in the field `penstock_state` of its hash and sent as `status` over HTTP."""

    #: Admitted: the job is in its tenant's queue and has no lease.
    QUEUED = "queued"
    #: Claimed: one worker holds the job under one lease, and the claim token identifies this claim.
    RUNNING = "running"
    #: Ended: the worker generated the whole answer.
    SUCCEEDED = "succeeded"
    #: Ended: the job itself caused an error, or its lease ended on its last attempt.
    FAILED = "failed"
    #: Ended: its client, an operator or the door canceled it.
    CANCELED = "canceled"
    #: Ended: while it was queued or running, its deadline passed or could no longer be met.
    EXPIRED = "expired"


#: The states of inflight jobs.
ACTIVE_STATES = frozenset({JobState.QUEUED, JobState.RUNNING})
#: The states of ended jobs. The state of an ended job never changes again.
TERMINAL_STATES = frozenset(JobState) - ACTIVE_STATES


class Arrow(StrEnum):
    """A state transition. For each one, docs/states.md lists the scripts that may make it."""

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
    REFUSED_QUEUED = "k"


#: The state before and after each transition; None means that the job did not exist.
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
    Arrow.REFUSED_QUEUED: (JobState.QUEUED, JobState.FAILED),
}

"""The waits of a job with their reasons, and the changes that kept it in time."""

from dataclasses import dataclass


@dataclass(frozen=True)
class WaitTimes:
    """How long and for what a job waited, in ms. `own_ms` plus `turn_ms` is the wait before the first claim."""

    #: From admission until the job first reached the head of its queue: it waited for other jobs of its own tenant.
    own_ms: int
    #: From reaching the head until its first claim: the job waited for other tenants' turns or for a free slot.
    turn_ms: int
    #: Time for which its worker had paused it, so that another tenant's job could run.
    paused_ms: int
    #: Time spent back in the queue after a claim, because the lease ended or a draining worker released the job.
    requeued_ms: int


@dataclass(frozen=True)
class Change:
    """A change to a job, so that its answer is ready by the deadline or within the bounds: something was left out."""

    #: The changed field: `max_tokens`, `passages` (their number), `retrieval` or `rerank`.
    what: str
    before: int | str
    after: int | str
    why: str

    def as_dict(self) -> dict[str, str | int]:
        """Return the change as the JSON object that every answer about the job contains."""
        return {"what": self.what, "from": self.before, "to": self.after, "why": self.why}

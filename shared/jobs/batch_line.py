"""The line of a batch that a job is for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchLine:
    """The line of a batch that a job is for, and the claim of the batch by the process that offers the job."""

    batch: str
    token: str
    number: int

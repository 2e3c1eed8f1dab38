"""Defines the digests that identify a repeated request for a file or a batch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Repeats:
    """Digests of a request's Idempotency-Key ("" for none) and of its body."""

    idem_digest: str = ""
    body_digest: str = ""


#: A request that is not a repetition of another one, whatever its body.
NOT_REPEATED = Repeats()

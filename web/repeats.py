"""A request that comes again: by its Idempotency-Key, or sent twice by a proxy with one x-request-id.

For jobs that live on without their connection. Where a connection owns its job, a second request could join a
job that the first one's close is about to cancel (docs/adr/0016).
"""

from dataclasses import replace

from flask import g, request

from web.admission import Ask, digest
from web.problems import Wrong, invalid
from web.telemetry import given_request_id

#: An Idempotency-Key is kept as a digest; this bounds what is digested.
_LONGEST_KEY = 256


def known_again(ask: Ask, tenant: str) -> Ask:
    """The ask, so that the store knows it again by key or by request id; its `body_digest` must be set.

    Raises Problem for a key that is none.
    """
    ask = replace(ask, idem_digest=_idempotency())
    if given_request_id() is None:
        return ask
    # A proxy that sends a request again sends its id again: the same id and body are the same job.
    return replace(ask, job_id=digest("request", tenant, g.request_id, ask.body_digest)[:32])


def _idempotency() -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if not 1 <= len(key) <= _LONGEST_KEY:
        raise invalid([Wrong("Idempotency-Key", f"Idempotency-Key has {len(key)} characters; 1 to {_LONGEST_KEY} fit")])
    return digest("idempotency", key)

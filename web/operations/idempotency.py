"""A request that comes again: by its Idempotency-Key, or sent twice by a proxy with one x-request-id.

A job that lives on without its connection is found again. Where a connection owns its job, a second request could
join a job that the first one's close is about to cancel (docs/adr/0016): there only a refusal is known again.
"""

import hashlib
from dataclasses import replace

from flask import g, request

from web.http.api_errors import FieldError, invalid_value
from web.http.telemetry import client_request_id
from web.operations.admission import GenerationRequest, digest

#: An Idempotency-Key is kept as a digest; this bounds what is digested.
_LONGEST_KEY = 256


def with_job_identity(ask: GenerationRequest, tenant: str) -> GenerationRequest:
    """The ask, so that the store knows it again by key or by request id; its `body_digest` must be set.

    Raises ApiError for a key that is none.
    """
    ask = replace(ask, idem_digest=_idempotency())
    if client_request_id() is None:
        return ask
    # A proxy that sends a request again sends its id again: the same id and body are the same job.
    return replace(ask, job_id=digest("request", tenant, g.request_id, ask.body_digest)[:32])


def with_refusal_identity(ask: GenerationRequest, tenant: str) -> GenerationRequest:
    """The ask of a call that owns its job, so that a refusal sent again by a proxy books no second appointment."""
    if client_request_id() is None:
        return ask
    # The bytes as they came, which are what a proxy repeats: what was read of them has a seed of its own each time.
    body = hashlib.sha256(request.get_data()).hexdigest()
    return replace(ask, asked_id=digest("refusal", tenant, g.request_id, request.path, body)[:32])


def _idempotency() -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if not 1 <= len(key) <= _LONGEST_KEY:
        raise invalid_value(
            [FieldError("Idempotency-Key", f"Idempotency-Key has {len(key)} characters; 1 to {_LONGEST_KEY} fit")]
        )
    return digest("idempotency", key)

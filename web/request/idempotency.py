"""Recognize a repeated request by its Idempotency-Key, or by its x-request-id if a proxy sent the request twice.

If no connection owns the job, a repeated request receives the same job. If a connection owns the job, a repeated
request could receive a job that is about to be canceled because the first connection has closed (docs/adr/0016). For
jobs that a connection owns, a repeat is therefore recognized only if the first request was refused.
"""

from dataclasses import replace

from flask import g, request
from pydantic import BaseModel

from shared.store.batches.repeats import Repeats
from web.api.body import body_digest, digest, given_fields
from web.http.api_errors import invalid_field
from web.jobs.generation import GenerationRequest
from web.request.body import raw_body_digest
from web.request.telemetry import client_request_id

#: The longest allowed Idempotency-Key, in characters. The limit bounds the time to compute the key's digest.
_MAX_KEY_CHARS = 256


def with_job_identity(generation: GenerationRequest, tenant: str) -> GenerationRequest:
    """Return a copy of the request with the ids that let the store recognize a repeat of it.

    The request's `body_digest` must be set. Raises ApiError for an invalid Idempotency-Key.
    """
    generation = replace(generation, idem_digest=_idempotency_digest())
    if client_request_id() is None:
        return generation
    # A proxy that repeats a request sends the same x-request-id and the same body, which give the same job id.
    job_id = digest("request", tenant, g.request_id, generation.body_digest)[:32]
    return replace(generation, job_id=job_id)


def with_refusal_identity(generation: GenerationRequest, tenant: str) -> GenerationRequest:
    """Return a copy of the request with what the store needs to recognize a repeat of it after a refusal.

    Routes whose calls own their job use this function. The body's digest recognizes a client that comes back, as the
    OpenAI package does. The deduplication id recognizes a repeat by a proxy, so that the appointment of the tenant does
    not move a second time.
    """
    # Use the digest of the raw body, which clients and proxies repeat exactly. The parsed payload differs each time,
    # because it contains a new random seed.
    body = digest("body", request.path, raw_body_digest())
    generation = replace(generation, body_digest=body)
    if client_request_id() is None:
        return generation
    return replace(generation, dedup_id=digest("refusal", tenant, g.request_id, body)[:32])


def batch_repeats(body: BaseModel) -> Repeats:
    """Return the digests that identify a repetition of the current request for a batch. Raises ApiError.

    Without an Idempotency-Key, a request with the same x-request-id and the same body is a repetition by a proxy.
    """
    # The texts differ from those of jobs, so that a key can be used once for each.
    found, body_text = _idempotency_digest(), body_digest(given_fields(body))
    if found is not None:
        return Repeats(digest("batch", found), body_text)
    if client_request_id() is None:
        return Repeats()
    return Repeats(digest("batch request", g.request_id, body_text), body_text)


def file_idem_digest() -> str:
    """Return the digest that identifies a repetition of the current upload, "" for none. Raises ApiError."""
    found = _idempotency_digest()
    return "" if found is None else digest("file", found)


def _idempotency_digest() -> str | None:
    """Return the digest of the Idempotency-Key header, or None if the request has no such header."""
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if not 1 <= len(key) <= _MAX_KEY_CHARS:
        raise invalid_field("Idempotency-Key", f"Idempotency-Key has {len(key)} characters; use 1 to {_MAX_KEY_CHARS}")
    return digest("idempotency", key)

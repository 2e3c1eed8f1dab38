"""The request class of the HTTP door, and what requests say in headers and queries: pages, deadlines, repeats."""

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from flask import Request, g, request
from gunicorn.http.errors import ParseException  # type: ignore[import-untyped]  # ships no types
from pydantic import BaseModel
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge

from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.queue import QueueSettings
from shared.store.batches.repeats import Repeats
from web.api.body import body_digest, digest, given_fields
from web.api.deadline import AnswerMode, RequestDeadline, resolve_deadline
from web.api.request_schema import QueueFields
from web.http.api_errors import ApiError, invalid, invalid_field, quoted
from web.http.json_body import parse_json
from web.jobs.generation import GenerationRequest
from web.request.telemetry import client_request_id

#: The largest retry count that a client may name.
MAX_ATTEMPT = 999


class DoorRequest(Request):
    """A request whose JSON body is always parsed strictly, even when Flask or APIFlask reads it.

    The bytes of the body are not kept: a call that waits or streams would hold them for as long as it lasts.
    """

    #: The digest of the body's bytes, once they were read.
    body_digest: str = ""

    def get_json(self, force: bool = False, silent: bool = False, cache: bool = True) -> Any:  # noqa: ARG002 - Flask's signature
        """Return the JSON value of the body.

        Raises ApiError with status 415 if the content type is not JSON, and with status 400 if the body is incomplete
        or is not valid JSON. Raises RequestEntityTooLarge (413) if the body is too long.
        """
        # The comparison spares most requests the parsing of the header.
        if self.environ.get("CONTENT_TYPE") != "application/json" and not self.is_json:
            mimetype = self.mimetype or "nothing"
            raise ApiError(
                "unsupported_media_type",
                f"Content-Type is {mimetype[:80]!r}; send application/json",
                param="Content-Type",
            )
        if "_door_json" not in self.__dict__:
            self.__dict__["_door_json"] = self._read_json()
        return self.__dict__["_door_json"]

    def replace_json(self, value: Any) -> None:
        """Have this value validated in place of the one that the client has sent."""
        self.__dict__["_door_json"] = value

    def _read_json(self) -> Any:
        """Read and parse the body; meanwhile its length, or the longest one if it has none, counts as the tenant's."""
        longest, given = self.max_content_length or 0, self.content_length
        open_body = g.get("open_body")
        end = open_body(longest if given is None else min(given, longest)) if open_body else None
        try:
            data = self.whole_body(given)
            self.body_digest = hashlib.sha256(data).hexdigest()
            return parse_json(data)
        finally:
            if end is not None:
                end()

    def whole_body(self, length: int | None) -> bytes:
        """Return the bytes of the body, which has this length if the client has named one. Raises as `get_json`."""
        with _errors_of_body():
            data = self.get_data(cache=False)
        if length is None and len(data) >= (self.max_content_length or sys.maxsize):
            # A body of unknown length is read only up to the limit. If that much was read, there may be more, so the
            # body is refused.
            raise RequestEntityTooLarge
        if length is not None and len(data) < length:
            raise ApiError("invalid_request", f"the body ended after {len(data)} of {length} bytes")
        return data


@contextmanager
def _errors_of_body() -> Iterator[None]:
    """Raise ApiError for a body that is malformed, or that breaks off."""
    try:
        yield
    except ParseException as error:
        message = f"Transfer-Encoding is chunked, but the body is not encoded in chunks: {error}"
        raise ApiError("invalid_request", message) from error
    except ClientDisconnected:
        message = "the client stopped sending the body, or the body ended within a chunk"
        raise ApiError("invalid_request", message) from None


def read_part(size: int) -> bytes:
    """Return the next bytes of the body. Raises ApiError, and RequestEntityTooLarge (413) if the body is too long."""
    with _errors_of_body():
        return request.stream.read(size)


def read_whole() -> bytes:
    """Return the body of the current request. Raises ApiError, and RequestEntityTooLarge (413) if it is too long."""
    incoming = cast("DoorRequest", request)
    return incoming.whole_body(incoming.content_length)


def check_content_encoding() -> None:
    """Raise ApiError (415) if the current request's body is compressed, whatever the route makes of the body."""
    named = request.environ.get("HTTP_CONTENT_ENCODING", "")
    if not named:
        return
    encodings = [word.strip().lower() for word in named.split(",")]
    foreign = [word for word in encodings if word not in {"", "identity"}]
    if foreign and request.routing_exception is None:
        message = f"Content-Encoding is {foreign[0][:80]!r}; send the body as it is"
        headers = {"Accept-Encoding": "identity"}
        raise ApiError("unsupported_media_type", message, param="Content-Encoding", headers=headers)


def raw_body_digest() -> str:
    """Return the digest of the current request's body as it was sent, which has been read and parsed."""
    return cast("DoorRequest", request).body_digest


def return_ticket(in_body: str | None) -> str:
    """Return the return ticket that the client sent in the body or in the header; "" if it sent none."""
    return in_body or request.environ.get("HTTP_X_PENSTOCK_RETURN_TICKET", "")


def retry_attempt() -> int:
    """Return the retry count that the client sent with this request; 0 if it sent no count.

    Raises ApiError if X-Attempt is invalid. The header of OpenAI's packages is read only if it is a number, because
    their users do not choose it.
    """
    environ = request.environ
    named = environ.get("HTTP_X_ATTEMPT")
    text = environ.get("HTTP_X_STAINLESS_RETRY_COUNT", "0") if named is None else named
    if text.isascii() and text.isdigit() and len(text) <= len(str(MAX_ATTEMPT)):
        return int(text)
    if named is not None:
        raise invalid_field("X-Attempt", f"X-Attempt={named[:60]!r} is not a whole number from 0 to {MAX_ATTEMPT}")
    return 0


_MAX_ID_CHARS = 100


def page_limit(default: int, most: int) -> int:
    """Return how many items the page may have; `limit` may be greater than `most`. Raises ApiError."""
    text = request.args.get("limit", str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) >= 1):
        raise invalid("limit", text, "a whole number from 1 to 99999")
    return min(int(text), most)


def page_after() -> str | None:
    """Return the id of the item behind which the page begins, or None for the first page. Raises ApiError."""
    text = request.args.get("after")
    if text is not None and not 1 <= len(text) <= _MAX_ID_CHARS:
        raise invalid_field("after", f"after={quoted(text)} is no id")
    return text


def oldest_first() -> bool:
    """Return whether the oldest items come first. Raises ApiError."""
    text = request.args.get("order", "desc")
    if text not in {"asc", "desc"}:
        raise invalid("order", text, "'asc' or 'desc'")
    return text == "asc"


def read_deadline(
    settings: QueueSettings, policy: TenantPolicy | None, body: QueueFields, mode: AnswerMode
) -> RequestDeadline:
    """Return the deadline of the current request. Raises ApiError as `resolve_deadline` does."""
    return resolve_deadline(mode, body, request.headers, settings, policy)


#: The longest allowed Idempotency-Key, in characters. The limit bounds the time to compute the key's digest.
_MAX_KEY_CHARS = 256


def with_job_identity(generation: GenerationRequest, tenant: str) -> GenerationRequest:
    """Return a copy of the request with the ids that let the store recognize a repeat of it.

    Only for jobs that no connection owns: a repeat receives the same job. One that a connection owns may be about to be
    canceled because the first connection has closed (docs/adr/0016), so it has `with_refusal_identity` instead.
    The request's `body_digest` must be set. Raises ApiError for an invalid Idempotency-Key.
    """
    generation = generation.replaced(idem_digest=_idempotency_digest())
    if client_request_id() is None:
        return generation
    # A proxy that repeats a request sends the same x-request-id and the same body, which give the same job id.
    job_id = digest("request", tenant, g.request_id, generation.body_digest)[:32]
    return generation.replaced(job_id=job_id, has_known_id=True)


def with_refusal_identity(generation: GenerationRequest, tenant: str) -> GenerationRequest:
    """Return a copy of the request with what the store needs to recognize a repeat of it after a refusal.

    Routes whose calls own their job use this function. The body's digest recognizes a client that comes back, as the
    OpenAI package does. The deduplication id recognizes a repeat by a proxy, so that the appointment of the tenant does
    not move a second time.
    """
    # Use the digest of the raw body, which clients and proxies repeat exactly. The parsed payload differs each time,
    # because it contains a new random seed.
    body = digest("body", request.path, raw_body_digest())
    generation = generation.replaced(body_digest=body)
    if client_request_id() is None:
        return generation
    return generation.replaced(dedup_id=digest("refusal", tenant, g.request_id, body)[:32])


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
    key = request.environ.get("HTTP_IDEMPOTENCY_KEY")
    if key is None:
        return None
    if not 1 <= len(key) <= _MAX_KEY_CHARS:
        raise invalid_field("Idempotency-Key", f"Idempotency-Key has {len(key)} characters; use 1 to {_MAX_KEY_CHARS}")
    return digest("idempotency", key)

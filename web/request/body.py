"""The request class of the HTTP door: bodies must be JSON in UTF-8 and are limited in size."""

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from flask import Request, g, request
from gunicorn.http.errors import ParseException  # type: ignore[import-untyped]  # ships no types
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge

from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.queue import QueueSettings
from web.api.deadline import AnswerMode, RequestDeadline, resolve_deadline
from web.api.request_schema import QueueFields
from web.http.api_errors import ApiError, invalid, invalid_field, quoted
from web.http.json_body import parse_json

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
        if not self.is_json:
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
        longest = self.max_content_length or 0
        length = longest if self.content_length is None else min(self.content_length, longest)
        end = g.open_body(length) if "open_body" in g else None
        try:
            data = self._whole_body()
            self.body_digest = hashlib.sha256(data).hexdigest()
            return parse_json(data)
        finally:
            if end is not None:
                end()

    def _whole_body(self) -> bytes:
        with _errors_of_body():
            data = self.get_data(cache=False)
        if self.content_length is None and len(data) >= (self.max_content_length or sys.maxsize):
            # A body of unknown length is read only up to the limit. If that much was read, there may be more, so the
            # body is refused.
            raise RequestEntityTooLarge
        if self.content_length is not None and len(data) < self.content_length:
            raise ApiError("invalid_request", f"the body ended after {len(data)} of {self.content_length} bytes")
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


def check_content_encoding() -> None:
    """Raise ApiError (415) if the current request's body is compressed, whatever the route makes of the body."""
    encodings = [word.strip().lower() for word in request.headers.get("Content-Encoding", "").split(",")]
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
    return in_body or request.headers.get("x-penstock-return-ticket", "")


def retry_attempt() -> int:
    """Return the retry count that the client sent with this request; 0 if it sent no count.

    Raises ApiError if X-Attempt is invalid. The header of OpenAI's packages is read only if it is a number, because
    their users do not choose it.
    """
    named = request.headers.get("X-Attempt")
    text = request.headers.get("x-stainless-retry-count", "0") if named is None else named
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

"""Parse one frame into a request, or raise BadFrame with the frame's error; pure functions."""

import base64
import binascii
import hashlib
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from pydantic_core import from_json

from web.api.body import Body
from web.api.request_schema import ReturnTicket
from web.gate.frames import KEPT_BYTES
from web.http.api_errors import ApiError, field_errors, invalid_value, quoted
from web.http.json_body import check_budget, find_lone_surrogate, is_utf8_encodable

#: The error codes that only the gate uses, and the meaning of each. All other codes are in web/http/api_errors.py.
CODES = {
    "integrity": "the digest is missing, or does not match the request's text",
    "half_frame": "the end of the frame did not arrive",
    "too_many_frames": "this connection has reached its bound on jobs in flight",
    "auth_required": "connections without a valid key hold too many bytes",
    "too_many_connections": "the gate or the client's address has reached its bound on connections",
    "idle": "no frame arrived for too long and no job is in flight",
}

#: The tag that a client chooses for a frame. A number has at most 53 bits, so that every JSON parser reads it exactly.
Ref = Annotated[str, Field(min_length=1, max_length=256)] | Annotated[int, Field(ge=-(2**53), le=2**53)]

#: The format that version 00 of W3C trace context defines for `traceparent`; any version number is accepted.
_TRACEPARENT = r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"


class BadFrame(Exception):
    """Raised for a frame that the gate cannot serve. The client receives one error frame.

    `code` is a key of CODES, either in this file or in web/http/api_errors.py.
    """

    def __init__(self, code: str, message: str, *, param: str | None = None, ref: str | int | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param, self.ref = code, message, param, ref


class Request(Body):
    """The fields that every frame may have."""

    op: str
    ref: Ref | None = None


class Submit(Request):
    """Offer a job. If the job is admitted, the connection owns the job."""

    #: A body of `POST /v1/jobs` as JSON text, which is encoded in base64 if `encoding` is "base64".
    body: str
    #: The SHA-256 digest of the JSON text's UTF-8 bytes, in hex. The field's type is Any, so that a value of the wrong
    #: type causes the same error code, `integrity`, as a wrong digest.
    sha256: Any = None
    encoding: Literal["base64"] | None = None
    tenant_key: str | None = None
    tenant: str | None = None
    stream: bool = Field(default=False, description="send the text while it is generated")
    attempt: int = Field(0, ge=0, le=999, description="how many times the client has sent this request before")
    return_ticket: ReturnTicket | None = None
    traceparent: Annotated[str, Field(pattern=_TRACEPARENT)] | None = None

    def text(self) -> bytes:
        """Return the JSON text in `body` as bytes.

        Raises BadFrame (`integrity`) if the text's base64 is invalid, or if `sha256` is not the digest of the text.
        """
        if self.encoding == "base64":
            try:
                raw = base64.b64decode(self.body, validate=True)
            except (binascii.Error, ValueError):
                raise BadFrame(
                    "integrity", "body is not base64, although encoding is 'base64'", param="body", ref=self.ref
                ) from None
        else:
            raw = self.body.encode()
        if self.sha256 is None:
            message = "sha256 is missing: send the SHA-256 of the request's text, in hex"
            raise BadFrame("integrity", message, param="sha256", ref=self.ref)
        digest = hashlib.sha256(raw).hexdigest()
        if not isinstance(self.sha256, str) or self.sha256.lower() != digest:
            message = f"sha256={quoted(self.sha256)} does not match the request's {len(raw)} bytes, which have {digest}"
            raise BadFrame("integrity", message, param="sha256", ref=self.ref)
        return raw


class Auth(Request):
    """Show an API key, which raises the connection's limits and is used for later frames without a key."""

    tenant_key: str


class Cancel(Request):
    """Cancel the job that was submitted as `ref` on this connection."""

    ref: Ref


class Status(Request):
    """Ask for the state of the job that was submitted as `ref` on this connection."""

    ref: Ref


class Metrics(Request):
    """Ask for three metrics of the whole system: `inflight`, `executed_total` and `yielded_total`."""

    tenant_key: str | None = None


class Ping(Request):
    """Ask for a `pong` frame, to check that the gate is alive."""


OPS: dict[str, type[Request]] = {
    "auth": Auth,
    "submit": Submit,
    "cancel": Cancel,
    "status": Status,
    "metrics": Metrics,
    "ping": Ping,
}


def read_request(line: bytes) -> Request:
    """Return the request in a frame. Raises BadFrame for an invalid frame, with the frame's `ref` if it is readable."""
    try:
        check_budget(line)
        value = from_json(line, allow_inf_nan=False)
    except ApiError as refused:
        raise BadFrame(refused.code, refused.message, ref=find_ref(line[:KEPT_BYTES])) from None
    except ValueError as error:
        found_surrogate = find_lone_surrogate(line)
        if found_surrogate is not None:
            value, wrong = found_surrogate
            ref = _valid_ref(value) if isinstance(value, dict) else None
            raise BadFrame("invalid_value", wrong.message, param=wrong.param or None, ref=ref) from None
        raise BadFrame("invalid_json", f"the frame is not JSON: {error}", ref=find_ref(line)) from None
    if not isinstance(value, dict):
        raise BadFrame("invalid_value", f"the frame {quoted(value)} should be a JSON object")
    ref, op = _valid_ref(value), value.get("op")
    kind = OPS.get(op) if isinstance(op, str) else None
    if kind is None:
        raise BadFrame("invalid_value", f"op={quoted(op)} is not one of {', '.join(OPS)}", param="op", ref=ref)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        # pydantic reports an invalid `ref` twice: as an invalid text and as an invalid number. Report it only once.
        found = [wrong for wrong in field_errors(error) if not wrong.param.startswith("ref.")]
        if not found:
            message = f"ref={quoted(value['ref'])} is neither a text of 1 to 256 characters nor a whole number"
            raise BadFrame("invalid_value", message, param="ref") from None
        problem = invalid_value(found)
        raise BadFrame(problem.code, problem.message, param=problem.param, ref=ref) from None


def find_ref(beginning: bytes) -> str | int | None:
    """Return the `ref` in an incomplete or invalid frame, or None if it cannot be read."""
    try:
        value = from_json(beginning, allow_partial=True)
    except ValueError:
        return None
    return _valid_ref(value) if isinstance(value, dict) else None


def _valid_ref(value: dict[str, Any]) -> str | int | None:
    """Return the `ref` of a parsed frame, or None if it is missing or invalid."""
    ref = value.get("ref")
    if isinstance(ref, str):
        return ref if 1 <= len(ref) <= 256 and is_utf8_encodable(ref) else None
    return ref if isinstance(ref, int) and not isinstance(ref, bool) and abs(ref) <= 2**53 else None

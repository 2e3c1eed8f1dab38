"""A frame's line → what the client asks for, or what is wrong with it; pure."""

import base64
import binascii
import hashlib
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from pydantic_core import from_json

from web.api.request_schema import Body
from web.http.api_errors import field_errors, invalid_value, quoted
from web.http.surrogates import refused_for, whole

#: Codes of error frames that only the gate has, and when it says them; all others are web/http/api_errors.py's.
CODES = {
    "integrity": "the digest is missing, or is not that of the request's text",
    "half_frame": "the frame's end did not come",
    "too_many_frames": "as many jobs of this connection are in flight as may be",
    "idle": "nothing was asked for a long time and no job is in flight",
}

#: What a client may tag its frames with: numbers survive every JSON reader, texts are short.
Ref = Annotated[str, Field(min_length=1, max_length=256)] | Annotated[int, Field(ge=-(2**53), le=2**53)]

#: W3C trace context, version 00; other versions begin alike.
_TRACEPARENT = r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"


class BadFrame(Exception):
    """A frame that cannot be served; becomes one error frame. `code` is one of CODES or of web/http/api_errors.py."""

    def __init__(self, code: str, message: str, *, param: str | None = None, ref: str | int | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param, self.ref = code, message, param, ref


class Request(Body):
    """What every frame may carry."""

    op: str
    ref: Ref | None = None


class Submit(Request):
    """Offer a job; the connection owns it."""

    #: The text of a body of `POST /v1/jobs`, or base64 of it.
    body: str
    #: Of the text's UTF-8 bytes, in hex. Anything else than a fit one is the same fault, so that any may stand here.
    sha256: Any = None
    encoding: Literal["base64"] | None = None
    tenant_key: str | None = None
    tenant: str | None = None
    stream: bool = Field(default=False, description="tell the text as it comes")
    attempt: int = Field(0, ge=0, le=999, description="how often this was tried before")
    traceparent: Annotated[str, Field(pattern=_TRACEPARENT)] | None = None

    def text(self) -> bytes:
        """The request's text as bytes. Raises Unfit(integrity) unless the digest fits it."""
        if self.encoding == "base64":
            try:
                raw = base64.b64decode(self.body, validate=True)
            except (binascii.Error, ValueError):
                raise BadFrame(
                    "integrity", "body is not base64, as encoding says", param="body", ref=self.ref
                ) from None
        else:
            raw = self.body.encode()
        if self.sha256 is None:
            message = "sha256 is missing: the SHA-256 of the request's text, in hex"
            raise BadFrame("integrity", message, param="sha256", ref=self.ref)
        digest = hashlib.sha256(raw).hexdigest()
        if not isinstance(self.sha256, str) or self.sha256.lower() != digest:
            message = f"sha256={quoted(self.sha256)} is not that of the request's {len(raw)} bytes, {digest}"
            raise BadFrame("integrity", message, param="sha256", ref=self.ref)
        return raw


class Cancel(Request):
    """End the job that was submitted as `ref` on this connection."""

    ref: Ref


class Status(Request):
    """Where the job stands that was submitted as `ref` on this connection."""

    ref: Ref


class Metrics(Request):
    """The three figures of the whole system."""


class Ping(Request):
    """Ask whether somebody is there."""


OPS: dict[str, type[Request]] = {
    "submit": Submit,
    "cancel": Cancel,
    "status": Status,
    "metrics": Metrics,
    "ping": Ping,
}


def read_request(line: bytes) -> Request:
    """The request in a frame. Raises Unfit, with the frame's tag where it can be seen."""
    try:
        value = from_json(line, allow_inf_nan=False)
    except ValueError as error:
        refused = refused_for(line)
        if refused is not None:
            value, wrong = refused
            ref = _fit_ref(value) if isinstance(value, dict) else None
            raise BadFrame("invalid_value", wrong.message, param=wrong.param or None, ref=ref) from None
        raise BadFrame("invalid_json", f"the frame is not JSON: {error}", ref=seen_ref(line)) from None
    if not isinstance(value, dict):
        raise BadFrame("invalid_value", f"the frame {quoted(value)} should be a JSON object")
    ref, op = _fit_ref(value), value.get("op")
    kind = OPS.get(op) if isinstance(op, str) else None
    if kind is None:
        raise BadFrame("invalid_value", f"op={quoted(op)} is none of {', '.join(OPS)}", param="op", ref=ref)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        # The two kinds of a tag are one field.
        found = [wrong for wrong in field_errors(error) if not wrong.param.startswith("ref.")]
        if not found:
            message = f"ref={quoted(value['ref'])} is neither a text of 1 to 256 characters nor a whole number"
            raise BadFrame("invalid_value", message, param="ref") from None
        problem = invalid_value(found)
        raise BadFrame(problem.code, problem.message, param=problem.param, ref=ref) from None


def seen_ref(beginning: bytes) -> str | int | None:
    """The tag in what there is of a frame, or None when it does not show."""
    try:
        value = from_json(beginning, allow_partial=True)
    except ValueError:
        return None
    return _fit_ref(value) if isinstance(value, dict) else None


def _fit_ref(value: dict[str, Any]) -> str | int | None:
    ref = value.get("ref")
    if isinstance(ref, str):
        return ref if 1 <= len(ref) <= 256 and whole(ref) else None
    return ref if isinstance(ref, int) and not isinstance(ref, bool) and abs(ref) <= 2**53 else None

"""Exception → one error object; the one file that knows which error is which status.

Every answer that is not 2xx, 3xx or a refusal has this body:
`{"error": {"message": …, "type": …, "param": …, "code": …}}`, which OpenAI clients read as their own.
When you add a code: a row in CODES and a line in docs/http.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError

#: code → (status, type). A code has one status on every route, but for jobs that ended (web/routes/openai.py).
CODES: dict[str, tuple[int, str]] = {
    "invalid_json": (400, "invalid_request_error"),
    "invalid_request": (400, "invalid_request_error"),
    "context_length_exceeded": (400, "invalid_request_error"),
    "unsupported_parameter": (400, "invalid_request_error"),
    "model_required": (400, "invalid_request_error"),
    "invalid_api_key": (401, "authentication_error"),
    "invalid_ticket": (401, "authentication_error"),
    "admin_key_required": (401, "authentication_error"),
    "tenant_disabled": (403, "permission_error"),
    "tenant_not_allowed": (403, "permission_error"),
    "origin_not_allowed": (403, "permission_error"),
    "job_not_found": (404, "not_found_error"),
    "model_not_found": (404, "not_found_error"),
    "route_not_found": (404, "not_found_error"),
    "method_not_allowed": (405, "invalid_request_error"),
    "job_canceled": (409, "job_error"),
    "request_too_large": (413, "invalid_request_error"),
    "unsupported_media_type": (415, "invalid_request_error"),
    "unknown_host": (421, "invalid_request_error"),
    "invalid_value": (422, "invalid_request_error"),
    "idempotency_mismatch": (422, "invalid_request_error"),
    "internal_error": (500, "server_error"),
    "job_failed": (500, "job_error"),
    "deadline_exceeded": (504, "job_error"),
}

#: What werkzeug raises by itself, by status.
_BY_STATUS = {
    400: "invalid_request",
    404: "route_not_found",
    405: "method_not_allowed",
    413: "request_too_large",
    415: "unsupported_media_type",
    500: "internal_error",
}


@dataclass(frozen=True)
class FieldError:
    """One thing that is wrong with a request: the field (`messages[0].content`) and a sentence that quotes it."""

    param: str
    message: str


class ApiError(Exception):
    """A request that cannot be served as it is; becomes the error object of its code."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: dict[str, str] | None = None,
        wrong: Sequence[FieldError] = (),
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param
        self.headers, self.wrong = headers or {}, tuple(wrong)
        self.status, self.type = CODES[code]


@dataclass(frozen=True)
class ErrorResponse:
    """What goes over the wire for a problem."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)


def error_response(problem: ApiError) -> ErrorResponse:
    """The response to a problem. Nothing that is not going to change by itself asks to be sent again."""
    error: dict[str, Any] = {
        "message": problem.message,
        "type": problem.type,
        "param": problem.param,
        "code": problem.code,
    }
    if len(problem.wrong) > 1:
        error["errors"] = [{"param": wrong.param, "message": wrong.message} for wrong in problem.wrong]
    # Stock clients send 409 and 5xx again by themselves unless they are told not to.
    return ErrorResponse(problem.status, {"error": error}, {"x-should-retry": "false"} | problem.headers)


def error_from_status(status: int, description: str | None) -> ApiError:
    """The problem for an HTTP status that the framework chose."""
    code = _BY_STATUS.get(status, "invalid_request" if status < 500 else "internal_error")
    problem = ApiError(code, description or HTTPStatus(status).phrase)
    problem.status = status
    return problem


def invalid_value(wrong: Sequence[FieldError]) -> ApiError:
    """The 422 for a body that is JSON and does not fit; names the first field, lists all."""
    first = wrong[0]
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return ApiError("invalid_value", first.message + more, param=first.param or None, wrong=wrong)


def field_errors(error: ValidationError) -> list[FieldError]:
    """What pydantic found, as field names and sentences that quote the value, at most 20."""
    found = []
    for item in error.errors(include_url=False, include_context=False)[:20]:
        param = field_name(item["loc"])
        if item["type"] == "extra_forbidden":
            found.append(FieldError(param, f"unknown field {param!r}"))
        elif item["type"] == "missing":
            found.append(FieldError(param, f"field {param!r} is required"))
        elif item["type"] == "value_error":
            # Our own validators name the field and the value themselves.
            found.append(FieldError(param, item["msg"].removeprefix("Value error, ")))
        elif item["type"] in {"model_type", "dict_type"}:
            found.append(FieldError(param, f"{param or 'the body'}={quoted(item['input'])} should be a JSON object"))
        else:
            wanted = item["msg"].removeprefix("Input ")
            found.append(FieldError(param, f"{param}={quoted(item['input'])}: {wanted[0].lower()}{wanted[1:]}"))
    return found


def field_name(loc: Sequence[int | str]) -> str:
    """A place in a body as people write it: `messages[0].content`."""
    name = ""
    for part in loc:
        if isinstance(part, int):
            name += f"[{part}]"
        else:
            name += f".{part}" if name else part
    return name


def quoted(value: object) -> str:
    """The value as it may stand in a sentence: at most 60 characters of its repr."""
    text = repr(value) if not isinstance(value, str | list | dict) or len(value) < 200 else f"{str(value)[:200]!r}"
    return text if len(text) <= 60 else text[:57] + "…"

"""API errors and their JSON error objects; only this file maps error codes to HTTP statuses.

Every response that is neither a success (2xx), a redirect (3xx) nor a refusal has the body
`{"error": {"message": …, "type": …, "param": …, "code": …}}`, which is also the format of OpenAI's errors.
To add a code, add a row to CODES and a line to docs/http.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError

#: The HTTP status and the type of each error code. A code has the same status on every route, with two exceptions: the
#: codes in OPENAI_STATUS; and the routes under /v1/jobs return a job that did not succeed with status 200, and the code
#: is in the job's field `error`.
CODES: dict[str, tuple[int, str]] = {
    "invalid_json": (400, "invalid_request_error"),
    "invalid_request": (400, "invalid_request_error"),
    "context_length_exceeded": (400, "invalid_request_error"),
    "unsupported_parameter": (400, "invalid_request_error"),
    "document_unreadable": (400, "invalid_request_error"),
    "upstream_rejected": (400, "invalid_request_error"),
    "model_required": (400, "invalid_request_error"),
    "previous_response_not_found": (400, "invalid_request_error"),
    "invalid_api_key": (401, "authentication_error"),
    "invalid_ticket": (401, "authentication_error"),
    "admin_key_required": (401, "authentication_error"),
    "invalid_token": (401, "authentication_error"),
    "operator_required": (403, "permission_error"),
    "tenant_disabled": (403, "permission_error"),
    "tenant_not_allowed": (403, "permission_error"),
    "origin_not_allowed": (403, "permission_error"),
    "page_expired": (403, "permission_error"),
    "collection_not_found": (404, "not_found_error"),
    "collections_off": (404, "not_found_error"),
    "document_not_found": (404, "not_found_error"),
    "vector_store_not_found": (404, "not_found_error"),
    "thread_not_found": (404, "not_found_error"),
    "batch_not_found": (404, "not_found_error"),
    "file_not_found": (404, "not_found_error"),
    "job_not_found": (404, "not_found_error"),
    "embeddings_unsupported": (404, "not_found_error"),
    "model_not_found": (404, "not_found_error"),
    "route_not_found": (404, "not_found_error"),
    "method_not_allowed": (405, "invalid_request_error"),
    "request_timeout": (408, "invalid_request_error"),
    "cannot_run_again": (409, "invalid_request_error"),
    "collection_exists": (409, "invalid_request_error"),
    "embedding_mismatch": (409, "invalid_request_error"),
    "file_in_use": (409, "invalid_request_error"),
    "job_canceled": (409, "job_error"),
    "request_too_large": (413, "invalid_request_error"),
    "unsupported_media_type": (415, "invalid_request_error"),
    "unknown_host": (421, "invalid_request_error"),
    "invalid_value": (422, "invalid_request_error"),
    "idempotency_mismatch": (422, "invalid_request_error"),
    "too_many_failed_keys": (429, "rate_limit_exceeded"),
    "batches_full": (429, "rate_limit_error"),
    "collections_full": (429, "rate_limit_error"),
    "loads_full": (429, "rate_limit_error"),
    "webhooks_full": (429, "rate_limit_error"),
    "file_bytes_full": (429, "rate_limit_error"),
    "address_full": (429, "rate_limit_error"),
    "tenant_requests_full": (429, "rate_limit_error"),
    "tenant_bodies_full": (429, "rate_limit_error"),
    "internal_error": (500, "server_error"),
    "job_failed": (500, "job_error"),
    "upstream_lost": (500, "job_error"),
    "connections_full": (503, "server_overloaded"),
    "database_unavailable": (503, "server_overloaded"),
    "draining": (503, "server_overloaded"),
    "issuer_unavailable": (503, "server_overloaded"),
    "files_full": (503, "server_overloaded"),
    "files_unavailable": (503, "server_overloaded"),
    "retrieval_unavailable": (503, "server_overloaded"),
    "heads_full": (503, "server_overloaded"),
    "bodies_full": (503, "server_overloaded"),
    "console_full": (503, "server_overloaded"),
    "retrieval_timeout": (504, "server_overloaded"),
    "deadline_exceeded": (504, "job_error"),
}

#: The status of a code on the routes that follow OpenAI's API, if it differs there: OpenAI answers an invalid request
#: with 400, and some clients look for this status.
OPENAI_STATUS = {"invalid_value": 400}

#: The error code for each HTTP status with which werkzeug itself rejects a request.
_BY_STATUS = {
    400: "invalid_request",
    404: "route_not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    415: "unsupported_media_type",
    500: "internal_error",
}


#: The ends of paths that clients with a base URL without /v1 request.
_API_ENDINGS = ("/chat/completions", "/completions", "/embeddings", "/responses", "/models")

#: The longest value that a message quotes, and the longest message and name of a field in an error, in characters. A
#: client chooses the names of its unknown fields, so without these limits an error could be as long as the request.
_MAX_QUOTED, _MAX_MESSAGE, _MAX_PARAM = 60, 2_000, 200


@dataclass(frozen=True)
class FieldError:
    """One invalid field of a request: its name, such as `messages[0].content`, and a message that quotes its value."""

    param: str
    message: str


class ApiError(Exception):
    """An error that the client receives as a JSON error object, with the HTTP status that belongs to its code."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: dict[str, str] | None = None,
        invalid_fields: Sequence[FieldError] = (),
        limits: dict[str, Any] | None = None,
        details: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.message = code, _shortened(message, _MAX_MESSAGE)
        self.param = None if param is None else _shortened(param, _MAX_PARAM)
        self.headers, self.invalid_fields = headers or {}, tuple(invalid_fields)
        #: The bound that was reached, as in refusals: its name, the present count, and the largest allowed one.
        self.limits = limits
        #: The fields that an API's packages read beside the message, in the API's own words.
        self.details = details
        self.status, self.type = CODES[code]


@dataclass(frozen=True)
class ErrorResponse:
    """The HTTP status, body and headers of an ApiError."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)


def error_response(error: ApiError) -> ErrorResponse:
    """Return the response for an ApiError. Its headers ask clients not to retry, because a retry would fail too."""
    error_object: dict[str, Any] = {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }
    if len(error.invalid_fields) > 1:
        error_object["errors"] = [
            {"param": _shortened(one.param, _MAX_PARAM), "message": _shortened(one.message, _MAX_PARAM)}
            for one in error.invalid_fields
        ]
    if error.details:
        error_object["details"] = error.details
    body = {"error": error_object} | ({"limits": error.limits} if error.limits else {})
    # Without x-should-retry, OpenAI's client packages would retry on 409, 429 and 5xx.
    return ErrorResponse(error.status, body, {"x-should-retry": "false"} | error.headers)


def error_from_status(status: int, description: str | None) -> ApiError:
    """Return the ApiError for an HTTP status that the web framework has chosen."""
    code = _BY_STATUS.get(status, "invalid_request" if status < 500 else "internal_error")
    error = ApiError(code, description or HTTPStatus(status).phrase)
    error.status = status
    return error


def unknown_path(path: str) -> ApiError:
    """Return the error for a path that no route has. It says where the routes are, as base URLs are often wrong."""
    message = f"no route has the path {quoted(path)}; the API's paths begin with /v1/, and /docs lists them"
    if path.startswith("/v1/v1/"):
        message += " (the address in the client ends with /v1 once too often)"
    elif not path.startswith("/v1/") and path.endswith(_API_ENDINGS):
        message += " (the base URL of OpenAI's clients ends with /v1)"
    return ApiError("route_not_found", message)


def invalid_value(invalid_fields: Sequence[FieldError]) -> ApiError:
    """Return the error for invalid fields. Its message is about the first one; several are listed in `errors`."""
    first = invalid_fields[0]
    more = f" (and {len(invalid_fields) - 1} more)" if len(invalid_fields) > 1 else ""
    return ApiError("invalid_value", first.message + more, param=first.param or None, invalid_fields=invalid_fields)


def invalid_field(param: str, message: str) -> ApiError:
    """Return the error for one invalid field."""
    return invalid_value([FieldError(param, message)])


def invalid(param: str, value: object, expected: str) -> ApiError:
    """Return the error for a field whose value is not what was expected."""
    return invalid_field(param, f"{param}={quoted(value)} is not {expected}")


def field_errors(error: ValidationError) -> list[FieldError]:
    """Convert the first 20 of pydantic's errors to FieldErrors, whose messages quote the invalid values."""
    found = []
    for item in error.errors(include_url=False, include_context=False)[:20]:
        param = field_name(item["loc"])
        if item["type"] == "extra_forbidden":
            found.append(FieldError(param, f"unknown field {param!r}"))
        elif item["type"] == "missing":
            found.append(FieldError(param, f"field {param!r} is required"))
        elif item["type"] == "value_error":
            # The messages of Penstock's own validators already name the field and quote the value.
            found.append(FieldError(param, item["msg"].removeprefix("Value error, ")))
        elif item["type"] in {"model_type", "dict_type"}:
            found.append(FieldError(param, f"{param or 'the body'}={quoted(item['input'])} should be a JSON object"))
        else:
            rule = item["msg"].removeprefix("Input ")
            found.append(FieldError(param, f"{param}={quoted(item['input'])}: {rule[0].lower()}{rule[1:]}"))
    return found


def field_name(loc: Sequence[int | str]) -> str:
    """Convert the path of a field in a body to a name such as `messages[0].content`."""
    name = ""
    for part in loc:
        if isinstance(part, int):
            name += f"[{part}]"
        else:
            name += f".{part}" if name else part
    return name


def quoted(value: object) -> str:
    """Return the repr of a value, shortened to 60 characters, for use in an error message."""
    text = ""
    # Stop as soon as the text is long enough: the repr of a whole list of a large body would take tens of ms.
    for part in _repr_parts(value):
        text += part
        if len(text) > _MAX_QUOTED:
            return text[: _MAX_QUOTED - 3] + "…"
    return text


def _repr_parts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield repr(value[: _MAX_QUOTED + 1])
    elif isinstance(value, list):
        yield "["
        for i, item in enumerate(value):
            yield ", " if i else ""
            yield from _repr_parts(item)
        yield "]"
    elif isinstance(value, dict):
        yield "{"
        for i, (name, item) in enumerate(value.items()):
            yield f"{', ' if i else ''}{quoted(name)}: "
            yield from _repr_parts(item)
        yield "}"
    else:
        yield repr(value)


def _shortened(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"


#: The paths of other servers' rankings, which their clients use beside /v1/rerank.
_RANKINGS = frozenset({"/rerank", "/v2/rerank"})


def is_api_path(path: str) -> bool:
    """Return whether a path belongs to the API."""
    return path.startswith("/v1/") or path in _RANKINGS

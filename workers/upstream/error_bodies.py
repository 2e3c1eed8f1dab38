"""Finds the message in the body of an error, whichever server wrote it; pure functions."""

import html
import json
import re
from dataclasses import dataclass
from typing import Any

#: Names of fields that have a message, or the object with it, in the order in which they are tried. Names are compared
#: without regard to case.
_MESSAGES = (
    "message", "msg", "error_message", "errormessage", "error_description", "faultstring", "error", "errors", "detail",
    "details", "description", "reason", "fault", "title", "body", "response",
)  # fmt: skip
#: How deep a message may lie, how many items of a list are repeated, and how long a body without a message is repeated.
_MAX_DEPTH, _MAX_ITEMS, _MAX_BODY = 6, 4, 1_000
#: A server's name of an error → the HTTP status that it stands for, for errors without a status.
_STATUS_OF = {
    "authentication_error": 401,
    "badrequesterror": 400,
    "invalid_argument": 400,
    "invalid_request_error": 400,
    "not_found_error": 404,
    "overloaded_error": 503,
    "permission_denied": 403,
    "permission_error": 403,
    "rate_limit_error": 429,
    "ratelimiterror": 429,
    "request_too_large": 413,
    "resource_exhausted": 429,
    "unavailable": 503,
}
_STATUS_NAMES = ("code", "status_code", "http_code", "status")
_TAGS = re.compile(r"<[^>]*>")
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class ErrorBody:
    """An error body. A field is empty if the body does not have it."""

    message: str = ""
    #: The field of the request that is wrong.
    param: str = ""
    #: The HTTP status that the body names.
    status: int = 0
    #: The server's names of the error: its code and its type, as far as they are texts.
    names: tuple[str, ...] = ()


def read_error(body: bytes) -> ErrorBody:
    text = body.decode("utf-8", "replace").strip()
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return ErrorBody(_plain(text))
    return error_of(value)


def error_of(value: Any) -> ErrorBody:
    value = _failed_choice(value) or value
    return ErrorBody(_message(value, 0) or _whole(value), _param(value, 0), _status(value, 0), _names(value, 0))


def is_error(value: Any) -> bool:
    """Return whether JSON that arrived with the status 200 is an error, and no part of an answer."""
    if isinstance(value, list):
        return any(is_error(item) for item in value[:_MAX_ITEMS])
    if not isinstance(value, dict):
        return False
    if value.get("error") or "error" in (value.get("object"), value.get("type")):
        return True
    choices = value.get("choices")
    if choices:
        return _failed_choice(value) is not None
    if choices is not None or not value.keys() & {"detail", "errors", "fault", "message", "msg"}:
        return False
    return (
        bool(_message(value, 0)) and not isinstance(value.get("message"), dict | list) and not _is_sign_of_life(value)
    )


def _failed_choice(value: Any) -> dict[str, Any] | None:
    """Return the first choice of an answer that has an error; None without one."""
    choices = value.get("choices") if isinstance(value, dict) else None
    if not isinstance(choices, list):
        return None
    return next((one for one in choices if isinstance(one, dict) and one.get("error")), None)


def _is_sign_of_life(value: dict[str, Any]) -> bool:
    """Return whether an object with a message is no error: it names a type or an object of its own."""
    return isinstance(value.get("type", value.get("object")), str) and not _status(value, 0)


def _message(value: Any, depth: int) -> str:
    if depth > _MAX_DEPTH:
        return ""
    if isinstance(value, str):
        return _inside(value.strip(), depth)
    if isinstance(value, list):
        messages = [_message(item, depth + 1) for item in value[:_MAX_ITEMS]]
        return "; ".join(message for message in messages if message)
    if not isinstance(value, dict):
        return ""
    fields = {str(name).lower(): given for name, given in value.items()}
    message = next((found for name in _MESSAGES if (found := _message(fields.get(name), depth + 1))), "")
    where = _location(fields.get("loc"))
    return f"{where}: {message}" if message and where else message


def _inside(text: str, depth: int) -> str:
    """Return the message in a text that is the JSON of another error, as proxies pass them on; else the text."""
    if text[:1] not in {"{", "["}:
        return text
    try:
        return _message(json.loads(text), depth + 1) or text
    except (ValueError, RecursionError):
        return text


def _location(value: Any) -> str:
    """Return the field that FastAPI names as the path to it."""
    if not isinstance(value, list):
        return ""
    return ".".join(str(step) for step in value[:_MAX_DEPTH] if step != "body")


def _param(value: Any, depth: int) -> str:
    if isinstance(value, list) and value and depth <= _MAX_DEPTH:
        return _param(value[0], depth + 1)
    if not isinstance(value, dict) or depth > _MAX_DEPTH:
        return ""
    if isinstance(value.get("param"), str):
        return str(value["param"])
    inner = next((found for name in ("error", "detail", "errors") if (found := _param(value.get(name), depth + 1))), "")
    return _location(value.get("loc")) or inner


def _status(value: Any, depth: int) -> int:
    if isinstance(value, list) and value and depth <= _MAX_DEPTH:
        return _status(value[0], depth + 1)
    if not isinstance(value, dict) or depth > _MAX_DEPTH:
        return 0
    for name in _STATUS_NAMES:
        given = value.get(name)
        number = (
            int(given) if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) == 3 else given
        )
        if type(number) is int and 400 <= number < 600:
            return number
    inner = _status(value.get("error"), depth + 1)
    words = (value.get(name) for name in ("type", "status", "code"))
    return inner or next(
        (_STATUS_OF[word.lower()] for word in words if isinstance(word, str) and word.lower() in _STATUS_OF), 0
    )


def _names(value: Any, depth: int) -> tuple[str, ...]:
    if isinstance(value, list) and value and depth <= _MAX_DEPTH:
        return _names(value[0], depth + 1)
    if not isinstance(value, dict) or depth > _MAX_DEPTH:
        return ()
    own = tuple(name for name in (value.get("code"), value.get("type")) if isinstance(name, str))
    return sum((_names(value.get(name), depth + 1) for name in ("error", "detail", "errors")), own)


def _plain(text: str) -> str:
    """Return the message of a body that is not JSON: the title of a page, or the text."""
    if not text.startswith("<"):
        return text
    title = _TITLE.search(text)
    return html.unescape(" ".join(_TAGS.sub(" ", title[1] if title else text).split()))


def _whole(value: Any) -> str:
    """Return a body without a message whole, because something in it says what is wrong; "" if it is empty."""
    try:
        return json.dumps(value, ensure_ascii=False)[:_MAX_BODY] if value else ""
    except RecursionError:
        return ""

r"""Finds half of a surrogate pair (`"\ud800"`) in a JSON text that was refused, so that the answer can name it; pure.

JSON's grammar allows it and no UTF-8 can carry it: the doors' parser stops there, and says only at which column.
"""

import json
import re
from typing import Any

from web.http.api_errors import FieldError, field_name, quoted

_ESCAPED = re.compile(rb"\\u[dD][89a-fA-F]")


def refused_for(data: bytes) -> tuple[Any, FieldError] | None:
    """The value of a refused JSON text, and its first text that holds half a pair; None when that was not why."""
    if not _ESCAPED.search(data):
        return None
    try:
        value = json.loads(data)
        wrong = _first(value, ())
    except (ValueError, RecursionError):
        return None
    return None if wrong is None else (value, wrong)


def whole(text: str) -> bool:
    """Whether UTF-8 can carry this text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _first(value: Any, loc: tuple[int | str, ...]) -> FieldError | None:
    if isinstance(value, str):
        return None if whole(value) else _wrong(loc, value)
    if not isinstance(value, dict | list):
        return None
    for name, part in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(name, str) and not whole(name):
            return _wrong(loc, name)
        if (found := _first(part, (*loc, name))) is not None:
            return found
    return None


def _wrong(loc: tuple[int | str, ...], text: str) -> FieldError:
    param = field_name(loc)
    said = "half of a surrogate pair, which is no character"
    return FieldError(param, f"{param or 'the body'} holds {quoted(text)}: {said}")

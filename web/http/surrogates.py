r"""Find the field with half of a surrogate pair (`"\ud800"`) in JSON that failed to parse; pure functions.

JSON's grammar allows an escape for half of a pair, but UTF-8 cannot encode it. The strict parser stops at the escape
and reports only its column; the error for the client also names the field.
"""

import json
import re
from typing import Any

from web.http.api_errors import FieldError, field_name, quoted
from web.http.json_budget import weigh

#: The search runs in Python and takes up to 10 ms for a text of this weight; a backslash weighs 4.
_MAX_SEARCHED_WEIGHT = 120_000
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def find_lone_surrogate(data: bytes) -> tuple[Any, FieldError] | None:
    """Parse JSON that the strict parser rejected; return its value and the error for the first half of a pair.

    Returns None if the JSON was rejected for another reason, or if it is so large that the search would take too long.
    """
    if 4 * data.count(b"\\") > _MAX_SEARCHED_WEIGHT or not _SURROGATE_ESCAPE.search(data):
        return None
    if weigh(data) > _MAX_SEARCHED_WEIGHT:
        return None
    try:
        value = json.loads(data)
        error = _find_first(value, ())
    except (ValueError, RecursionError):
        return None
    return None if error is None else (value, error)


def is_utf8_encodable(text: str) -> bool:
    """Return whether a text can be encoded in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _find_first(value: Any, loc: tuple[int | str, ...]) -> FieldError | None:
    if isinstance(value, str):
        return None if is_utf8_encodable(value) else _field_error(loc, value)
    if not isinstance(value, dict | list):
        return None
    for name, part in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(name, str) and not is_utf8_encodable(name):
            return _field_error(loc, name)
        if (found := _find_first(part, (*loc, name))) is not None:
            return found
    return None


def _field_error(loc: tuple[int | str, ...], text: str) -> FieldError:
    param = field_name(loc)
    reason = "half of a surrogate pair is not a character"
    return FieldError(param, f"{param or 'the body'} contains {quoted(text)}: {reason}")

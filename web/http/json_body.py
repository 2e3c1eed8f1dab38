"""Parse the JSON of a request body strictly, within a budget of time; pure functions."""

import json
import re
from typing import Any

from pydantic_core import from_json

from web.http.api_errors import ApiError, FieldError, field_name, invalid_value, quoted


def parse_json(data: bytes) -> Any:
    """Return the JSON value of a body.

    Raises ApiError with code invalid_json if the body is not valid JSON, for example because of invalid UTF-8, NaN or
    excessive nesting, or if parsing its values would take too long (web/http/json_body.py). If a string contains half
    of a surrogate pair, the code is invalid_value, and the error names the field.
    """
    if not data.strip():
        raise ApiError("invalid_json", "the body is empty; a JSON object is expected")
    check_budget(data)
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError as error:
        found = find_lone_surrogate(data)
        if found is not None:
            raise invalid_value([found[1]]) from None
        raise ApiError("invalid_json", f"the body is not JSON: {error}") from None


#: A body of 1 MiB can contain half a million lists, whose parsing takes .3 s of the door's loop. The weight of a text
#: is about its parsing time in units of 25 ns, measured with pydantic-core's parser: 50 ns for a number, 400 ns for a
#: list or an object (half of it for Python's garbage collection), and 300 ns for a text that differs from the others
#: (bench/bad_bodies.py). Counting bytes takes a few ms at most.
_VALUE_WEIGHT, _CONTAINER_WEIGHT, _TEXT_WEIGHT = 2, 16, 12
#: The largest weight of a body: 12 ms. It allows 7,000 messages of two fields, or 230,000 token ids to embed.
MAX_WEIGHT = 500_000
#: No number of the API has more digits. The parser's time grows with the square of the digits: 20 ms for 250 numbers of
#: 4,000 digits.
MAX_DIGITS = 200
_ONE_DIGIT = bytes.maketrans(b"123456789", b"0" * 9)
_TOO_MANY_DIGITS = b"0" * (MAX_DIGITS + 1)


def check_budget(data: bytes) -> None:
    """Raise ApiError (invalid_json) if the text exceeds the budget.

    The text need not be valid JSON. If it is not, at least the part before the first error, which is the part that the
    parser reads, is counted in full.
    """
    # Commas, brackets and digits within texts are counted too at first. If that is too much, the texts are removed.
    if _weigh(data) <= MAX_WEIGHT and not _has_long_number(data):
        return
    bare, texts = _without_texts(data)
    if _has_long_number(bare):
        raise _refused(f"the body contains a number of more than {MAX_DIGITS} digits")
    if _weigh(bare) + _TEXT_WEIGHT * texts > MAX_WEIGHT:
        raise _refused(
            f"the body has too many values: at most about {MAX_WEIGHT // _VALUE_WEIGHT} numbers, "
            f"{MAX_WEIGHT // _CONTAINER_WEIGHT} lists and objects, or {MAX_WEIGHT // _TEXT_WEIGHT} texts and names"
        )


def weigh(data: bytes) -> int:
    """Return the weight of a JSON text."""
    bare, texts = _without_texts(data)
    return _weigh(bare) + _TEXT_WEIGHT * texts


def _weigh(data: bytes) -> int:
    texts, containers = (data.count(b'"') + 1) // 2, data.count(b"[") + data.count(b"{")
    return _VALUE_WEIGHT * data.count(b",") + _CONTAINER_WEIGHT * containers + _TEXT_WEIGHT * texts


def _without_texts(data: bytes) -> tuple[bytes, int]:
    """Return the text without the contents of its strings, and the number of strings."""
    # After the escaped backslashes, each `\"` is a quote within a string.
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data
    texts = (bare.count(b'"') + 1) // 2
    if _TEXT_WEIGHT * texts > MAX_WEIGHT:
        return b"", texts
    return b" ".join(bare.split(b'"')[::2]), texts


def _has_long_number(data: bytes) -> bool:
    """Return whether the data contain more than MAX_DIGITS digits in a row.

    All digits become zeros, and then one search finds a long run of them: at most 4 ms for 1 MiB. A regular expression
    takes up to four times as long if the text consists of numbers that are just short enough.
    """
    return _TOO_MANY_DIGITS in data.translate(_ONE_DIGIT)


def _refused(message: str) -> ApiError:
    return ApiError("invalid_json", message)


#: The search runs in Python and takes up to 10 ms for a text of this weight; a backslash weighs 4.
_MAX_SEARCHED_WEIGHT = 120_000
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def find_lone_surrogate(data: bytes) -> tuple[Any, FieldError] | None:
    """Parse JSON that the strict parser rejected; return its value and the error for the first half of a pair.

    JSON's grammar allows an escape for half of a pair, but UTF-8 cannot encode it. The strict parser reports only the
    column; this error also names the field.
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

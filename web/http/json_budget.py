"""Estimate from its bytes the cost of parsing and checking a JSON text; reject a text that would cost too much.

A body of 1 MiB can contain half a million lists, whose parsing takes .3 s of the door's loop, and all other requests
wait for it. Counting bytes takes a few ms at most. The weight of a text is about its parsing time in units of 25 ns,
measured with pydantic-core's parser, which the door uses: 50 ns for a number, 400 ns for a list or an object (half of
it for Python's garbage collection), and 300 ns for a text or a name that differs from the others (bench/bad_bodies.py).
"""

from web.http.api_errors import ApiError

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

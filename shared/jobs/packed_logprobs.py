"""Packs the logprobs of an answer for the store, in about a third of the space of their JSON; pure functions.

The engine's form is `[token, logprob, [[token, logprob], …]]` for each token (web/api/candidates.py); a token is its
text or the list of its bytes. 1,500 tokens with 20 alternatives each take 650 kB as JSON. The packed form lists each
distinct token once. It stores the logprobs as whole millionths, because the engine rounds them to six digits, and
compresses the numbers: first the lowest bytes of all numbers, then the second lowest, and so on, since the high bytes
are nearly equal.
"""

import base64
import json
import sys
import zlib
from array import array
from typing import Any

#: The version of the packed form. A reader knows all earlier versions; version 0 is the engine's own form, a list.
VERSION = 1
#: A logprob below this, such as that of an impossible token, does not fit into 32 bits as millionths. Such answers are
#: stored in the engine's form.
_LEAST_LOGPROB = -2147.0
#: zlib's level: higher levels take twice the time and save one percent.
_LEVEL = 6


def pack(logprobs: list[list[Any]]) -> Any:
    """Return the packed form of the logprobs, or the logprobs themselves if it could not represent them exactly."""
    pairs = [pair for token, number, top in logprobs for pair in ((token, number), *top)]
    if any(not _LEAST_LOGPROB < number <= 0 for _, number in pairs):
        return logprobs
    places: dict[str | tuple[int, ...], int] = {}
    indices = array("I", (places.setdefault(_hashable(token), len(places)) for token, _ in pairs))
    millionths = array("I", (round(-1e6 * number) for _, number in pairs))
    counts = array("I", (len(top) for _, _, top in logprobs))
    return {
        "version": VERSION,
        "tokens": _compress(json.dumps(list(places), ensure_ascii=False, separators=(",", ":")).encode()),
        "tops": _encode(counts),
        "indices": _encode(indices),
        "millionths": _encode(millionths),
    }


def unpack(stored: Any) -> list[list[Any]] | None:
    if stored is None or isinstance(stored, list):
        return stored
    if not isinstance(stored, dict) or stored.get("version") != VERSION:
        return None
    tokens = json.loads(_decompress(stored["tokens"]))
    # Dividing by a million gives the same float as rounding to six digits: both are the float nearest to the decimal.
    pairs = zip(_decode(stored["indices"]), _decode(stored["millionths"]), strict=True)
    flat = ([tokens[index], -count / 1_000_000 if count else 0.0] for index, count in pairs)
    entries = []
    for top in _decode(stored["tops"]):
        token, number = next(flat)
        entries.append([token, number, [next(flat) for _ in range(top)]])
    return entries


def _hashable(token: str | list[int]) -> str | tuple[int, ...]:
    return token if isinstance(token, str) else tuple(token)


def _compress(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, _LEVEL)).decode()


def _decompress(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def _encode(numbers: "array[int]") -> str:
    if sys.byteorder == "big":
        numbers.byteswap()
    raw = numbers.tobytes()
    return _compress(b"".join(raw[i::4] for i in range(4)))


def _decode(text: str) -> "array[int]":
    planes = _decompress(text)
    count = len(planes) // 4
    raw = bytearray(len(planes))
    for i in range(4):
        raw[i::4] = planes[i * count : (i + 1) * count]
    numbers = array("I", bytes(raw))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers

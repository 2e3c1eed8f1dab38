"""Prompt tokens as the door estimates them; what they cost is the store's to say (shared/lua/lib/verdict.lua).

The worker counts before a slot is taken and the ledger is settled with true counts, so an estimate
only has to be fair on average. Where it decides something for good (too long for any context), the
least count that any tokenizer could come to is used instead.
"""

from collections.abc import Iterable, Mapping
from typing import Any

#: Until workers publish what they learned: English prose in common vocabularies has 3 to 4 bytes a token.
TOKENS_PER_BYTE = 0.3
#: What a chat template adds around each message: role, two or three marks, a line end.
TOKENS_PER_MESSAGE = 4
#: No vocabulary in use has a longer token (runs of blanks in code vocabularies come to 128 bytes).
MOST_BYTES_PER_TOKEN = 256


def texts(payload: Mapping[str, Any]) -> list[str]:
    """The prompt, each message's content, or the texts to embed, of a request as the door hands it on."""
    if "input" in payload:
        return [given for given in payload["input"] if isinstance(given, str)]
    if "messages" in payload:
        return [str(message.get("content") or "") for message in payload["messages"]]
    return [str(payload.get("prompt", ""))]


def estimate(payload: Mapping[str, Any], *, words: bool = False, tokens_per_byte: float = TOKENS_PER_BYTE) -> int:
    """Prompt tokens as the door estimates them, at least 1. `words`: the sim engine's count, which is exact."""
    parts = texts(payload)
    if words:
        return max(1, _words(parts))
    marks = TOKENS_PER_MESSAGE * len(parts) if "messages" in payload else 0
    ids = sum(len(given) for given in payload.get("input", ()) if not isinstance(given, str))
    return max(1, round(_bytes(parts) * tokens_per_byte) + marks + ids)


def least(payload: Mapping[str, Any], *, words: bool = False) -> int:
    """The fewest prompt tokens that the request could come to by any count, at least 1.

    Of texts to embed, each must fit by itself: that of the longest.
    """
    if "input" in payload:
        return max(least({"prompt": given}) if isinstance(given, str) else len(given) for given in payload["input"])
    parts = texts(payload)
    return max(1, _words(parts) if words else -(-_bytes(parts) // MOST_BYTES_PER_TOKEN))


def _bytes(parts: Iterable[str]) -> int:
    return sum(len(part.encode()) for part in parts)


def _words(parts: Iterable[str]) -> int:
    return sum(len(part.split()) for part in parts)

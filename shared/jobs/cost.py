"""Estimates the number of prompt tokens of a request; the door needs estimates because it has no tokenizer.

The store computes a job's cost from the estimate (shared/lua/lib/verdict.lua). The worker counts the tokens exactly
before the job takes a slot, and when the worker settles the job, the store charges the tenant for the exact counts. An
estimate therefore only has to be right on average. The door does not use the estimate to decide whether a request is
too long for the context; it uses `lower_bound`, the smallest count that any tokenizer could return.
"""

from collections.abc import Iterable, Mapping
from typing import Any

#: The tokens per byte that are assumed until workers report a measured figure. In common vocabularies, English prose
#: has 3 to 4 bytes per token.
TOKENS_PER_BYTE = 0.3
#: The number of tokens that a chat template adds to each message: the role, two or three markers and a line end.
TOKENS_PER_MESSAGE = 4
#: No token of any vocabulary in use has more bytes than this. The longest known tokens, runs of spaces in vocabularies
#: for code, have 128 bytes.
MAX_BYTES_PER_TOKEN = 256


def request_texts(payload: Mapping[str, Any]) -> list[str]:
    """Return the texts of a validated request: its prompt, the content of each message, or the texts to embed."""
    if "input" in payload:
        return [item for item in payload["input"] if isinstance(item, str)]
    if "messages" in payload:
        return [str(message.get("content") or "") for message in payload["messages"]]
    return [str(payload.get("prompt", ""))]


def estimate(payload: Mapping[str, Any], *, words: bool = False, tokens_per_byte: float = TOKENS_PER_BYTE) -> int:
    """Return the estimated number of prompt tokens of a request, at least 1.

    If `words` is true, return the number of words instead. The sim engine counts each word as one token.
    """
    parts = request_texts(payload)
    if words:
        return max(1, _count_words(parts))
    template_tokens = TOKENS_PER_MESSAGE * len(parts) if "messages" in payload else 0
    given_tokens = sum(len(item) for item in payload.get("input", ()) if not isinstance(item, str))
    return max(1, round(_count_bytes(parts) * tokens_per_byte) + template_tokens + given_tokens)


def lower_bound(payload: Mapping[str, Any], *, words: bool = False) -> int:
    """Return the smallest number of prompt tokens that any tokenizer could count for the request, at least 1.

    A request for embeddings can have several inputs, and each of them must fit the context by itself. The result is
    then the lower bound for the longest input.
    """
    if "input" in payload:
        return max(lower_bound({"prompt": item}) if isinstance(item, str) else len(item) for item in payload["input"])
    parts = request_texts(payload)
    return max(1, _count_words(parts) if words else -(-_count_bytes(parts) // MAX_BYTES_PER_TOKEN))


def _count_bytes(parts: Iterable[str]) -> int:
    return sum(len(part.encode()) for part in parts)


def _count_words(parts: Iterable[str]) -> int:
    return sum(len(part.split()) for part in parts)

"""Estimates the number of prompt tokens of a request; the door needs estimates because it has no tokenizer.

The store computes a job's cost from the estimate (shared/lua/lib/verdict.lua). The worker counts the tokens exactly
before the job takes a slot, and when the worker settles the job, the store charges the tenant for the exact counts. An
estimate therefore only has to be right on average. The door does not use the estimate to decide whether a request is
too long for the context; it uses `lower_bound`, the smallest count that any tokenizer could return.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shared.settings.setting import AUTO

#: The tokens per byte that are assumed until workers report a measured figure. In common vocabularies, English prose
#: has 3 to 4 bytes per token.
TOKENS_PER_BYTE = 0.3
#: What a generated token costs, in prompt tokens, while PENSTOCK_GENERATED_WEIGHT is `auto` and no worker of the pool
#: has reported a fit. shared/lua/lib/generated_weight.lua has the same number.
USUAL_GENERATED_WEIGHT = 4
#: The number of tokens that a chat template adds to each message: the role, two or three markers and a line end.
TOKENS_PER_MESSAGE = 4
#: The number of tokens of an image, a sound or a file in a message, until workers report a measured figure. Vision
#: models make 250 to 1,600 tokens of a picture, whatever the number of its bytes.
TOKENS_PER_ATTACHMENT = 800
#: No token of any vocabulary in use has more bytes than this. The longest known tokens, runs of spaces in vocabularies
#: for code, have 128 bytes.
MAX_BYTES_PER_TOKEN = 256


def reported_weight(generated_weight: int) -> int:
    """Return the weight of a generated token in the weighted tokens that workers report, which is a fixed number.

    `generated_weight` is the setting. If it is AUTO, the store converts the reports to the weight of the pool.
    """
    return USUAL_GENERATED_WEIGHT if generated_weight == AUTO else generated_weight


def request_texts(payload: Mapping[str, Any], *, with_reasoning: bool = True) -> list[str]:
    """Return the texts of a validated request: its prompts, the text of each message, or the texts to embed.

    Earlier reasoning is part of a message's text if it follows the user's last message: most templates show no other,
    and some show none, for which `with_reasoning` is false.

    A request to rank documents has its query once for each document, because the model reads it with each of them.
    Tools and calls of tools are part of the prompt as JSON. A request that is forwarded to an upstream may also have
    messages with parts.
    """
    if "input" in payload:
        queries = [payload["query"]] * len(payload["input"]) if "query" in payload else []
        return queries + [item for item in payload["input"] if isinstance(item, str)]
    if "messages" in payload:
        texts = [_message_text(message) for message in payload["messages"]]
        if with_reasoning:
            texts = list(map(str.__add__, texts, _reasoning_texts(payload["messages"])))
        tools = payload.get("tools") or (payload.get("forward") or {}).get("tools")
        return [*texts, _compact(tools)] if tools else texts
    if "prompts" in payload:
        return [prompt for prompt in payload["prompts"] if isinstance(prompt, str)]
    return [str(payload.get("prompt", ""))]


def token_ids(payload: Mapping[str, Any]) -> int:
    """Return how many tokens of the prompts or of the inputs are given as ids."""
    given = payload.get("input", payload.get("prompts", ()))
    return sum(len(item) for item in given if not isinstance(item, str))


def attachments(payload: Mapping[str, Any]) -> int:
    """Return the number of images, sounds and files in the messages: of all parts that are not texts."""
    contents = [message.get("content") for message in payload.get("messages", ())]
    return sum(not _is_text(part) for content in contents if isinstance(content, list) for part in content)


def estimate(
    payload: Mapping[str, Any],
    *,
    words: bool = False,
    tokens_per_byte: float = TOKENS_PER_BYTE,
    tokens_per_attachment: float = TOKENS_PER_ATTACHMENT,
) -> int:
    """Return the estimated number of prompt tokens of a request, at least 1.

    If `words` is true, return the number of words instead. The sim engine counts each word as one token.
    """
    parts, given_tokens = request_texts(payload, with_reasoning=not words), token_ids(payload)
    if words:
        return max(1, _count_words(parts) + given_tokens)
    template_tokens = TOKENS_PER_MESSAGE * len(parts) if "messages" in payload else 0
    if "forward" in payload:
        given_tokens += round(attachments(payload) * tokens_per_attachment)
    return max(1, round(_count_bytes(parts) * tokens_per_byte) + template_tokens + given_tokens)


def lower_bound(payload: Mapping[str, Any], *, words: bool = False) -> int:
    """Return the smallest number of prompt tokens that any tokenizer could count for the request, at least 1.

    A request for embeddings can have several inputs, and each of them must fit the context by itself. The result is
    then the lower bound for the longest input. Documents that may be cut have at least one token. Several prompts must
    fit together.
    """
    if "input" in payload:
        query = lower_bound({"prompt": payload["query"]}) if "query" in payload else 0
        if payload.get("truncate") is True:
            return query + 1
        return query + max(
            lower_bound({"prompt": item}) if isinstance(item, str) else len(item) for item in payload["input"]
        )
    parts = request_texts(payload, with_reasoning=False)
    counted = _count_words(parts) if words else -(-_count_bytes(parts) // MAX_BYTES_PER_TOKEN)
    return max(1, counted + token_ids(payload))


def _message_text(message: Mapping[str, Any]) -> str:
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if _is_text(part))
    return str(content or "") + (_compact(calls) if calls else "")


def _reasoning_texts(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the reasoning of each message; "" if it has none, or if a message of the user follows."""
    last = max((at for at, message in enumerate(messages) if message.get("role") == "user"), default=-1)
    return [str(message.get("reasoning_content") or "") if at > last else "" for at, message in enumerate(messages)]


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and "text" in str(part.get("type"))


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _count_bytes(parts: Iterable[str]) -> int:
    return sum(len(part.encode()) for part in parts)


def _count_words(parts: Iterable[str]) -> int:
    return sum(len(part.split()) for part in parts)

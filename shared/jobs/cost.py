"""Estimates the tokens of a request's prompt, because the door has no tokenizer, and the bytes of its answer.

The store computes a job's cost from the estimate (shared/lua/lib/admission/facts.lua). The worker counts the tokens
exactly before the job takes a slot, and when the worker settles the job, the store charges the tenant for the exact
counts. An estimate therefore only has to be right on average. The door does not use the estimate to decide whether a
request is too long for the context; it uses `lower_bound`, the smallest count that any tokenizer could return.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from shared.candidates import candidates_in
from shared.jobs.prompt_weights import PromptWeights
from shared.jobs.request_texts import MAX_BYTES_PER_TOKEN, attachments, request_texts, token_ids
from shared.settings.setting import AUTO

#: The tokens per byte that are assumed until workers report a measured figure. In common vocabularies, English prose
#: has 3 to 4 bytes per token.
TOKENS_PER_BYTE = 0.3
#: The cost of a generated token, in prompt tokens, while PENSTOCK_GENERATED_WEIGHT is `auto` and no worker of the pool
#: has reported a fit. shared/lua/lib/pools/generated_weight.lua has the same number.
USUAL_GENERATED_WEIGHT = 4
#: The number of tokens that a chat template adds to each message: the role, two or three markers and a line end.
TOKENS_PER_MESSAGE = 4
#: The number of tokens of an image, a sound or a file in a message, until workers report a measured figure. Vision
#: models make 250 to 1,600 tokens of a picture, whatever the number of its bytes.
TOKENS_PER_ATTACHMENT = 800


def reported_weight(generated_weight: int) -> int:
    """Return the weight of a generated token in the weighted tokens that workers report, which is a fixed number.

    `generated_weight` is the setting. If it is AUTO, the store converts the reports to the weight of the pool.
    """
    return USUAL_GENERATED_WEIGHT if generated_weight == AUTO else generated_weight


def estimate(
    payload: Mapping[str, Any],
    *,
    words: bool = False,
    tokens_per_byte: float = TOKENS_PER_BYTE,
    tokens_per_attachment: float = TOKENS_PER_ATTACHMENT,
    weights: PromptWeights | None = None,
) -> int:
    """Return the estimated number of prompt tokens of a request, at least 1.

    If `words` is true, return the number of words instead. The sim engine counts each word as one token. `weights` are
    those that a worker of the model has published; without them, the estimate depends on the number of bytes.
    """
    if weights is not None and "messages" in payload and "forward" not in payload:
        return max(1, round(weights.chat_tokens(payload)))
    parts, given_tokens = request_texts(payload, with_reasoning=not words), token_ids(payload)
    if words:
        return max(1, _count_words(parts) + given_tokens)
    if weights is not None and "forward" not in payload:
        return max(1, round(sum(map(weights.text_tokens, parts))) + given_tokens)
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


def _count_bytes(parts: Iterable[str]) -> int:
    return sum(len(part.encode()) for part in parts)


def _count_words(parts: Iterable[str]) -> int:
    return sum(len(part.split()) for part in parts)


def answer_bytes(payload: Mapping[str, Any], max_tokens: int) -> int:
    """Return the most bytes that an answer is expected to take in the store, with its event stream.

    A token has about four characters, which are in the result and in the event stream, and an entry of the stream has
    at least one token. A packed logprob takes 7 to 9 bytes. An embedding is assumed to have 1,024 numbers of 4 bytes in
    base64. The score of a document has at most 8 characters.
    """
    if "query" in payload:
        return 24 * len(payload["input"])
    if "input" in payload:
        return 5_462 * len(payload["input"])
    alternatives = payload.get("logprobs")
    per_logprobs = 0 if alternatives is None else 12 * (1 + alternatives)
    # The marks that tell whose text follows (shared/candidates.py) take 4 bytes in both places.
    marks = 8 if candidates_in(payload) > 1 else 0
    return max_tokens * (32 + marks + per_logprobs)

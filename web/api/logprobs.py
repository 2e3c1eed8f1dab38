"""Logprobs of an ended job, in OpenAI's two shapes and in our own; pure.

The engine's (workers/engine/llama/logprobs.py): `[token, logprob, [[token, logprob], …]]` for each token of the
answer, a token being its text, or the list of its bytes where these are no text by themselves.
"""

from itertools import accumulate
from typing import Any

from shared.jobs.job import JobView


def chat_logprobs(view: JobView) -> dict[str, Any] | None:
    """As `choices[].logprobs` of a chat; None where none were asked for."""
    told = _told(view)
    if told is None:
        return None
    content = [_entry(token, number) | {"top_logprobs": _entries(top)} for token, number, top in told]
    return {"content": content, "refusal": None}


def completion_logprobs(view: JobView) -> dict[str, Any] | None:
    """As `choices[].logprobs` of a completion: lists side by side."""
    told = _told(view)
    if told is None:
        return None
    texts = [_text(token) for token, _, _ in told]
    offsets = list(accumulate(map(len, texts), initial=0))[:-1]
    return {
        "tokens": texts,
        "token_logprobs": [number for _, number, _ in told],
        "top_logprobs": [{_text(token): number for token, number in top} or None for _, _, top in told],
        "text_offset": offsets,
    }


def job_logprobs(view: JobView) -> list[dict[str, Any]] | None:
    """As `logprobs` of a job: the content of a chat's."""
    told = chat_logprobs(view)
    return None if told is None else told["content"]


def _told(view: JobView) -> list[Any] | None:
    return view.extra.get("logprobs")


def _entries(top: list[Any]) -> list[dict[str, Any]]:
    return [_entry(token, number) for token, number in top]


def _entry(token: str | list[int], number: float) -> dict[str, Any]:
    raw = token.encode() if isinstance(token, str) else bytes(token)
    return {"token": _text(token), "logprob": number, "bytes": list(raw)}


def _text(token: str | list[int]) -> str:
    """What can be read of it: incomplete characters are told as such."""
    return token if isinstance(token, str) else bytes(token).decode("utf-8", "replace")

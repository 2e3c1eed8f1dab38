"""Convert the logprobs of an ended job to the formats of OpenAI's chat and completions routes and the native API.

The engine (workers/engine/llama/logprobs.py) writes `[token, logprob, [[token, logprob], …]]` for each token of the
answer. In this format, a token is its text, or the list of its bytes if these bytes alone are not valid UTF-8. The
store has a packed form (shared/jobs/packed_logprobs.py).
"""

from itertools import accumulate
from typing import Any

from shared.jobs.job import JobView
from shared.jobs.packed_logprobs import unpack


def chat_logprobs(view: JobView) -> dict[str, Any] | None:
    """Return `choices[].logprobs` of a chat, or None if the request did not ask for logprobs."""
    stored = _stored(view)
    if stored is None:
        return None
    content = [_entry(token, logprob) | {"top_logprobs": _entries(top)} for token, logprob, top in stored]
    return {"content": content, "refusal": None}


def completion_logprobs(view: JobView) -> dict[str, Any] | None:
    """Return `choices[].logprobs` of a completion: lists with one item per token; None if they were not requested."""
    stored = _stored(view)
    if stored is None:
        return None
    texts = [_text(token) for token, _, _ in stored]
    offsets = list(accumulate(map(len, texts), initial=0))[:-1]
    return {
        "tokens": texts,
        "token_logprobs": [logprob for _, logprob, _ in stored],
        "top_logprobs": [{_text(token): logprob for token, logprob in top} or None for _, _, top in stored],
        "text_offset": offsets,
    }


def job_logprobs(view: JobView) -> list[dict[str, Any]] | None:
    """Return the field `logprobs` of a job, in the format of `content` in a chat's logprobs; None if not requested."""
    logprobs = chat_logprobs(view)
    return None if logprobs is None else logprobs["content"]


def _stored(view: JobView) -> list[Any] | None:
    return unpack(view.extra.get("logprobs"))


def _entries(top: list[Any]) -> list[dict[str, Any]]:
    return [_entry(token, logprob) for token, logprob in top]


def _entry(token: str | list[int], logprob: float) -> dict[str, Any]:
    raw = token.encode() if isinstance(token, str) else bytes(token)
    return {"token": _text(token), "logprob": logprob, "bytes": list(raw)}


def _text(token: str | list[int]) -> str:
    """Return a token as text; bytes that are not valid UTF-8 become replacement characters."""
    return token if isinstance(token, str) else bytes(token).decode("utf-8", "replace")

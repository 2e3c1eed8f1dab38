"""The scope of a prompt: its model, all parameters and the earlier messages. Only prompts of one scope are compared.

The prompt is the last message of the user, or the prompt of a completion. All else is in the scope, a digest. Pure
functions.
"""

import hashlib
import json
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.candidates import candidates_in
from shared.jobs.request_texts import attachments
from web.runtime.answer_vectors import SCOPE_BYTES

#: Longer prompts are compared with equal ones only, because a small embedding model reads only their beginning.
MAX_COMPARED = 1_000
#: Fields of a request whose answers depend on more than the prompt, or have more than a text.
_NEVER = ("tools", "functions", "logprobs", "top_logprobs", "prompts", "web_search_options")
_DIGEST_CHARS = 32


@dataclass(frozen=True)
class Prompt:
    """The text that is compared, and the rest of a request's payload."""

    text: str
    rest: dict[str, Any]
    #: Whether the answer continues the text, so that each of its words and spaces matters.
    is_continued: bool


def divided(payload: Mapping[str, Any]) -> Prompt | None:
    """Return the prompt of a payload and its rest; None if the answer must not come from a cache.

    That is so if the prompt has images, or is not the last message, or if the request asks for more than one text.
    """
    forward = payload.get("forward") or {}
    others = [each.get(name) for each in (payload, forward) for name in _NEVER]
    if (
        any(value is not None and value is not False for value in others)
        or attachments(payload)
        or candidates_in(payload) > 1
    ):
        return None
    # The door gives every request a seed that names none.
    payload = {name: value for name, value in payload.items() if name != "seed"}
    messages, prompt = payload.get("messages"), payload.get("prompt")
    if isinstance(prompt, str) and prompt.strip() and not messages:
        return Prompt(prompt, {**payload, "prompt": None}, is_continued=True)
    if not isinstance(messages, list) or not messages or messages[-1].get("role") != "user":
        return None
    content = _text(messages[-1].get("content"))
    if not content.strip():
        return None
    rest = {**payload, "messages": [*messages[:-1], {**messages[-1], "content": None}]}
    return Prompt(content, rest, is_continued=False)


def _text(content: Any) -> str:
    """Return the text of a message with one part; "" for any other."""
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        content = content[0].get("text") if content[0].keys() == {"type", "text"} else ""
    return content if isinstance(content, str) else ""


def is_greedy(payload: Mapping[str, Any]) -> bool:
    """Return whether the same prompt always gets the same answer, as far as the sampling is concerned."""
    given = {**(payload.get("forward") or {}), **payload}
    return given.get("temperature") == 0 or given.get("top_k") == 1


def scope_of(rest: Mapping[str, Any], *others: object) -> bytes:
    """Return the digest of all that must be equal."""
    text = json.dumps([rest, others], sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:SCOPE_BYTES]


def entry_digest(scope: bytes, text: str, *, is_continued: bool = False) -> str:
    """Return the digest under which the answer to a prompt is stored.

    White space around it counts only if the answer continues the prompt.
    """
    plain = text if is_continued else unicodedata.normalize("NFC", text).strip()
    return hashlib.sha256(scope + plain.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]

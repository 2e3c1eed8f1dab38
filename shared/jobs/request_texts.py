"""Returns the texts of a request, from which its number of prompt tokens is estimated."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

#: No token of any vocabulary in use has more bytes than this. The longest known tokens, runs of spaces in vocabularies
#: for code, have 128 bytes.
MAX_BYTES_PER_TOKEN = 256


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
        texts, tools = message_texts(payload, with_reasoning=with_reasoning), shown_tools(payload)
        return [*texts, compact(tools)] if tools else texts
    if "prompts" in payload:
        return [prompt for prompt in payload["prompts"] if isinstance(prompt, str)]
    return [str(payload.get("prompt", ""))]


def token_ids(payload: Mapping[str, Any]) -> int:
    given = payload.get("input", payload.get("prompts", ()))
    return sum(len(item) for item in given if not isinstance(item, str))


def attachments(payload: Mapping[str, Any]) -> int:
    """Return the number of images, sounds and files in the messages: of all parts that are not texts."""
    contents = [message.get("content") for message in payload.get("messages", ())]
    return sum(not _is_text(part) for content in contents if isinstance(content, list) for part in content)


def message_texts(payload: Mapping[str, Any], *, with_reasoning: bool = True) -> list[str]:
    texts = [message_text(message) for message in payload["messages"]]
    return list(map(str.__add__, texts, _reasoning_texts(payload["messages"]))) if with_reasoning else texts


def shown_tools(payload: Mapping[str, Any]) -> Sequence[Any]:
    """Return the tools of a chat that the model is shown: none if the answer may call none."""
    if payload.get("tools"):
        return () if payload.get("tool_choice") == "none" else payload["tools"]
    return (payload.get("forward") or {}).get("tools") or ()


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def message_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message: its content without images and other attachments, and its calls of tools."""
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if _is_text(part))
    return str(content or "") + (compact(calls) if calls else "")


def _reasoning_texts(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the reasoning of each message; "" if it has none, or if a message of the user follows."""
    last = max((at for at, message in enumerate(messages) if message.get("role") == "user"), default=-1)
    return [str(message.get("reasoning_content") or "") if at > last else "" for at, message in enumerate(messages)]


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and "text" in str(part.get("type"))

"""Converts messages with calls of tools and their results from the form of OpenAI's API to that of chat templates."""

import hashlib
import json
import string
from collections.abc import Mapping, Sequence
from typing import Any

from workers.engine.chat.tool_formats import ToolFormat

_LETTERS = string.ascii_letters + string.digits
#: What a model whose template knows no tools is told about them.
_EXPLAINED = (
    "You may call functions to answer. Each line below is the JSON of one function:\n{tools}\n"
    "To call a function, answer only with its name and its arguments, as JSON, in this form:\n"
    '<tool_call>\n{{"name": "the name", "arguments": {{}}}}\n</tool_call>'
)


def messages_for_template(
    messages: list[dict[str, Any]], form: ToolFormat, tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the messages as a template of this form reads them.

    Messages without tools are returned unchanged, unless the template shows only some of them. If the template knows no
    tools, calls and results become texts, and a system message explains `tools`.
    """
    if form.in_channels:
        messages = _one_call_each([_with_thinking(message) for message in _one_system_message(messages)])
    if not tools and not any(message["role"] == "tool" or "tool_calls" in message for message in messages):
        return messages
    if form.in_template:
        return [_with_objects(message, form) for message in messages]
    plain = [_as_text(message) for message in messages]
    if not tools:
        return plain
    lines = "\n".join(json.dumps(tool.get("function"), ensure_ascii=False) for tool in tools)
    told = _EXPLAINED.format(tools=lines)
    if plain[0]["role"] == "system":
        return [{**plain[0], "content": f"{plain[0]['content']}\n\n{told}"}, *plain[1:]]
    return [{"role": "system", "content": told}, *plain]


def tools_for_template(tools: Sequence[Mapping[str, Any]], form: ToolFormat) -> list[Mapping[str, Any]]:
    """Return the tools as a template of this form shows them; none if it knows no tools."""
    if not form.in_template:
        return []
    if not form.in_channels:
        return list(tools)
    # The templates of gpt-oss fail on a tool without a description.
    return [{**tool, "function": {"description": "", **tool["function"]}} for tool in tools]


def _one_system_message(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with all system messages joined in the first.

    The templates of gpt-oss show a system message only if it is the first message, and leave out all others.
    """
    texts = [message["content"] for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others] if texts else messages


def _with_thinking(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its reasoning in the field that the templates of gpt-oss read.

    They show it as long as no later answer is without calls. Beside a call, they accept either reasoning or content,
    and show both as reasoning.
    """
    if "reasoning_content" not in message:
        return message
    rest = {name: given for name, given in message.items() if name != "reasoning_content"}
    if not message.get("tool_calls"):
        return rest | {"thinking": message["reasoning_content"]}
    said = [text for text in (message["reasoning_content"], message["content"]) if text]
    return rest | {"thinking": "\n\n".join(said), "content": ""}


def _one_call_each(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with each call in a message of its own, which the result of the call follows.

    The templates of gpt-oss show only the first call of a message, and take each result for that of the last call.
    """
    divided: list[dict[str, Any]] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        after = at = at + 1
        while after < len(messages) and messages[after]["role"] == "tool":
            after += 1
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            divided.append(message)
            continue
        results, at = messages[at:after], after
        for i, call in enumerate(calls):
            own = [result for result in results if result.get("tool_call_id") == call["id"]]
            said = {**message, "content": "", "thinking": ""} if i else message
            divided += [{**said, "tool_calls": [call]}, *own]
            results = [result for result in results if result not in own]
        divided += results
    return divided


def _with_objects(message: dict[str, Any], form: ToolFormat) -> dict[str, Any]:
    if form.short_ids and "tool_call_id" in message:
        message = {**message, "tool_call_id": _short_id(message["tool_call_id"])}
    if "tool_calls" not in message:
        return message
    return {**message, "tool_calls": [_call(call, form) for call in message["tool_calls"]]}


def _call(call: dict[str, Any], form: ToolFormat) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"] if form.text_arguments else _parsed(function["arguments"])
    given_id = _short_id(call["id"]) if form.short_ids else call["id"]
    return {**call, "id": given_id, "function": {**function, "arguments": arguments}}


def _parsed(arguments: str) -> Any:
    """Return the arguments as an object. Arguments that are no JSON, because the answer was cut, stay a text."""
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments


def _short_id(given: str) -> str:
    """Return nine letters and digits for an id, always the same ones."""
    if len(given) == 9 and given.isascii() and given.isalnum():
        return given
    return "".join(
        _LETTERS[byte % len(_LETTERS)] for byte in hashlib.sha256(given.encode(errors="replace")).digest()[:9]
    )


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return message
    texts = [message["content"]] if message["content"] else []
    for call in calls:
        function = {"name": call["function"]["name"], "arguments": _parsed(call["function"]["arguments"])}
        texts.append(f"<tool_call>\n{json.dumps(function, ensure_ascii=False)}\n</tool_call>")
    return {"role": message["role"], "content": "\n".join(texts)}

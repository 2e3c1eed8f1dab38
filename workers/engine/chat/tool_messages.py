"""Converts messages with calls of tools and their results from the form of OpenAI's API to that of chat templates."""

import hashlib
import json
import string
from collections.abc import Mapping, Sequence
from typing import Any

from workers.engine.chat.template_probe import Traits
from workers.engine.chat.tool_formats import ToolFormat

Message = dict[str, Any]

_LETTERS = string.ascii_letters + string.digits
#: The text about tools for a model whose template shows none.
_EXPLAINED = (
    "You may call functions to answer. Each line below is the JSON of one function:\n{tools}\n"
    "To call a function, answer only with its name and its arguments, {how}, in this form:\n{form}"
)


def has_calls(messages: Sequence[Message]) -> bool:
    return any(message["role"] == "tool" or message.get("tool_calls") for message in messages)


def with_objects(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return {name: given for name, given in message.items() if name != "tool_calls"}
    parsed = []
    for call in calls:
        function = call["function"]
        # Some templates show all fields in their order.
        ordered = {"name": function["name"], **function, "arguments": _parsed(function["arguments"])}
        parsed.append({**call, "function": ordered})
    return {**message, "tool_calls": parsed}


def messages_for_template(messages: list[Message], traits: Traits, tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the messages as a template with these traits reads them.

    Messages without tools are returned unchanged, unless the template shows only some of them. If the template shows no
    calls, calls and results become texts. If it shows no tools, `tools` are explained.
    """
    if traits.form.in_channels:
        messages = [_with_thinking(message) for message in _one_system_message(messages)]
    if has_calls(messages):
        messages = _shown(messages, traits) if traits.shows_calls else _as_texts(messages, traits.form)
    if tools and not traits.shows_tools:
        messages = _explained(messages, traits, tools)
    return messages


def filled(tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the tools, each with a description and parameters: some templates fail without them."""
    given = ({name: value for name, value in tool["function"].items() if value is not None} for tool in tools)
    functions = ({"description": "", "parameters": {}} | function for function in given)
    return [{**tool, "function": function} for tool, function in zip(tools, functions, strict=True)]


def _shown(messages: list[Message], traits: Traits) -> list[Message]:
    messages = [each for message in messages for each in _with_calls(message, traits)]
    return _one_call_each(messages) if traits.one_call_each else messages


def _with_calls(message: Message, traits: Traits) -> list[Message]:
    if traits.short_ids and "tool_call_id" in message:
        message = {**message, "tool_call_id": _short_id(message["tool_call_id"])}
    if not message.get("tool_calls"):
        return [message]
    calls = [_call(call, traits) for call in message["tool_calls"]]
    alone = {**message, "content": None if traits.null_content else "", "tool_calls": calls}
    if not message["content"]:
        return [alone]
    if traits.text_beside_calls:
        return [{**message, "tool_calls": calls}]
    return [{name: given for name, given in message.items() if name != "tool_calls"}, alone]


def _call(call: Mapping[str, Any], traits: Traits) -> dict[str, Any]:
    function, given_id = call["function"], call["id"]
    if isinstance(function["arguments"], dict):
        function = {**function, "arguments": traits.given(function["arguments"])}
    return {**call, "id": _short_id(given_id) if traits.short_ids else given_id, "function": function}


def _parsed(arguments: str) -> Any:
    """Return the arguments as an object. Others, such as those of an answer that was cut, stay a text."""
    try:
        parsed = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _short_id(given: str) -> str:
    """Return nine letters and digits for an id, always the same ones."""
    if len(given) == 9 and given.isascii() and given.isalnum():
        return given
    return "".join(
        _LETTERS[byte % len(_LETTERS)] for byte in hashlib.sha256(given.encode(errors="replace")).digest()[:9]
    )


def _one_call_each(messages: list[Message]) -> list[Message]:
    """Return the messages with each call in a message of its own, which the result of the call follows."""
    divided: list[Message] = []
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


def _as_texts(messages: list[Message], form: ToolFormat) -> list[Message]:
    """Return the messages with calls as texts in this form, and all results that follow each other in one message.

    The user's text right after results is part of that message, because many templates require that roles alternate.
    """
    texts: list[Message] = []
    after_result = False
    for message in messages:
        text = _as_text(message, form)
        if after_result and text["role"] == "user":
            between = "\n" if message["role"] == "tool" else "\n\n"
            texts[-1] = {"role": "user", "content": f"{texts[-1]['content']}{between}{text['content']}"}
        else:
            texts.append(text)
        after_result = message["role"] == "tool"
    return texts


def _as_text(message: Message, form: ToolFormat) -> Message:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    called = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    if all(isinstance(arguments, dict) for _, arguments in called):
        calls = form.write((name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in called)
    else:
        calls = "\n".join(f"{name} {arguments}" for name, arguments in called)
    rest = {name: given for name, given in message.items() if name != "tool_calls"}
    return rest | {"content": "\n".join(filter(None, (message["content"], calls)))}


def _explained(messages: list[Message], traits: Traits, tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the messages with an explanation of the tools: in the system message, or before the user's first words."""
    lines = "\n".join(json.dumps(tool.get("function"), ensure_ascii=False) for tool in tools)
    if traits.form.parameters is None:
        how, arguments = "as JSON", {}
    else:
        how, arguments = "one after the other", {"the name of an argument": "its value"}
    example = traits.form.write([("the name", json.dumps(arguments))])
    explanation = _EXPLAINED.format(tools=lines, how=how, form=example)
    if not traits.system:
        at = next((i for i, message in enumerate(messages) if message["role"] == "user"), 0)
        first = messages[at] if messages[at]["role"] == "user" else None
        if first is not None:
            return [*messages[:at], {**first, "content": f"{explanation}\n\n{first['content']}"}, *messages[at + 1 :]]
        return [{"role": "user", "content": explanation}, *messages]
    if messages[0]["role"] == "system":
        return [{**messages[0], "content": f"{messages[0]['content']}\n\n{explanation}"}, *messages[1:]]
    return [{"role": "system", "content": explanation}, *messages]


def _one_system_message(messages: list[Message]) -> list[Message]:
    """Return the messages with all system messages joined in the first.

    The templates of gpt-oss show a system message only if it is the first message, and leave out all others.
    """
    texts = [message["content"] for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others] if texts else messages


def _with_thinking(message: Message) -> Message:
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

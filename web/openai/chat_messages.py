"""Convert the messages of a chat to those that the engine reads, and validate them; pure functions."""

from typing import Annotated, Any, Literal

from pydantic import Field

from web.api.body import Body, NulFreeText, note_ignored
from web.api.request_schema import MAX_MESSAGES, Message
from web.http.api_errors import invalid
from web.openai.accepted_fields import shown, unsupported

#: The most tools of a request, and calls of a message: more than the 128 of OpenAI's API, because agents with several
#: MCP servers have more. The engine has the same number (workers/engine/chat/tool_request.py).
MAX_TOOLS = 512
_MAX_ID = 256
#: The fields of a message that has no parts but a text.
_PLAIN_FIELDS = {"content", "role"}
#: Fields of a message that are ignored, and fields that are ignored only if they are empty.
_MESSAGE_IGNORED = frozenset(
    {
        "annotations",
        "name",
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "reasoning_opaque",
        "reasoning_text",
        "refusal",
    }
)
#: Where a client would have a cache begin. Prefixes are cached without being asked for.
_CACHE_MARKS = frozenset({"cache_control", "copilot_cache_control"})
_MESSAGE_NEUTRAL = {
    "audio": "audio is not supported",
    "function_call": "tools are not supported",
    # Mistral's package sends it with each message of the assistant.
    "prefix": "an answer does not continue a message",
    "tool_calls": "tools are not supported",
}
#: Maps the name of a role in OpenAI's API to the name that chat templates know.
_ROLES = {"developer": "system"}
#: A message with one of these roles and a text needs no conversion; nearly all messages are of this kind.
_PLAIN_ROLES = ("system", "user", "assistant")


class CalledFunction(Body):
    """The function that an earlier message called, and its arguments: a text, which is usually JSON."""

    name: Annotated[NulFreeText, Field(min_length=1, max_length=64)]
    arguments: NulFreeText


class EarlierCall(Body):
    """A call of a tool in an earlier message of the assistant."""

    id: Annotated[NulFreeText, Field(max_length=_MAX_ID)] = ""
    type: Literal["function"] = "function"
    function: CalledFunction
    #: The namespace of the function on `/v1/responses`.
    namespace: NulFreeText | None = None


class ChatMessage(Message):
    """One message of a chat that may have reasoning and calls of tools, or the result of a call."""

    role: Literal["system", "user", "assistant", "tool"]  # type: ignore[assignment] # wider
    tool_calls: Annotated[list[EarlierCall], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: Annotated[NulFreeText, Field(max_length=_MAX_ID)] | None = None
    #: How the model reasoned in an earlier answer. The template decides whether it is shown again.
    reasoning_content: NulFreeText | None = None


#: fail_fast: after the first invalid message, the others are not validated, because each would add an error.
ChatMessages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


def normalize_chat_message(item: Any, where: str) -> Any:
    """Convert a message to the native format, as `normalize_message` does.

    It keeps the message's calls and its reasoning, which some servers call `reasoning`, or the id of a result. Raises
    ApiError, which names the message by its path in the body, `where`.
    """
    if not isinstance(item, dict) or (item.get("role") != "tool" and item.keys() <= _PLAIN_FIELDS):
        return normalize_message(item, where)
    reasoning = _reasoning(item)
    if item.get("role") != "tool" and not item.get("tool_calls"):
        return normalize_message(item, where) | reasoning
    if item["role"] == "tool":
        rest = {name: given for name, given in item.items() if name not in {"tool_call_id", "tool_calls"}}
        plain = normalize_message(rest | {"role": "assistant"}, where)
        given_id = item.get("tool_call_id")
        if not isinstance(given_id, str):
            raise invalid(f"{where}.tool_call_id", given_id, "the id of a call, which a message of a tool needs")
        return plain | {"role": "tool", "tool_call_id": given_id}
    plain = normalize_message({name: given for name, given in item.items() if name != "tool_calls"}, where)
    calls = item["tool_calls"]
    if item["role"] != "assistant" or not isinstance(calls, list):
        raise invalid(f"{where}.tool_calls", calls, "a list of calls in a message of the assistant")
    return plain | reasoning | {"tool_calls": [_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]}


def _reasoning(item: dict[str, Any]) -> dict[str, Any]:
    given, other = item.get("reasoning_content"), item.get("reasoning")
    thought = given or (other if isinstance(other, str) else None)
    return {"reasoning_content": thought} if thought and item.get("role") == "assistant" else {}


def _call(call: Any, where: str) -> Any:
    """Return the fields of a call that the model reads. Clients also send others that a stream has, such as `index`."""
    if not isinstance(call, dict):
        return call
    kind, function = call.get("type") or "function", call.get("function")
    if kind != "function":
        raise unsupported(f"{where}.type", f"type={shown(kind)!r}; only functions are supported")
    kept = {"type": kind, "function": function}
    if isinstance(function, dict):
        kept["function"] = {name: function[name] for name in ("name", "arguments") if name in function}
    return kept | ({} if call.get("id") is None else {"id": call["id"]})


def normalize_message(item: Any, where: str) -> Any:
    """Convert a message to the native format: join its text parts, and rename its role.

    Raises ApiError(unsupported_parameter) if the message uses tools, audio, or parts other than text. The error names
    the message by its path in the body, `where`.
    """
    if not isinstance(item, dict):
        return item
    if len(item) == 2 and item.get("role") in _PLAIN_ROLES and isinstance(item.get("content"), str):
        return item
    kept: dict[str, Any] = {}
    for name, given in item.items():
        if name in _MESSAGE_NEUTRAL and given:
            raise unsupported(f"{where}.{name}", _MESSAGE_NEUTRAL[name])
        if given is not None and name in _CACHE_MARKS:
            note_ignored(f"messages.{name}")
        elif given is not None and name not in _MESSAGE_IGNORED | _MESSAGE_NEUTRAL.keys():
            kept[name] = given
    role = kept.get("role")
    if role in ("tool", "function"):
        raise unsupported(f"{where}.role", "tools are not supported")
    content = kept.get("content")
    if isinstance(content, list):
        kept["content"] = join_parts(content, f"{where}.content", can_refuse=role == "assistant")
    elif content is None and role == "assistant":
        # The assistant of another server may have refused to answer; then this text is its whole message.
        refusal = item.get("refusal")
        kept["content"] = refusal if isinstance(refusal, str) else ""
    return kept | {"role": _ROLES.get(str(role), role)}


def join_parts(parts: list[Any], where: str, *, can_refuse: bool = False) -> str:
    """Return the text of a message's parts. A part of type refusal is accepted if `can_refuse`.

    Raises ApiError(unsupported_parameter), which names the part by the path of the list in the body, `where`.
    """
    return "".join(_part_text(part, f"{where}[{i}]", can_refuse=can_refuse) for i, part in enumerate(parts))


def _part_text(part: Any, where: str, *, can_refuse: bool) -> str:
    kind: Any = part.get("type") if isinstance(part, dict) else None
    field = "refusal" if can_refuse and kind == "refusal" else "text"
    if (kind in ("text", "input_text", "output_text") or field == "refusal") and isinstance(part.get(field), str):
        return str(part[field])
    raise unsupported(where, "only parts of type text are accepted")

"""Validate the tools of a chat, the choice among them, and messages with calls and results; pure functions."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from web.api.body import Body, NulFreeText
from web.api.body_sizes import MAX_FIELDS, check_sizes
from web.api.request_schema import MAX_MESSAGES, Message
from web.api.response_format import check_keywords
from web.http.api_errors import ApiError, FieldError, invalid_value, quoted
from web.openai.accepted_fields import shown, unsupported
from web.openai.chat_schema import OPENAI_SIZES, ChatBody, normalize_message

#: The most tools of a request, and calls of a message: more than the 128 of OpenAI's API, because agents with several
#: MCP servers have more. The engine has the same number (workers/engine/chat/tool_request.py).
MAX_TOOLS = 512
#: OpenAI's rule for names of tools.
MAX_NAME = 64
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_MAX_ID = 256
#: The fields of a message that has no parts but a text.
_PLAIN_FIELDS = {"content", "role"}

#: Variables of a template that the client may not set, because the engine does.
_RESERVED = frozenset(
    {"add_generation_prompt", "bos_token", "eos_token", "messages", "raise_exception", "strftime_now", "tools"}
)
#: The fields of a chat that its template gets.
_TOLD = ("reasoning_effort", "chat_template_kwargs")


def _check_variables(value: dict[str, Any]) -> dict[str, Any]:
    for name in value:
        if name in _RESERVED or not _NAME.match(name):
            raise ValueError(f"chat_template_kwargs {quoted(name)} is no name of a variable that a request may set")
    return value


TemplateVariables = Annotated[
    dict[str, bool | int | float | Annotated[NulFreeText, Field(max_length=256)]],
    Field(max_length=16),
    AfterValidator(_check_variables),
]
ToolChoice = Literal["auto", "none", "required"] | dict[str, Any]
#: A variable of the model's chat template.
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


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
            raise _invalid(f"{where}.tool_call_id", given_id, "the id of a call, which a message of a tool needs")
        return plain | {"role": "tool", "tool_call_id": given_id}
    plain = normalize_message({name: given for name, given in item.items() if name != "tool_calls"}, where)
    calls = item["tool_calls"]
    if item["role"] != "assistant" or not isinstance(calls, list):
        raise _invalid(f"{where}.tool_calls", calls, "a list of calls in a message of the assistant")
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


def read_tools(value: Any, read_one: Callable[[Any, str], list[dict[str, Any]]]) -> Any:
    """Return the functions that `read_one` finds in each tool. Pydantic rejects a value that is not a list.

    Raises ApiError if there are too many, or if two have the same name.
    """
    if not isinstance(value, list):
        return value
    check_number_of_tools(value)
    tools = [function for i, tool in enumerate(value) for function in read_one(tool, f"tools[{i}]")]
    check_number_of_tools(tools)
    names = Counter(tool["function"]["name"] for tool in tools)
    repeated = next((name for name, count in names.items() if count > 1), None)
    if repeated is not None:
        raise _invalid("tools", repeated, "a name that only one tool has")
    return tools


def check_number_of_tools(tools: list[Any], where: str = "tools") -> None:
    """Raise ApiError if there are more tools than a request may have."""
    if len(tools) > MAX_TOOLS:
        raise invalid_value([FieldError(where, f"{where} has {len(tools)} items; at most {MAX_TOOLS} are allowed")])


def _tool(tool: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(tool, dict):
        raise _invalid(where, tool, "an object")
    if tool.get("type") != "function":
        raise unsupported(f"{where}.type", f"type={shown(tool.get('type'))!r}; only functions are supported")
    function = tool.get("function")
    if not isinstance(function, dict) or len(function) > MAX_FIELDS:
        raise _invalid(f"{where}.function", function, "an object with a name")
    return [{"type": "function", "function": read_function(function, f"{where}.function")}]


def read_function(function: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the function's name, description, parameters and `strict`, as far as they are given. Raises ApiError."""
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.match(name):
        raise _invalid(f"{where}.name", name, "a name of 1 to 64 letters, digits, _ and -")
    kinds: dict[str, type] = {"description": str, "parameters": dict, "strict": bool}
    kept: dict[str, Any] = {"name": name}
    for field, kind in kinds.items():
        given = function.get(field)
        if given is not None and not isinstance(given, kind):
            raise _invalid(f"{where}.{field}", given, {str: "a text", dict: "an object", bool: "true or false"}[kind])
        kept |= {} if given is None else {field: given}
    if parameters:
        if parameters.get("type", "object") != "object":
            raise _invalid(f"{where}.parameters.type", parameters["type"], "'object'")
        check_keywords(parameters, f"{where}.parameters")
    return kept


def read_choice(value: Any) -> Any:
    """Return a choice of the chat route: a word, a function, or an object `allowed_tools`. Raises ApiError."""
    if not isinstance(value, dict):
        return read_chosen_word(value)
    if value.get("type") == "allowed_tools":
        allowed = value.get("allowed_tools")
        if not isinstance(allowed, dict):
            raise _invalid("tool_choice.allowed_tools", allowed, "an object with a mode and a list of tools")
        return read_allowed(allowed, "tool_choice.allowed_tools", _chosen_name)
    name = _chosen_name(value, "tool_choice")
    return {"type": "function", "function": {"name": name}}


def read_chosen_word(value: Any) -> Any:
    """Return a choice that is not an object; Mistral's API says `any` for `required`. Raises ApiError."""
    if value == "any":
        return "required"
    if value is None or value in ("auto", "none", "required"):
        return value
    raise _invalid("tool_choice", value, "'auto', 'none', 'required' or a function")


def read_allowed(value: dict[str, Any], where: str, read_name: Callable[[dict[str, Any], str], str | None]) -> Any:
    """Return the choice of some of the tools, whose names `read_name` finds; None stands for a tool that is left out.

    Raises ApiError.
    """
    mode, allowed = value.get("mode", "auto"), value.get("tools")
    if mode not in ("auto", "required"):
        raise _invalid(f"{where}.mode", mode, "'auto' or 'required'")
    if not isinstance(allowed, list) or not allowed:
        raise _invalid(f"{where}.tools", allowed, "a list of tools")
    check_number_of_tools(allowed, f"{where}.tools")
    names = []
    for i, tool in enumerate(allowed):
        if not isinstance(tool, dict):
            raise _invalid(f"{where}.tools[{i}]", tool, "an object")
        names.append(read_name(tool, f"{where}.tools[{i}]"))
    return {"type": "allowed_tools", "mode": mode, "names": [name for name in names if name is not None]}


def _chosen_name(value: dict[str, Any], where: str) -> str:
    if value.get("type") != "function":
        raise unsupported(f"{where}.type", f"type={shown(value.get('type'))!r}; only functions can be chosen")
    function = value.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise _invalid(f"{where}.function.name", name, "the name of a tool")
    return name


Tools = Annotated[
    list[dict[str, Any]],
    Field(description="functions that the answer may call"),
    BeforeValidator(lambda value: read_tools(value, _tool), json_schema_input_type=list[dict[str, Any]]),
]
Choice = Annotated[ToolChoice, BeforeValidator(read_choice, json_schema_input_type=str | dict[str, Any])]


def tool_fields(tools: list[dict[str, Any]] | None, choice: ToolChoice | None, parallel: bool | None) -> dict[str, Any]:
    """Return the fields of the payload; none if the answer may call no tool. Raises ApiError.

    If the choice allows some of the tools only, the model is shown no others.
    """
    names = {tool["function"]["name"] for tool in tools or ()}
    allowed = choice["names"] if isinstance(choice, dict) and choice["type"] == "allowed_tools" else None
    chosen = choice["function"]["name"] if isinstance(choice, dict) and allowed is None else None
    unknown = next((name for name in allowed or [chosen] if name is not None and name not in names), None)
    if unknown is not None:
        where = "tool_choice.function.name" if allowed is None else "tool_choice"
        raise _invalid(where, unknown, "the name of one of the tools")
    if allowed is not None:
        tools = [tool for tool in tools or () if tool["function"]["name"] in allowed]
        choice = choice["mode"] if isinstance(choice, dict) else choice
    if not tools:
        if choice == "required":
            raise _invalid("tool_choice", choice, "allowed without tools")
        return {}
    if choice == "none":
        return {}
    fields: dict[str, Any] = {"tools": tools}
    fields |= {} if choice in (None, "auto") else {"tool_choice": choice}
    return fields | ({"parallel_tool_calls": False} if parallel is False else {})


def _invalid(param: str, value: Any, expected: str) -> ApiError:
    return invalid_value([FieldError(param, f"{param}={quoted(value)} is not {expected}")])


class ChatWithTools(ChatBody):
    """The body of `POST /v1/chat/completions`: a chat in which the answer may call tools."""

    messages: ChatMessages  # type: ignore[assignment] # wider
    tools: Tools | None = None
    tool_choice: Choice | None = Field(None, description="auto, none, required, a function, or allowed_tools")
    parallel_tool_calls: bool | None = Field(None, description="false: at most one call")
    reasoning_effort: ReasoningEffort | None = Field(
        None, description="a variable of the model's chat template; without effect if the template does not use it"
    )
    chat_template_kwargs: TemplateVariables | None = Field(
        None, description="variables of the model's chat template, such as enable_thinking"
    )

    @model_validator(mode="before")
    @classmethod
    def _normalize_messages(cls, value: Any) -> Any:
        check_sizes(value, OPENAI_SIZES, messages="messages")
        if isinstance(value, dict) and isinstance(value.get("messages"), list):
            messages = [normalize_chat_message(item, f"messages[{i}]") for i, item in enumerate(value["messages"])]
            return value | {"messages": messages}
        return value

    @model_validator(mode="after")
    def _check_choice(self) -> "ChatWithTools":
        tool_fields(self.tools, self.tool_choice, self.parallel_tool_calls)
        return self

    def payload(self) -> dict[str, Any]:
        """Return the payload that the engine reads."""
        messages = [message.model_dump(exclude_none=True) for message in self.messages]
        tools = tool_fields(self.tools, self.tool_choice, self.parallel_tool_calls)
        told = {name: given for name in _TOLD if (given := getattr(self, name)) is not None}
        return super().payload() | {"messages": messages, "parts": True} | tools | told

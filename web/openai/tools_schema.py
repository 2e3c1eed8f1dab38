"""Read the tools of a chat, and the choice among them; pure functions."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from web.api.body import MAX_FIELDS
from web.api.response_format import check_keywords
from web.http.api_errors import invalid, invalid_field
from web.openai.accepted_fields import shown, unsupported
from web.openai.chat_messages import MAX_TOOLS

#: OpenAI's rule for names of tools.
MAX_NAME = 64
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")

ToolChoice = Literal["auto", "none", "required"] | dict[str, Any]


def read_tools(value: Any, read_one: Callable[[Any, str], list[dict[str, Any]]]) -> Any:
    """Return the functions that `read_one` finds in each tool. Pydantic rejects a value that is not a list.

    Raises ApiError if there are too many, or if two have the same name.
    """
    if not isinstance(value, list):
        return value
    check_number_of_tools(value)
    tools = [function for i, tool in enumerate(value) for function in read_one(tool, f"tools[{i}]")]
    check_number_of_tools(tools)
    names = Counter(tool["function"]["name"] for tool in tools if "function" in tool)
    repeated = next((name for name, count in names.items() if count > 1), None)
    if repeated is not None:
        raise invalid("tools", repeated, "a name that only one tool has")
    return tools


def check_number_of_tools(tools: list[Any], where: str = "tools") -> None:
    """Raise ApiError if there are more tools than a request may have."""
    if len(tools) > MAX_TOOLS:
        raise invalid_field(where, f"{where} has {len(tools)} items; at most {MAX_TOOLS} are allowed")


def _tool(tool: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(tool, dict):
        raise invalid(where, tool, "an object")
    if tool.get("type") != "function":
        raise unsupported(f"{where}.type", f"type={shown(tool.get('type'))!r}; only functions are supported")
    function = tool.get("function")
    if not isinstance(function, dict) or len(function) > MAX_FIELDS:
        raise invalid(f"{where}.function", function, "an object with a name")
    return [{"type": "function", "function": read_function(function, f"{where}.function")}]


def read_function(function: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the function's name, description, parameters and `strict`, as far as they are given. Raises ApiError."""
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not NAME.match(name):
        raise invalid(f"{where}.name", name, "a name of 1 to 64 letters, digits, _ and -")
    kinds: dict[str, type] = {"description": str, "parameters": dict, "strict": bool}
    kept: dict[str, Any] = {"name": name}
    for field, kind in kinds.items():
        given = function.get(field)
        if given is not None and not isinstance(given, kind):
            raise invalid(f"{where}.{field}", given, {str: "a text", dict: "an object", bool: "true or false"}[kind])
        kept |= {} if given is None else {field: given}
    if parameters:
        if parameters.get("type", "object") != "object":
            raise invalid(f"{where}.parameters.type", parameters["type"], "'object'")
        check_keywords(parameters, f"{where}.parameters")
    return kept


def read_choice(value: Any) -> Any:
    """Return a choice of the chat route: a word, a function, or an object `allowed_tools`. Raises ApiError."""
    if not isinstance(value, dict):
        return read_chosen_word(value)
    if value.get("type") == "allowed_tools":
        allowed = value.get("allowed_tools")
        if not isinstance(allowed, dict):
            raise invalid("tool_choice.allowed_tools", allowed, "an object with a mode and a list of tools")
        return read_allowed(allowed, "tool_choice.allowed_tools", _chosen_name)
    name = _chosen_name(value, "tool_choice")
    return {"type": "function", "function": {"name": name}}


def read_chosen_word(value: Any) -> Any:
    """Return a choice that is not an object; Mistral's API says `any` for `required`. Raises ApiError."""
    if value == "any":
        return "required"
    if value is None or value in ("auto", "none", "required"):
        return value
    raise invalid("tool_choice", value, "'auto', 'none', 'required' or a function")


def read_allowed(value: dict[str, Any], where: str, read_name: Callable[[dict[str, Any], str], str | None]) -> Any:
    """Return the choice of some of the tools, whose names `read_name` finds; None stands for a tool that is left out.

    Raises ApiError.
    """
    mode, allowed = value.get("mode", "auto"), value.get("tools")
    if mode not in ("auto", "required"):
        raise invalid(f"{where}.mode", mode, "'auto' or 'required'")
    if not isinstance(allowed, list) or not allowed:
        raise invalid(f"{where}.tools", allowed, "a list of tools")
    check_number_of_tools(allowed, f"{where}.tools")
    names = []
    for i, tool in enumerate(allowed):
        if not isinstance(tool, dict):
            raise invalid(f"{where}.tools[{i}]", tool, "an object")
        names.append(read_name(tool, f"{where}.tools[{i}]"))
    return {"type": "allowed_tools", "mode": mode, "names": [name for name in names if name is not None]}


def _chosen_name(value: dict[str, Any], where: str) -> str:
    if value.get("type") != "function":
        raise unsupported(f"{where}.type", f"type={shown(value.get('type'))!r}; only functions can be chosen")
    function = value.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise invalid(f"{where}.function.name", name, "the name of a tool")
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
        raise invalid(where, unknown, "the name of one of the tools")
    if allowed is not None:
        tools = [tool for tool in tools or () if tool["function"]["name"] in allowed]
        choice = choice["mode"] if isinstance(choice, dict) else choice
    if not tools:
        if choice == "required":
            raise invalid("tool_choice", choice, "allowed without tools")
        return {}
    if choice == "none":
        return {}
    fields: dict[str, Any] = {"tools": tools}
    fields |= {} if choice in (None, "auto") else {"tool_choice": choice}
    return fields | ({"parallel_tool_calls": False} if parallel is False else {})

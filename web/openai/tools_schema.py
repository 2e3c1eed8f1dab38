"""Read the tools of a chat or a response, and the choice among them; pure functions."""

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from web.api.body import MAX_FIELDS, note_ignored
from web.api.response_format import check_keywords
from web.http.api_errors import invalid, invalid_field, quoted
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
    names = Counter(tool["function"]["name"] for tool in tools)
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


#: The types of tools that OpenAI's servers run, with the date of their version. They are left out.
_HOSTED = re.compile(
    r"(code_interpreter|file_search|image_generation|mcp|tool_search|web_search|web_search_preview)"
    r"(_[0-9]{4}_[0-9]{2}_[0-9]{2})?\Z"
)

#: The longest tools, as JSON, that response objects repeat whole. They are kept with the job, and read whenever it is.
_MAX_REPEATED_TOOLS = 8_192
#: The model sees a function of a namespace under its own name or, if another function has that name too, with the name
#: of the namespace before it. Calls in answers have the two names apart.
#: For each function of a namespace, by the name that the model sees: the names of its namespace and its own.
Namespaces = dict[str, list[str]]


def read_response_tools(value: Any) -> Any:
    """Return the functions in the form of the chat route; those in namespaces also have the field `namespace`.

    A value that is not a list is left for pydantic to reject. Raises ApiError.
    """
    if not isinstance(value, list):
        return value
    check_number_of_tools(value)
    own_names = Counter(name for tool in value for name in _own_names(tool))
    return read_tools(value, lambda tool, where: _functions(tool, where, own_names))


def read_response_choice(value: Any) -> Any:
    """Return a choice: a word, or an object whose names may each have a namespace. Raises ApiError."""
    if not isinstance(value, dict):
        return read_chosen_word(value)
    if value.get("type") == "allowed_tools":
        return read_allowed(value, "tool_choice", _allowed_name)
    if value.get("type") != "function":
        raise unsupported("tool_choice.type", f"type={shown(value.get('type'))!r}; only functions can be chosen")
    return {"type": "function", "function": {"name": _qualified(value, "tool_choice")}}


def namespaces_of(tools: list[dict[str, Any]] | None) -> Namespaces:
    """Return the functions in namespaces."""
    return {tool["function"]["name"]: list(tool["namespace"]) for tool in tools or () if "namespace" in tool}


def plain_tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Return the tools as the engine reads them."""
    return tools and [{"type": tool["type"], "function": tool["function"]} for tool in tools]


def repeated_tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Return the tools as response objects repeat them; only their names if all of them are too long to be kept."""
    whole = _in_namespaces(tools or [], _repeated)
    if len(json.dumps(whole)) <= _MAX_REPEATED_TOOLS:
        return whole
    return _in_namespaces(tools or [], lambda function: _repeated({"name": function["name"]}))


def repeated_choice(choice: Any) -> Any:
    """Return a choice that `read_response_choice` has read, as response objects repeat it."""
    if choice is None:
        return "auto"
    if not isinstance(choice, dict):
        return choice
    if choice["type"] == "allowed_tools":
        allowed = [{"type": "function"} | _named(name) for name in choice["names"]]
        return {"type": "allowed_tools", "mode": choice["mode"], "tools": allowed}
    return {"type": "function"} | _named(choice["function"]["name"])


def _named(name: tuple[str | None, str]) -> dict[str, str]:
    namespace, own = name
    return {"name": own} | ({"namespace": namespace} if namespace is not None else {})


def _repeated(function: dict[str, Any]) -> dict[str, Any]:
    fields = {name: function.get(name) for name in ("name", "description", "parameters", "strict")}
    return {"type": "function"} | fields


def _in_namespaces(
    tools: list[dict[str, Any]], to_json: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the functions in the form of the responses route: those of a namespace together."""
    shown_tools: list[dict[str, Any]] = []
    by_namespace: dict[str, list[dict[str, Any]]] = {}
    for tool in tools:
        namespace, name = tool.get("namespace", (None, tool["function"]["name"]))
        function = to_json(tool["function"] | {"name": name})
        if namespace is None:
            shown_tools.append(function)
        elif namespace in by_namespace:
            by_namespace[namespace].append(function)
        else:
            by_namespace[namespace] = [function]
            shown_tools.append({"type": "namespace", "name": namespace, "tools": by_namespace[namespace]})
    return shown_tools


class SeenNames:
    """The names under which the model sees functions, by their namespaces and their own names."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._seen = {(namespace, name): seen for seen, (namespace, name) in namespaces.items()}

    def name(self, namespace: str | None, name: str) -> str:
        """Return the name of one function. A function that is not among the tools keeps its own name."""
        return self._seen.get((namespace or "", name), name)

    def choice(self, choice: Any) -> Any:
        """Return a choice that `read_response_choice` has read, with the names that the model sees."""
        if not isinstance(choice, dict):
            return choice
        if choice["type"] == "allowed_tools":
            return choice | {"names": [self.name(*name) for name in choice["names"]]}
        return choice | {"function": {"name": self.name(*choice["function"]["name"])}}

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message without its null fields, whose calls have the names that the model sees."""
        kept = {name: given for name, given in message.items() if given is not None}
        if "tool_calls" in kept:
            kept["tool_calls"] = [self._call(call) for call in kept["tool_calls"]]
        return kept

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        named = function | {"name": self.name(call["namespace"], function["name"])}
        return {"id": call["id"], "type": call["type"], "function": named}


def _own_names(tool: Any) -> list[str]:
    """Return the names of the functions of one tool, which has not been validated."""
    is_namespace = isinstance(tool, dict) and tool.get("type") == "namespace"
    functions = tool.get("tools") if is_namespace else [tool]
    if not isinstance(functions, list):
        return []
    named = [function.get("name") for function in functions if isinstance(function, dict)]
    return [name for name in named if isinstance(name, str)]


def _functions(tool: Any, where: str, own_names: Counter[str]) -> list[dict[str, Any]]:
    """Return the functions of one tool: of a namespace all, of a tool that is left out none."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and (hosted := _HOSTED.match(kind)):
        note_ignored(f"tools.{hosted[1]}")
        return []
    if kind != "namespace":
        return [_function(tool, where)]
    namespace, inner = tool.get("name"), tool.get("tools")
    if not isinstance(namespace, str) or not 1 <= len(namespace) <= MAX_NAME:
        message = f"{where}.name={quoted(namespace)} is not a name of 1 to {MAX_NAME} characters"
        raise invalid_field(f"{where}.name", message)
    if not isinstance(inner, list):
        raise invalid(f"{where}.tools", inner, "a list of functions")
    check_number_of_tools(inner, f"{where}.tools")
    functions = [_function(tool, f"{where}.tools[{i}]") for i, tool in enumerate(inner)]
    return [_in_namespace(tool, namespace, own_names) for tool in functions]


def _function(tool: Any, where: str) -> dict[str, Any]:
    """Return a function in the form of the chat route, which nests it one level deeper."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        raise unsupported(f"{where}.type", f"type={shown(kind)!r}; only functions are supported")
    return {"type": "function", "function": read_function(tool, where)}


def _in_namespace(tool: dict[str, Any], namespace: str, own_names: Counter[str]) -> dict[str, Any]:
    name = tool["function"]["name"]
    # Its end tells functions apart, so it is kept if the name would be too long.
    seen = name if own_names[name] == 1 else re.sub(r"[^a-zA-Z0-9_-]", "_", f"{namespace}__{name}")[-MAX_NAME:]
    return tool | {"function": tool["function"] | {"name": seen}, "namespace": (namespace, name)}


def _allowed_name(tool: dict[str, Any], where: str) -> Any:
    kind = tool.get("type")
    if isinstance(kind, str) and _HOSTED.match(kind):
        return None
    if kind != "function":
        raise unsupported(f"{where}.type", f"type={shown(kind)!r}; only functions can be allowed")
    return _qualified(tool, where)


def _qualified(tool: dict[str, Any], where: str) -> tuple[str | None, str]:
    """Return the names of a function's namespace, or None, and of the function."""
    name, namespace = tool.get("name"), tool.get("namespace")
    if not isinstance(name, str):
        raise invalid(f"{where}.name", name, "the name of a tool")
    if not isinstance(namespace, str | None):
        message = f"{where}.namespace={quoted(namespace)} is not the name of a namespace"
        raise invalid_field(f"{where}.namespace", message)
    return namespace, name

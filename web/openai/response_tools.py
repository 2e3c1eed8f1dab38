"""Read the tools of `POST /v1/responses`, which may be in namespaces, and the choice among them; pure functions."""

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from web.api.body import note_ignored
from web.http.api_errors import invalid, invalid_field, quoted
from web.openai.accepted_fields import present, shown, unsupported
from web.openai.tools_schema import (
    MAX_NAME,
    check_number_of_tools,
    read_allowed,
    read_chosen_word,
    read_function,
    read_tools,
)

#: The type of the tool that searches vector stores, which the door runs.
FILE_SEARCH = "file_search"
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

    A search for files is left as it is, with its path in the body: it has an effect only at a door with a database.
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
        allowed = read_allowed(value, "tool_choice", _allowed_name)
        searches = any(tool.get("type") == FILE_SEARCH for tool in value["tools"])
        return allowed | ({FILE_SEARCH: True} if searches else {})
    if value.get("type") == FILE_SEARCH:
        return {"type": FILE_SEARCH}
    if value.get("type") != "function":
        raise unsupported("tool_choice.type", f"type={shown(value.get('type'))!r}; only functions can be chosen")
    return {"type": "function", "function": {"name": _qualified(value, "tool_choice")}}


def namespaces_of(tools: list[dict[str, Any]] | None) -> Namespaces:
    """Return the functions in namespaces."""
    return {tool["function"]["name"]: list(tool["namespace"]) for tool in tools or () if "namespace" in tool}


def plain_tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Return the functions as the engine reads them."""
    return tools and [{"type": tool["type"], "function": tool["function"]} for tool in tools if "function" in tool]


def searches_in(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Return the searches for files among the tools."""
    return [tool for tool in tools or () if tool["type"] == FILE_SEARCH]


def allows_search(choice: Any) -> bool:
    """Return whether a choice that `read_response_choice` has read leaves the search for files."""
    if isinstance(choice, dict):
        return choice["type"] == FILE_SEARCH or FILE_SEARCH in choice
    return bool(choice != "none")


def choice_of_functions(choice: Any, tools: list[dict[str, Any]] | None) -> Any:
    """Return what a choice means for the functions: a search that it requires is no call of a function."""
    if not searches_in(tools):
        return choice
    if isinstance(choice, dict) and choice["type"] == FILE_SEARCH:
        return "auto"
    if isinstance(choice, dict) and choice.get(FILE_SEARCH) and not choice["names"]:
        return choice | {"mode": "auto"}
    return "auto" if choice == "required" and not plain_tools(tools) else choice


def requires_search(choice: Any, tools: list[dict[str, Any]] | None) -> bool:
    """Return whether an answer without a search is not what a choice asks for: a function could not be called instead.

    The choice is one that leaves the search.
    """
    if isinstance(choice, dict) and choice["type"] != FILE_SEARCH:
        return choice["mode"] == "required" and not choice["names"]
    return isinstance(choice, dict) or (choice == "required" and not plain_tools(tools))


def repeated_tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Return the tools as response objects repeat them; only their names if all of them are too long to be kept."""
    whole = _in_namespaces(tools or [], _repeated)
    if len(json.dumps(whole)) <= _MAX_REPEATED_TOOLS:
        return whole
    return _in_namespaces(tools or [], lambda function: _repeated({"name": function["name"]}), is_short=True)


def repeated_choice(choice: Any) -> Any:
    """Return a choice that `read_response_choice` has read, as response objects repeat it."""
    if choice is None:
        return "auto"
    if not isinstance(choice, dict):
        return choice
    if choice["type"] == FILE_SEARCH:
        return choice
    if choice["type"] == "allowed_tools":
        allowed = [{"type": "function"} | _named(name) for name in choice["names"]]
        allowed += [{"type": FILE_SEARCH}] if choice.get(FILE_SEARCH) else []
        return {"type": "allowed_tools", "mode": choice["mode"], "tools": allowed}
    return {"type": "function"} | _named(choice["function"]["name"])


def _named(name: tuple[str | None, str]) -> dict[str, str]:
    namespace, own = name
    return {"name": own} | ({"namespace": namespace} if namespace is not None else {})


def _repeated(function: dict[str, Any]) -> dict[str, Any]:
    fields = {name: function.get(name) for name in ("name", "description", "parameters", "strict")}
    return {"type": "function"} | fields


def _repeated_search(given: dict[str, Any], *, is_short: bool) -> dict[str, Any]:
    """Return a search for files, which was validated, whole or only with its stores."""
    return {name: each for name, each in present(given).items() if not is_short or name in ("type", "vector_store_ids")}


def _in_namespaces(
    tools: list[dict[str, Any]], to_json: Callable[[dict[str, Any]], dict[str, Any]], *, is_short: bool = False
) -> list[dict[str, Any]]:
    """Return the tools in the form of the responses route: the functions of a namespace together."""
    shown_tools: list[dict[str, Any]] = []
    by_namespace: dict[str, list[dict[str, Any]]] = {}
    for tool in tools:
        if tool["type"] == FILE_SEARCH:
            shown_tools.append(_repeated_search(tool["given"], is_short=is_short))
            continue
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
        if choice["type"] == FILE_SEARCH:
            return choice
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
    if kind == FILE_SEARCH:
        return [{"type": FILE_SEARCH, "given": tool, "where": where}]
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

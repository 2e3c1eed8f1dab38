"""Reads a payload's `tools`, `tool_choice` and `parallel_tool_calls`, in the form of OpenAI's API."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.jobs.outcomes import EndCode
from workers.engine.events import JobRejected

#: The most tools of a request. The door has the same number (web/openai/tools_schema.py).
MAX_TOOLS = 512
#: OpenAI's rule for the name of a tool.
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")


@dataclass(frozen=True)
class ToolRequest:
    """The tools of one request.

    `tools` are all tools, as the client sent them, and `callable_names` those that the answer may call. `required` says
    whether the answer must be a call, and `several` whether it may have more than one.
    """

    tools: tuple[Mapping[str, Any], ...]
    callable_names: frozenset[str]
    required: bool
    several: bool

    @property
    def callable_functions(self) -> list[Mapping[str, Any]]:
        functions = (tool["function"] for tool in self.tools)
        return [function for function in functions if function["name"] in self.callable_names]


def read_tools(payload: Mapping[str, Any]) -> ToolRequest | None:
    """Return the tools of a payload, or None if the answer may call none. Raises JobRejected."""
    tools, choice = payload.get("tools"), payload.get("tool_choice", "auto")
    if not tools or choice == "none":
        return None
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise rejected(f"tools is not a list of at most {MAX_TOOLS} functions")
    if payload.get("messages") is None:
        raise rejected("tools need messages: a prompt cannot show them")
    names = [_name(tool) for tool in tools]
    if len(set(names)) != len(names):
        raise rejected("two tools have the same name")
    named = _named(choice)
    if named is not None and named not in names:
        raise rejected(f"tool_choice names {named[:64]!r}, which is not one of the tools", "tool_choice")
    if named is None and choice not in ("auto", "required"):
        raise rejected(f"tool_choice={str(choice)[:60]!r} is neither auto, none, required nor a function")
    return ToolRequest(
        tuple(tools),
        frozenset(names if named is None else [named]),
        required=choice != "auto",
        several=payload.get("parallel_tool_calls") is not False and named is None,
    )


def _named(choice: Any) -> str | None:
    function = choice.get("function") if isinstance(choice, Mapping) else None
    return str(function.get("name")) if isinstance(function, Mapping) else None


def _name(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not _NAME.match(name):
        raise rejected(f"{str(name)[:64]!r} is no name of a tool: 1 to 64 letters, digits, _ and - are")
    return name


def rejected(why: str, param: str = "tools") -> JobRejected:
    return JobRejected(EndCode.INVALID_VALUE, why, param)

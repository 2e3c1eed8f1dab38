"""Read the tools of Anthropic's API, and the choice among them, as those of a chat; pure functions."""

import re
from typing import Any, Literal

from web.anthropic.fields import read_fields, read_text
from web.api.body import Body
from web.api.ignored import note_ignored
from web.api.response_format import check_keywords
from web.http.api_errors import invalid
from web.openai.accepted_fields import shown, unsupported
from web.openai.tools_schema import NAME, read_tools

_KNOWN = frozenset({"allowed_callers", "defer_loading", "description", "input_schema", "name", "strict", "type"})
_IGNORED = frozenset({"cache_control", "eager_input_streaming"})
#: The types of tools that Anthropic's servers run, with the date of their version. They are left out.
_HOSTED = re.compile(
    r"(code_execution|mcp_toolset|tool_search_tool_bm25|tool_search_tool_regex|web_fetch|web_search)(_[0-9]{8})?\Z"
)
#: Fields that are accepted only with these values, because they request the usual behavior.
_NEUTRAL: dict[str, Any] = {"allowed_callers": ["direct"], "defer_loading": False}


class MessageToolChoice(Body):
    """The field `tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def chat_fields(self, tools: list[dict[str, Any]] | None) -> dict[str, Any]:
        """Return the fields of the chat for this choice among these tools. Raises ApiError."""
        names = [tool["function"]["name"] for tool in tools or ()]
        if self.type == "tool" and self.name not in names:
            raise invalid("tool_choice.name", self.name, "the name of one of the tools")
        if self.type != "tool" and self.name is not None:
            raise invalid("tool_choice.name", self.name, f"allowed with the type {self.type!r}")
        if self.type == "any" and not tools:
            raise invalid("tool_choice.type", self.type, "allowed without tools")
        choice: Any = {"auto": "auto", "any": "required", "none": "none"}.get(self.type)
        if choice is None:
            choice = {"type": "function", "function": {"name": self.name}}
        return {"tool_choice": choice} | ({"parallel_tool_calls": False} if self.disable_parallel_tool_use else {})


def read_message_tools(value: Any) -> Any:
    """Return the tools in the form of the chat route. Raises ApiError, which names the place of the fault."""
    return read_tools(value, _tool)


def check_tool_schemas(tools: list[dict[str, Any]] | None) -> None:
    """Raise ApiError if a tool's schema has a keyword that our own engine cannot hold arguments to."""
    for i, tool in enumerate(tools or ()):
        check_keywords(tool["function"]["parameters"], f"tools[{i}].input_schema")


def _tool(tool: Any, where: str) -> list[dict[str, Any]]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and (hosted := _HOSTED.match(kind)):
        note_ignored(f"tools.{hosted[1]}")
        return []
    if kind not in (None, "custom"):
        raise unsupported(f"{where}.type", f"type={shown(kind)!r}; only tools that the client runs are supported")
    fields = read_fields(tool, _KNOWN, where, _IGNORED)
    for neutral, accepted in _NEUTRAL.items():
        if neutral in fields and fields[neutral] != accepted:
            raise unsupported(f"{where}.{neutral}", f"only {accepted!r} is accepted")
    name, schema, strict = fields.get("name"), fields.get("input_schema"), fields.get("strict")
    if not isinstance(name, str) or not NAME.match(name):
        raise invalid(f"{where}.name", name, "a name of 1 to 64 letters, digits, _ and -")
    if not isinstance(schema, dict):
        raise invalid(f"{where}.input_schema", schema, "an object")
    if schema.get("type", "object") != "object":
        raise invalid(f"{where}.input_schema.type", schema["type"], "'object'")
    if not isinstance(strict, bool | None):
        raise invalid(f"{where}.strict", strict, "true or false")
    function: dict[str, Any] = {"name": name, "parameters": schema}
    if "description" in fields:
        function["description"] = read_text(fields["description"], f"{where}.description")
    return [{"type": "function", "function": function | ({} if strict is None else {"strict": strict})}]

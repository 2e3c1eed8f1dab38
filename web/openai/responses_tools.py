"""Validate the tools of `POST /v1/responses`, and its input items with calls and their results; pure functions."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from web.http.api_errors import FieldError, invalid_value, quoted
from web.openai.accepted_fields import shown, unsupported
from web.openai.responses_schema import ResponsesBody, input_message, input_text
from web.openai.tools_schema import ChatMessages, ToolChoice, read_choice, read_function, read_tools, tool_fields


def _as_messages(value: Any) -> Any:
    """Convert the input to messages. Calls become part of the message of the assistant that they follow."""
    if not isinstance(value, list):
        return input_text(value)
    messages: list[Any] = []
    for i, item in enumerate(value):
        kind = item.get("type") if isinstance(item, dict) else None
        if kind == "function_call":
            _add_call(messages, item, f"input[{i}]")
        elif kind == "function_call_output":
            messages.append(_result(item, f"input[{i}]"))
        else:
            messages.append(input_message(item, f"input[{i}]"))
    return messages


def _add_call(messages: list[Any], item: dict[str, Any], where: str) -> None:
    given = {name: item.get(name) for name in ("call_id", "name", "arguments")}
    for name, text in given.items():
        if not isinstance(text, str):
            raise invalid_value([FieldError(f"{where}.{name}", f"{where}.{name}={quoted(text)} is not a text")])
    function = {"name": given["name"], "arguments": given["arguments"]}
    call = {"id": given["call_id"], "type": "function", "function": function}
    last = messages[-1] if messages else None
    if isinstance(last, dict) and last.get("role") == "assistant":
        messages[-1] = last | {"tool_calls": [*last.get("tool_calls", ()), call]}
    else:
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})


def _result(item: dict[str, Any], where: str) -> Any:
    call_id = item.get("call_id")
    if not isinstance(call_id, str):
        raise invalid_value([FieldError(f"{where}.call_id", f"{where}.call_id={quoted(call_id)} is not a text")])
    plain = input_message({"role": "assistant", "content": item.get("output")}, where)
    return plain | {"role": "tool", "tool_call_id": call_id}


def _read_tools(value: Any) -> Any:
    return read_tools(value, _nested)


def _nested(tool: Any, where: str) -> dict[str, Any]:
    """Return a tool in the form of the chat route, which nests the function one level deeper."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        raise unsupported(f"{where}.type", f"type={shown(kind)!r}; only functions are supported")
    return {"type": "function", "function": read_function(tool, where)}


def _read_choice(value: Any) -> Any:
    return read_choice(value, nested=False)


class ResponsesWithTools(ResponsesBody):
    """The body of `POST /v1/responses`: a request in which the answer may call tools."""

    input: Annotated[  # type: ignore[assignment] # wider
        ChatMessages,
        Field(description="a text, or a list of messages, calls of functions and their outputs"),
        BeforeValidator(_as_messages, json_schema_input_type=str | list[dict[str, Any]]),
    ]
    tools: Annotated[
        list[dict[str, Any]] | None,
        Field(description="functions that the answer may call"),
        BeforeValidator(_read_tools, json_schema_input_type=list[dict[str, Any]] | None),
    ] = None
    tool_choice: Annotated[
        ToolChoice | None,
        Field(description="auto, none, required, or a function"),
        BeforeValidator(_read_choice, json_schema_input_type=str | dict[str, Any] | None),
    ] = None
    parallel_tool_calls: bool | None = Field(None, description="false: at most one call")

    @model_validator(mode="after")
    def _check_choice(self) -> "ResponsesWithTools":
        self.tool_fields()
        return self

    def tool_fields(self) -> dict[str, Any]:
        """Return the fields of the payload for the tools; none if the answer may call no tool."""
        return tool_fields(self.tools, self.tool_choice, self.parallel_tool_calls)

    def payload(self) -> dict[str, Any]:
        """Return the payload that the engine reads."""
        payload = super().payload()
        messages = [
            {name: given for name, given in message.items() if given is not None} for message in payload["messages"]
        ]
        return payload | {"messages": messages} | self.tool_fields()

    def form(self) -> dict[str, Any]:
        """Return the fields of the request that response objects repeat, and whether the answer may call tools."""
        return super().form() | ({"parts": True} if self.tool_fields() else {})

"""Validate what `POST /v1/responses` takes for tools and for reasoning, and its input items; pure functions."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from web.api.body import Body
from web.api.ignored import ignored_as
from web.http.api_errors import FieldError, invalid_value, quoted
from web.http.callback_url import CallbackUrl
from web.openai.accepted_fields import shown, unsupported
from web.openai.chat_schema import join_parts
from web.openai.response_functions import (
    SeenNames,
    namespaces_of,
    plain_tools,
    read_response_choice,
    read_response_tools,
    repeated_choice,
    repeated_tools,
)
from web.openai.responses_schema import ResponsesBody, input_message, input_text
from web.openai.tools_schema import MAX_TOOLS, ChatMessages, ReasoningEffort, ToolChoice, tool_fields

#: Between two texts of reasoning that become one.
_BETWEEN = "\n\n"


def _as_messages(value: Any) -> Any:
    """Convert the input to messages. Calls become part of the message of the assistant that they follow.

    Reasoning becomes part of the message that it precedes, if that is the assistant's.
    """
    if not isinstance(value, list):
        return input_text(value)
    messages: list[Any] = []
    thought = ""
    for i, item in enumerate(value):
        kind = item.get("type") if isinstance(item, dict) else None
        if kind == "function_call":
            _add_call(messages, item, f"input[{i}]")
        elif kind == "function_call_output":
            messages.append(_result(item, f"input[{i}]"))
        elif kind == "reasoning":
            thought += _reasoning_text(item)
            continue
        else:
            messages.append(input_message(item, f"input[{i}]"))
        if thought:
            _add_reasoning(messages, thought)
            thought = ""
    return messages


def _reasoning_text(item: dict[str, Any]) -> str:
    """Return the text of an item; "" if it has none, because another server has encrypted or summarized it."""
    parts = item.get("content")
    texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return "".join(text for text in texts if isinstance(text, str))


def _add_reasoning(messages: list[Any], thought: str) -> None:
    last = messages[-1]
    if isinstance(last, dict) and last.get("role") == "assistant":
        before = last.get("reasoning_content")
        messages[-1] = last | {"reasoning_content": f"{before}{_BETWEEN}{thought}" if before else thought}


def _add_call(messages: list[Any], item: dict[str, Any], where: str) -> None:
    given = {name: item.get(name) for name in ("call_id", "name", "arguments")}
    for name, text in given.items():
        if not isinstance(text, str):
            raise invalid_value([FieldError(f"{where}.{name}", f"{where}.{name}={quoted(text)} is not a text")])
    function = {"name": given["name"], "arguments": given["arguments"]}
    call = {"id": given["call_id"], "type": "function", "function": function, "namespace": item.get("namespace")}
    last = messages[-1] if messages else None
    if not isinstance(last, dict) or last.get("role") != "assistant":
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
    elif "tool_calls" not in last:
        # The message may be an object of the client's body, which stays as it is.
        messages[-1] = last | {"tool_calls": [call]}
    elif len(last["tool_calls"]) >= MAX_TOOLS:
        raise invalid_value([FieldError(where, f"{where} is one of more than {MAX_TOOLS} calls of one message")])
    else:
        last["tool_calls"].append(call)


def _result(item: dict[str, Any], where: str) -> Any:
    call_id = item.get("call_id")
    if not isinstance(call_id, str):
        raise invalid_value([FieldError(f"{where}.call_id", f"{where}.call_id={quoted(call_id)} is not a text")])
    return {"role": "tool", "tool_call_id": call_id, "content": _output_text(item.get("output"), f"{where}.output")}


def _output_text(output: Any, where: str) -> str:
    """Return the result of a call as one text. Raises ApiError, which names it by its path in the body, `where`."""
    text = join_parts(output, where) if isinstance(output, list) else "" if output is None else output
    if not isinstance(text, str):
        raise invalid_value([FieldError(where, f"{where}={quoted(output)} is neither a text nor a list of texts")])
    if "\x00" in text:
        raise invalid_value([FieldError(where, f"{where} contains a NUL character (\\u0000), which is not allowed")])
    return text


Summary = Literal["auto", "concise", "detailed"]


class Reasoning(Body):
    """How the model reasons. Its own text is returned in any case, so no summary is made of it."""

    effort: ReasoningEffort | None = None
    summary: Annotated[Summary | None, ignored_as("reasoning.summary")] = None
    generate_summary: Annotated[Summary | None, ignored_as("reasoning.generate_summary")] = None
    #: Which earlier reasoning the model sees, which is up to its template here.
    context: Annotated[Literal["auto", "current_turn", "all_turns"] | None, ignored_as("reasoning.context")] = None


def _read_reasoning(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    for name, given in value.items():
        if name not in Reasoning.model_fields and given is not None:
            raise unsupported(f"reasoning.{shown(name)}", f"{shown(name)}={shown(given)!r} was requested")
    return {name: given for name, given in value.items() if name in Reasoning.model_fields}


class ResponsesWithTools(ResponsesBody):
    """The body of `POST /v1/responses`: a request in which the answer may reason and call tools."""

    input: Annotated[  # type: ignore[assignment] # wider
        ChatMessages,
        Field(description="a text, or a list of messages, calls of functions and their outputs"),
        BeforeValidator(_as_messages, json_schema_input_type=str | list[dict[str, Any]]),
    ]
    tools: Annotated[
        list[dict[str, Any]] | None,
        Field(description="functions that the answer may call"),
        BeforeValidator(read_response_tools, json_schema_input_type=list[dict[str, Any]] | None),
    ] = None
    tool_choice: Annotated[
        ToolChoice | None,
        Field(description="auto, none, required, a function, or allowed_tools"),
        BeforeValidator(read_response_choice, json_schema_input_type=str | dict[str, Any] | None),
    ] = None
    parallel_tool_calls: bool | None = Field(None, description="false: at most one call")
    reasoning: Annotated[
        Reasoning | None,
        Field(description="effort: a variable of the model's chat template"),
        BeforeValidator(_read_reasoning, json_schema_input_type=Reasoning | None),
    ] = None

    callback_url: CallbackUrl | None = None

    @model_validator(mode="after")
    def _check_callback(self) -> "ResponsesWithTools":
        if self.callback_url is not None and not self.background:
            message = "callback_url is only valid with background=true: otherwise the answer itself tells the end"
            raise invalid_value([FieldError("callback_url", message)])
        return self

    @model_validator(mode="after")
    def _check_choice(self) -> "ResponsesWithTools":
        self.tool_fields()
        return self

    def tool_fields(self) -> dict[str, Any]:
        """Return the fields of the payload for the tools; none if the answer may call no tool."""
        return tool_fields(plain_tools(self.tools), self._seen.choice(self.tool_choice), self.parallel_tool_calls)

    def payload(self) -> dict[str, Any]:
        """Return the payload that the engine reads."""
        payload = super().payload()
        messages = [self._seen.message(message) for message in payload["messages"]]
        effort = {} if self._effort is None else {"reasoning_effort": self._effort}
        return payload | {"messages": messages, "parts": True} | self.tool_fields() | effort

    def form(self) -> dict[str, Any]:
        """Return the fields of the request that response objects repeat, and whether the answer may call tools."""
        calls = bool(self.tool_fields())
        namespaces = namespaces_of(self.tools) if calls else {}
        form = {"parts": True, "calls": calls, "effort": self._effort}
        return super().form() | form | self._tools_form() | ({"namespaces": namespaces} if namespaces else {})

    def _tools_form(self) -> dict[str, Any]:
        if not self.tools:
            return {}
        tools, choice = repeated_tools(self.tools), repeated_choice(self.tool_choice)
        return {"tools": tools, "tool_choice": choice, "parallel": self.parallel_tool_calls is not False}

    @property
    def _seen(self) -> SeenNames:
        return SeenNames(namespaces_of(self.tools))

    @property
    def _effort(self) -> str | None:
        return self.reasoning.effort if self.reasoning else None

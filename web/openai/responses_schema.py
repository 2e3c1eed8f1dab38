"""Validate the body of `POST /v1/responses`, with the rules of web/openai/accepted_fields.py; pure functions."""

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from web.api.body import MAX_FIELDS, Body, NulFreeText, Prompt, ignored_as, note_ignored, require_text
from web.api.file_search import FileSearch
from web.api.request_schema import MAX_LOGPROBS, MAX_MESSAGES, MAX_METADATA, MAX_TOKENS, Metadata, build_payload
from web.api.response_format import ResponseFormat, check_keywords
from web.api.retrieval_field import Retrieval
from web.http.api_errors import invalid, invalid_field, quoted
from web.http.callback_url import CallbackUrl
from web.openai.accepted_fields import VERBOSITIES, shown, unsupported
from web.openai.chat_messages import MAX_TOOLS, ChatMessages, join_parts, normalize_message
from web.openai.chat_schema import OPENAI_SIZES, OpenAISampling, ReasoningEffort
from web.openai.file_search_schema import read_file_search
from web.openai.response_tools import (
    FILE_SEARCH,
    SeenNames,
    allows_search,
    choice_of_functions,
    namespaces_of,
    plain_tools,
    read_response_choice,
    read_response_tools,
    repeated_choice,
    repeated_tools,
    requires_search,
    searches_in,
)
from web.openai.tools_schema import ToolChoice, tool_fields

_SIZES = OPENAI_SIZES | {"input": MAX_MESSAGES, "metadata": MAX_METADATA}
_SIZES |= dict.fromkeys(("include", "reasoning", "text"), MAX_FIELDS)
#: The values of `include` that ask for something, the second one only with the tool `file_search`.
LOGPROBS, RESULTS = "message.output_text.logprobs", "file_search_call.results"
#: The values of `include` that are ignored, because no answer and no input here has the items and parts that they name.
_NOT_INCLUDED = frozenset(
    {
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
#: The longest schema, as JSON, that response objects repeat. It is kept with the job, and read whenever the job is.
_MAX_REPEATED_SCHEMA = 8_192
#: Fields of an input item that are ignored. They are sent by clients whose input repeats an item of a response.
_ITEM_IGNORED = frozenset({"id", "phase", "status", "type"})
#: Between two texts of reasoning that become one.
_BETWEEN = "\n\n"


def check_include(name: Any) -> bool:
    """Return whether a name in `include` asks for something; raise ApiError(unsupported_parameter) for an unknown one.

    Clients ask for encrypted reasoning, for example, to repeat it in their next request. Answers here contain none.
    """
    if name in (LOGPROBS, RESULTS):
        return True
    if not isinstance(name, str) or name not in _NOT_INCLUDED:
        message = f"{shown(name)!r} was requested, and only {LOGPROBS!r} and {RESULTS!r} are supported"
        raise unsupported("include", message)
    note_ignored("include")
    return False


def _check_includes(value: Any) -> Any:
    return [name for name in value if check_include(name)] if isinstance(value, list) else value


def _as_messages(value: Any) -> Any:
    """Convert the input to messages. Calls become part of the message of the assistant that they follow.

    Reasoning becomes part of the message that it precedes, if that is the assistant's.
    """
    if not isinstance(value, list):
        return [{"role": "user", "content": require_text(value)}] if isinstance(value, str) else value
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
        elif kind == "file_search_call":
            # Its passages were for the answer that follows.
            continue
        else:
            messages.append(_message(item, f"input[{i}]"))
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
            raise invalid(f"{where}.{name}", text, "a text")
    function = {"name": given["name"], "arguments": given["arguments"]}
    call = {"id": given["call_id"], "type": "function", "function": function, "namespace": item.get("namespace")}
    last = messages[-1] if messages else None
    if not isinstance(last, dict) or last.get("role") != "assistant":
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
    elif "tool_calls" not in last:
        # The message may be an object of the client's body, which stays as it is.
        messages[-1] = last | {"tool_calls": [call]}
    elif len(last["tool_calls"]) >= MAX_TOOLS:
        raise invalid_field(where, f"{where} is one of more than {MAX_TOOLS} calls of one message")
    else:
        last["tool_calls"].append(call)


def _result(item: dict[str, Any], where: str) -> Any:
    call_id = item.get("call_id")
    if not isinstance(call_id, str):
        raise invalid(f"{where}.call_id", call_id, "a text")
    return {"role": "tool", "tool_call_id": call_id, "content": _output_text(item.get("output"), f"{where}.output")}


def _output_text(output: Any, where: str) -> str:
    """Return the result of a call as one text. Raises ApiError, which names it by its path in the body, `where`."""
    text = join_parts(output, where) if isinstance(output, list) else "" if output is None else output
    if not isinstance(text, str):
        raise invalid_field(where, f"{where}={quoted(output)} is neither a text nor a list of texts")
    if "\x00" in text:
        raise invalid_field(where, f"{where} contains a NUL character (\\u0000), which is not allowed")
    return text


def _message(item: Any, where: str) -> Any:
    """Convert an input item to a message. Raises ApiError, which names the item by its path in the body, `where`."""
    if not isinstance(item, dict):
        return item
    kind = item.get("type") or "message"
    if kind != "message":
        raise unsupported(f"{where}.type", f"type={shown(kind)!r}; only messages are supported")
    return normalize_message({name: given for name, given in item.items() if name not in _ITEM_IGNORED}, where)


def _as_response_format(text: Any) -> Any:
    """Convert `text.format` to the response_format of the other routes, which nests the schema one level deeper."""
    if not isinstance(text, dict):
        return text
    for name, given in text.items():
        if name == "verbosity" and given in VERBOSITIES:
            note_ignored("text.verbosity")
        elif name != "format" and given is not None:
            raise unsupported(f"text.{shown(name)}", f"{shown(name)}={shown(given)!r} was requested")
    given = text.get("format") or {"type": "text"}
    kind = given.get("type") if isinstance(given, dict) else given
    if kind not in ("text", "json_object", "json_schema"):
        raise unsupported("text.format", f"format={shown(given)!r} was requested")
    if kind != "json_schema":
        return {"type": kind}
    if isinstance(given.get("schema"), dict):
        check_keywords(given["schema"], "text.format")
    return {"type": kind, "json_schema": {name: part for name, part in given.items() if name != "type"}}


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


class ResponsesWithTools(OpenAISampling):
    """The body of `POST /v1/responses`: a request in which the answer may reason and call tools."""

    sizes = _SIZES
    message_list = "input"
    #: It bounds the calls of tools that OpenAI's servers run.
    more_ignored = frozenset({"max_tool_calls"})
    more_neutral: ClassVar[dict[str, tuple[Any, ...]]] = {"context_management": ([],), "truncation": ("disabled",)}

    input: Annotated[
        ChatMessages,
        Field(description="a text, or a list of messages, calls of functions and their outputs"),
        BeforeValidator(
            _as_messages,
            json_schema_input_type=Prompt
            | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_MESSAGES)],
        ),
    ]
    instructions: NulFreeText | None = Field(None, description="a system message that precedes the input")
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    metadata: Metadata | None = None
    text: Annotated[
        ResponseFormat | None,
        Field(description="format: text, json_object or json_schema"),
        BeforeValidator(_as_response_format, json_schema_input_type=dict[str, Any] | None),
    ] = None
    include: Annotated[list[str], BeforeValidator(_check_includes)] = Field(
        [], description=f"{LOGPROBS}, and {RESULTS} with the tool file_search"
    )
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="how many alternatives to return for each token; requires include"
    )
    background: bool = Field(default=False, description="return at once; the job does not depend on the connection")
    previous_response_id: Annotated[NulFreeText, Field(max_length=200)] | None = Field(
        None, description="the response whose conversation the input continues; its instructions are not repeated"
    )
    #: In OpenAI's API, the default is true.
    store: bool = Field(default=True, description="false: the response cannot be read or continued later")
    tools: Annotated[
        list[dict[str, Any]] | None,
        Field(description="functions that the answer may call, and file_search, which searches vector stores first"),
        BeforeValidator(read_response_tools, json_schema_input_type=list[dict[str, Any]] | None),
    ] = None
    tool_choice: Annotated[
        ToolChoice | None,
        Field(description="auto, none, required, a function, file_search, or allowed_tools"),
        BeforeValidator(read_response_choice, json_schema_input_type=str | dict[str, Any] | None),
    ] = None
    parallel_tool_calls: bool | None = Field(None, description="false: at most one call")
    reasoning: Annotated[
        Reasoning | None,
        Field(description="effort: a variable of the model's chat template"),
        BeforeValidator(_read_reasoning, json_schema_input_type=Reasoning | None),
    ] = None
    retrieval: Retrieval | None = Field(None, description="a collection from which passages go into the prompt")
    callback_url: CallbackUrl | None = None

    @model_validator(mode="after")
    def _require_include(self) -> "ResponsesWithTools":
        if self.top_logprobs and LOGPROBS not in self.include:
            raise ValueError(f"top_logprobs={self.top_logprobs} requires include to contain {LOGPROBS}")
        return self

    @model_validator(mode="after")
    def _require_store(self) -> "ResponsesWithTools":
        if self.background and not self.store:
            raise ValueError("store=false is not valid with background=true, whose response is read later")
        return self

    @model_validator(mode="after")
    def _check_callback(self) -> "ResponsesWithTools":
        if self.callback_url is not None and not self.background:
            message = "callback_url is only valid with background=true: otherwise the answer itself tells the end"
            raise invalid_field("callback_url", message)
        return self

    @model_validator(mode="after")
    def _check_choice(self) -> "ResponsesWithTools":
        self.tool_fields()
        return self

    def tool_fields(self) -> dict[str, Any]:
        """Return the fields of the payload for the tools; none if the answer may call no tool."""
        choice = choice_of_functions(self.tool_choice, self.tools)
        return tool_fields(plain_tools(self.tools), self._seen.choice(choice), self.parallel_tool_calls)

    def file_search(self) -> FileSearch | None:
        """Return the search for files that the request asks for; None if it asks for none, or its choice excludes it.

        Raises ApiError, which names what is wrong with it.
        """
        searches = searches_in(self.tools)
        if not searches:
            return None
        where = searches[-1]["where"]
        if len(searches) > 1:
            raise invalid_field(where, f"{where}.type={FILE_SEARCH!r}: only one of the tools may search for files")
        if self.retrieval is not None:
            message = f"retrieval and {where} exclude each other: both put passages into the prompt"
            raise invalid_field("retrieval", message)
        required = allows_search(self.tool_choice) and requires_search(self.tool_choice, self.tools)
        found = read_file_search(searches[0]["given"], where, shows_results=RESULTS in self.include, required=required)
        return found if allows_search(self.tool_choice) else None

    def without_file_search(self) -> "ResponsesWithTools":
        """Return the request without the search for files, as a door without a database answers it. Raises ApiError."""
        if not searches_in(self.tools):
            return self
        if self.tool_choice == {"type": FILE_SEARCH}:
            raise unsupported("tool_choice.type", f"type={FILE_SEARCH!r}; only functions can be chosen")
        functions = [tool for tool in self.tools or () if tool["type"] != FILE_SEARCH]
        body = self.model_copy(update={"tools": functions})
        body.tool_fields()
        body._ignored = (*self._ignored, f"tools.{FILE_SEARCH}")  # noqa: SLF001 - the body is of this class
        return body

    @property
    def ignored(self) -> tuple[str, ...]:
        """The names of the fields that were accepted without effect."""
        is_vain = RESULTS in self.include and not searches_in(self.tools)
        return tuple(dict.fromkeys((*self._ignored, "include"))) if is_vain else self._ignored

    @property
    def _alternatives(self) -> int | None:
        """How many alternatives to return for each token; None if no logprobs were requested."""
        return (self.top_logprobs or 0) if LOGPROBS in self.include else None

    @property
    def _seen(self) -> SeenNames:
        return SeenNames(namespaces_of(self.tools))

    @property
    def _effort(self) -> str | None:
        return self.reasoning.effort if self.reasoning else None

    def payload(self) -> dict[str, Any]:
        """Return the payload that the engine reads."""
        messages = [self._seen.message(message.model_dump()) for message in self.input]
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        wanted = self.answer_format(self.text)
        payload = build_payload(self, {"messages": [*system, *messages], "parts": True}, wanted, self._alternatives)
        effort = {} if self._effort is None else {"reasoning_effort": self._effort}
        return payload | self.tool_fields() | effort

    def form(self) -> dict[str, Any]:
        """Return the fields of the request that response objects repeat, and what reading the answer needs."""
        schema = self.text.json_schema if self.text else None
        calls = bool(self.tool_fields())
        namespaces = namespaces_of(self.tools) if calls else {}
        return (
            {
                "api": "responses",
                "background": self.background,
                "temperature": self.temperature,
                "top_p": self.top_p,
                "max_output_tokens": self.max_output_tokens,
                "format": self.text.type if self.text else "text",
                "top_logprobs": self._alternatives,
                "previous": self.previous_response_id,
                "store": self.store,
                "instructed": bool(self.instructions),
            }
            | ({"schema": schema} if schema and len(json.dumps(schema)) <= _MAX_REPEATED_SCHEMA else {})
            | {"parts": True, "calls": calls, "effort": self._effort}
            | self._tools_form()
            | ({"namespaces": namespaces} if namespaces else {})
        )

    def _tools_form(self) -> dict[str, Any]:
        if not self.tools:
            return {}
        tools, choice = repeated_tools(self.tools), repeated_choice(self.tool_choice)
        return {"tools": tools, "tool_choice": choice, "parallel": self.parallel_tool_calls is not False}

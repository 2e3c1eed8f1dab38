"""Validate the bodies of Anthropic's routes, and convert them to the bodies of chats; pure functions."""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from web.anthropic.blocks import Conversation, read_conversation, read_fields, read_system, read_text
from web.api.body import MAX_FIELDS, Body, NotesIgnored, NulFreeText, check_sizes, ignored_as, note_ignored, validated
from web.api.request_schema import MAX_MESSAGES, MAX_STOPS, MAX_TOKENS, AnswerFields, Stops
from web.api.response_format import check_keywords
from web.api.retrieval_field import Retrieval
from web.http.api_errors import ApiError, invalid, quoted
from web.openai.accepted_fields import present, shown, unsupported
from web.openai.chat_schema import ChatWithTools
from web.openai.forwarded_schema import ForwardedBody, read_forwarded
from web.openai.tools_schema import NAME, read_tools

_Id = Annotated[NulFreeText, Field(min_length=1, max_length=256)]
_Name = Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]


class TextBlock(Body):
    """A text."""

    type: Literal["text"]
    text: NulFreeText


class ToolUseBlock(Body):
    """A call of a tool, in a message of the assistant."""

    type: Literal["tool_use"]
    id: _Id
    name: _Name
    input: dict[str, Any]


class ToolResultBlock(Body):
    """The result of a call, in a message of the user."""

    type: Literal["tool_result"]
    tool_use_id: _Id
    content: NulFreeText = Field("", description="a text; blocks of text are accepted too")
    is_error: bool = False


class InputMessage(Body):
    """A message of the user, or an earlier answer. Images and documents are blocks too, but only for upstreams."""

    role: Literal["user", "assistant"]
    content: NulFreeText | list[TextBlock | ToolUseBlock | ToolResultBlock]


class InputTool(Body):
    """A tool that the client runs."""

    name: _Name
    input_schema: dict[str, Any]
    description: NulFreeText | None = None
    strict: bool | None = None


InputMessages = Annotated[list[InputMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
InputSystem = NulFreeText | list[TextBlock]


#: A request has its whole conversation, and nothing is removed from it. So only what asks for no more is accepted.
_THINKING = "clear_thinking_20251015"
#: The values of `keep` with which no reasoning is removed.
_KEEPS_ALL: tuple[Any, ...] = ("all", {"type": "all"})


def check_context_management(value: Any) -> None:
    """Raise ApiError unless the edits of a conversation leave it as it is."""
    edits = read_fields(value, frozenset({"edits"}), "context_management").get("edits", [])
    if not isinstance(edits, list):
        raise invalid("context_management.edits", edits, "a list of edits")
    for i, edit in enumerate(edits):
        where = f"context_management.edits[{i}]"
        kind = edit.get("type") if isinstance(edit, dict) else None
        if kind != _THINKING:
            raise unsupported(f"{where}.type", f"type={shown(kind)!r}; nothing is removed from a conversation")
        kept = read_fields(edit, frozenset({"keep", "type"}), where).get("keep")
        if kept not in _KEEPS_ALL:
            raise unsupported(f"{where}.keep", f"keep={quoted(kept)}; only 'all' is accepted, which removes nothing")


def check_thread(value: Any) -> None:
    """Raise ApiError unless a thread begins with this request: no thread is kept, so none can be continued.

    Anthropic's packages recognize a lost thread by the error's code, and send the whole conversation.
    """
    fields = read_fields(value, frozenset({"previous_message_id", "type"}), "thread")
    if fields.get("type") == "continue":
        previous = quoted(fields.get("previous_message_id"))
        message = (
            f"thread.previous_message_id={previous} was not found: no conversation is kept, so send all its messages"
        )
        details = {"error_code": "thread_not_found"}
        raise ApiError("thread_not_found", message, param="thread.previous_message_id", details=details)
    if fields.get("type") != "create":
        raise invalid("thread.type", fields.get("type"), "'create' or 'continue'")


_TOOL_FIELDS = frozenset({"allowed_callers", "defer_loading", "description", "input_schema", "name", "strict", "type"})
_IGNORED_IN_TOOLS = frozenset({"cache_control", "eager_input_streaming"})
#: The types of tools that Anthropic's servers run, with the date of their version. They are left out.
_HOSTED = re.compile(
    r"(code_execution|mcp_toolset|tool_search_tool_bm25|tool_search_tool_regex|web_fetch|web_search)(_[0-9]{8})?\Z"
)
#: Fields that are accepted only with these values, because they request the usual behavior.
_NEUTRAL_IN_TOOLS: dict[str, Any] = {"allowed_callers": ["direct"], "defer_loading": False}


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
    fields = read_fields(tool, _TOOL_FIELDS, where, _IGNORED_IN_TOOLS)
    for neutral, accepted in _NEUTRAL_IN_TOOLS.items():
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


_SIZES = {
    "messages": MAX_MESSAGES,
    "output_config": MAX_FIELDS,
    "stop_sequences": MAX_STOPS,
    "system": MAX_MESSAGES,
    "thinking": MAX_FIELDS,
    "tool_choice": MAX_FIELDS,
}
#: Fields that cannot change an answer here: they are accepted and ignored.
_IGNORED = frozenset(
    {
        "cache_control",
        "diagnostics",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)
#: Fields that are accepted only with these values, because they request the usual behavior.
_NEUTRAL: dict[str, tuple[Any, ...]] = {"mcp_servers": ([],)}
#: Fields that are accepted if these functions raise no error, and then ignored.
_CHECKED: dict[str, Callable[[Any], None]] = {
    "context_management": check_context_management,
    "thread": check_thread,
}
#: The fields that a chat has too, with the same names.
_OF_CHATS = {*AnswerFields.model_fields, "max_tokens", "retrieval", "seed", "stream", "temperature", "top_k", "top_p"}
#: The efforts that the chat route does not know by the same name.
_EFFORTS = {"max": "xhigh"}


class Thinking(Body):
    """The field `thinking`. The model's reasoning is always a block of the answer, if it reasons."""

    type: Literal["adaptive", "between_tools", "disabled", "enabled"]
    budget_tokens: Annotated[int | None, ignored_as("thinking.budget_tokens")] = Field(
        None, ge=1, description="accepted, without effect"
    )
    display: Literal["summarized"] | None = None


class OutputConfig(Body):
    """The field `output_config`: how much the model should reason, and the schema of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_format(self) -> "OutputConfig":
        if self.format is None:
            return self
        if self.format.get("type") != "json_schema":
            raise unsupported("output_config.format.type", f"type={shown(self.format.get('type'))!r} was requested")
        if not isinstance(self.format.get("schema"), dict):
            raise invalid("output_config.format.schema", self.format.get("schema"), "an object")
        return self

    def chat_fields(self) -> dict[str, Any]:
        """Return the fields of the chat."""
        fields: dict[str, Any] = {}
        if self.effort is not None:
            fields["reasoning_effort"] = _EFFORTS.get(self.effort, self.effort)
        if self.format is not None:
            schema = {"name": "answer", "schema": self.format["schema"]}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        return fields


def _objects(value: Any) -> Any:
    """Return an object without its null fields; any other value is left as it is."""
    return present(value) if isinstance(value, dict) else value


class CountTokensBody(NotesIgnored, Body):
    """The body of `POST /v1/messages/count_tokens`: the parts of the prompt."""

    messages: Annotated[
        Conversation,
        Field(description="messages of the user and the assistant; their content is a text or a list of blocks"),
        BeforeValidator(read_conversation, json_schema_input_type=InputMessages),
    ]
    model: Annotated[NulFreeText, Field(min_length=1, max_length=200)] | None = None
    system: Annotated[
        str | None,
        Field(description="a text, or a list of blocks of text"),
        BeforeValidator(read_system, json_schema_input_type=InputSystem | None),
    ] = None
    tools: Annotated[
        list[dict[str, Any]] | None,
        Field(description="tools that the answer may call, with name, description and input_schema"),
        BeforeValidator(read_message_tools, json_schema_input_type=list[InputTool] | None),
    ] = None
    tool_choice: Annotated[MessageToolChoice | None, BeforeValidator(_objects)] = None
    thinking: Annotated[Thinking | None, BeforeValidator(_objects)] = None
    output_config: Annotated[OutputConfig | None, BeforeValidator(_objects)] = None

    @model_validator(mode="before")
    @classmethod
    def _keep_supported_fields(cls, value: Any) -> Any:
        check_sizes(value, _SIZES, messages="messages")
        return _supported(value, frozenset(cls.model_fields)) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _check_choice(self) -> "CountTokensBody":
        self._choice()
        return self

    def own_chat(self) -> ChatWithTools:
        """Return the body as a chat that our own engine answers. Raises ApiError."""
        if self.messages.attachment:
            raise unsupported(self.messages.attachment, "the model reads text only, no images and documents")
        check_tool_schemas(self.tools)
        if self.output_config is not None and self.output_config.format is not None:
            check_keywords(self.output_config.format["schema"], "output_config.format.schema")
        chat = self._chat()
        if self.thinking is not None:
            # The variable that turns reasoning on and off in the templates of several families.
            chat["chat_template_kwargs"] = {"enable_thinking": self.thinking.type != "disabled"}
        return validated(ChatWithTools, chat)

    def forwarded_chat(self) -> ForwardedBody:
        """Return the body as a chat that is passed on to an upstream. Raises ApiError.

        Earlier reasoning is left out, because some servers refuse messages with a field for it.
        """
        chat = self._chat()
        chat["messages"] = [
            {name: given for name, given in message.items() if name != "reasoning_content"}
            for message in chat["messages"]
        ]
        return read_forwarded(chat, chat=True)

    def _choice(self) -> dict[str, Any]:
        return self.tool_choice.chat_fields(self.tools) if self.tool_choice is not None else {}

    def _chat(self) -> dict[str, Any]:
        chat = self.model_dump(include=_OF_CHATS, exclude_unset=True, by_alias=True)
        system = [{"role": "system", "content": self.system}] if self.system else []
        chat["messages"] = [*system, *self.messages.messages]
        chat |= {"tools": self.tools} | self._choice() if self.tools else {}
        return chat | (self.output_config.chat_fields() if self.output_config is not None else {})


class MessagesBody(CountTokensBody, AnswerFields):
    """The body of `POST /v1/messages`."""

    max_tokens: int = Field(ge=1, le=MAX_TOKENS)
    stop_sequences: Stops | None = None
    stream: bool = False
    temperature: float | None = Field(None, ge=0, le=5)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0, le=1_000_000, description="0: no limit")
    seed: int | None = Field(None, ge=-(2**64 - 1), le=2**64 - 1)
    retrieval: Annotated[Retrieval | None, BeforeValidator(_objects)] = Field(
        None, description="a collection from which passages go into the prompt"
    )

    @model_validator(mode="after")
    def _require_a_question(self) -> "MessagesBody":
        last = self.messages.messages[-1]
        if last["role"] == "assistant":
            message = "the last message must not be the assistant's, because an answer does not continue it"
            raise unsupported("messages", message)
        return self

    def _chat(self) -> dict[str, Any]:
        return super()._chat() | ({"stop": self.stop_sequences} if self.stop_sequences else {})


def _supported(value: dict[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """Return the fields that are in `known` and not null. Raises ApiError for a field that is not accepted."""
    kept = {}
    for name, given in value.items():
        if given is None:
            continue
        if name in known:
            kept[name] = given
        elif name in _IGNORED:
            note_ignored(name)
        elif name in _CHECKED:
            _CHECKED[name](given)
            note_ignored(name)
        elif given not in _NEUTRAL.get(name, ()):
            known_values = " or ".join(repr(accepted) for accepted in _NEUTRAL.get(name, ()))
            reason = f"only {known_values} is accepted" if known_values else "the field is unknown"
            raise unsupported(name, reason)
    return kept

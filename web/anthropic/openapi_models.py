"""Models of the objects in bodies of Anthropic's routes, for /openapi.json; blocks.py and tools.py read the objects."""

from typing import Annotated, Any, Literal

from pydantic import Field

from web.api.body import Body, NulFreeText
from web.api.request_schema import MAX_MESSAGES

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

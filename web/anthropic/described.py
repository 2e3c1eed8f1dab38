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
    content: NulFreeText | list[TextBlock] = ""
    is_error: bool = False


class ImageBlock(Body):
    """An image, for a model that an upstream serves."""

    type: Literal["image"]
    source: dict[str, Any] = Field(description="`type` is base64 or url")


class DocumentBlock(Body):
    """A document, for a model that an upstream serves."""

    type: Literal["document"]
    source: dict[str, Any] = Field(description="`type` is base64")
    title: NulFreeText | None = None


class UserMessage(Body):
    """A message of the user."""

    role: Literal["user"]
    content: NulFreeText | list[TextBlock | ToolResultBlock | ImageBlock | DocumentBlock]


class AssistantMessage(Body):
    """An earlier answer."""

    role: Literal["assistant"]
    content: NulFreeText | list[TextBlock | ToolUseBlock]


class InputTool(Body):
    """A tool that the client runs."""

    name: _Name
    input_schema: dict[str, Any]
    description: NulFreeText | None = None
    strict: bool | None = None


InputMessages = Annotated[list[UserMessage | AssistantMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
InputSystem = NulFreeText | list[TextBlock]

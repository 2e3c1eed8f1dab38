"""Models of the response bodies that list models and items of responses, as those in web/openapi/response_models.py."""

from typing import Any, Literal

from pydantic import Field

from web.openapi.response_models import ResponseModel


class Model(ResponseModel):
    """A model, identified by its served name or by an alias."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    type: Literal["model"]
    display_name: str
    created_at: str
    max_model_len: int | None = Field(
        default=None, description="how many tokens prompt and answer may have together; absent if it is unknown"
    )


class ModelList(ResponseModel):
    """The live models that the tenant may use."""

    object: Literal["list"]
    data: list[Model]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputItemList(ResponseModel):
    """One page of the items of a response's input."""

    object: Literal["list"]
    data: list[dict[str, Any]] = Field(description="messages, reasoning, calls of functions and their results")
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(ResponseModel):
    """The estimated number of tokens of a response's prompt."""

    object: Literal["response.input_tokens"]
    input_tokens: int


ALL: tuple[type[ResponseModel], ...] = (Model, ModelList, InputItemList, InputTokens)

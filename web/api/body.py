"""The base class of all request bodies, and the texts that they may contain; pure functions."""

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from web.http.api_errors import field_errors, invalid_value

Model = TypeVar("Model", bound=BaseModel)


def reject_nul(text: str) -> str:
    """Return the text; raise ValueError if it contains a NUL character, which C strings cannot contain."""
    if "\0" in text:
        raise ValueError("the text contains a NUL character (\\u0000), which is not allowed")
    return text


def require_text(text: str) -> str:
    """Return the text; raise ValueError if it is empty, because a prompt needs at least one token."""
    if not text:
        raise ValueError("the text is empty")
    return text


NulFreeText = Annotated[str, AfterValidator(reject_nul), Field(json_schema_extra={"pattern": r"^[^\u0000]*$"})]
#: A prompt: a text that is not empty.
Prompt = Annotated[NulFreeText, AfterValidator(require_text), Field(json_schema_extra={"minLength": 1})]


class Body(BaseModel):
    """Base class of all request bodies: unknown fields are errors, and values are not converted between types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def validated(kind: type[Model], value: Any) -> Model:
    """Return a body of this class. Raises ApiError, which names the invalid fields."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise invalid_value(field_errors(error)) from None

"""Validate the format that an answer must have; pure functions."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from shared.jobs.schema_keywords import unsupported_keyword
from web.api.body import Body, NulFreeText
from web.http.api_errors import ApiError

#: How many choices a request may have; the engine has the same limit.
MAX_CHOICES = 1000
#: The texts between which an answer must choose. fail_fast: each invalid choice would add an error.
Choices = Annotated[
    list[Annotated[NulFreeText, Field(min_length=1, max_length=4096)]],
    Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True),
]


class ResponseFormat(Body):
    """The format that the answer must have; the engine enforces it with a grammar."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None
    plain_schema: dict[str, Any] | None = Field(None, alias="schema", description="only with json_object")

    @model_validator(mode="after")
    def _require_schema(self) -> "ResponseFormat":
        if self.type == "json_schema" and not isinstance((self.json_schema or {}).get("schema"), dict):
            raise ValueError(
                "a response_format of type json_schema requires json_schema.schema, which must be an object"
            )
        if self.plain_schema is not None and self.type != "json_object":
            raise ValueError(f"schema is not a field of a response_format of type {self.type}")
        for schema in ((self.json_schema or {}).get("schema"), self.plain_schema):
            if isinstance(schema, dict):
                check_keywords(schema, "response_format")
        return self


class JobResponseFormat(ResponseFormat):
    """The formats of the native route."""

    type: Literal["text", "json_object", "json_schema", "regex", "grammar", "choice"]  # type: ignore[assignment] # wider
    regex: Annotated[NulFreeText, Field(min_length=1)] | None = None
    grammar: Annotated[NulFreeText, Field(min_length=1, description="a grammar in llguidance's Lark format")] | None = (
        None
    )
    choice: Choices | None = None

    @model_validator(mode="after")
    def _require_own_field(self) -> "JobResponseFormat":
        for name in ("regex", "grammar", "choice"):
            if (getattr(self, name) is None) == (self.type == name):
                verb = "requires" if self.type == name else "does not allow"
                raise ValueError(f"a response_format of type {self.type} {verb} the field {name}")
        return self


def check_keywords(schema: dict[str, Any], param: str) -> None:
    """Raise ApiError(unsupported_parameter) if no answer can be held to a keyword of the schema."""
    found = unsupported_keyword(schema)
    if found is not None:
        message = f"{param} cannot be used: the keyword {found} is not supported"
        raise ApiError("unsupported_parameter", message, param=param)

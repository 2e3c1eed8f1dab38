"""The fields with which vLLM's clients ask for an answer in a certain format; pure functions."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator
from pydantic_core import from_json

from web.api.body import MAX_FIELDS, Body, NulFreeText
from web.api.response_format import MAX_CHOICES, Choices, JobResponseFormat, ResponseFormat, check_keywords
from web.http.api_errors import ApiError, quoted
from web.http.json_body import check_budget


def _as_schema(value: Any, info: ValidationInfo) -> Any:
    """Return the schema in a text, as some clients send it; any other value is left as it is."""
    if not isinstance(value, str):
        return value
    data = value.encode()
    try:
        check_budget(data)
        return from_json(data, allow_inf_nan=False)
    except (ApiError, ValueError):
        name = "json" if info.field_name == "schema_" else info.field_name
        raise ValueError(f"{name}={quoted(value)} is neither a JSON schema nor the text of one") from None


_Schema = Annotated[dict[str, Any], BeforeValidator(_as_schema, json_schema_input_type=dict[str, Any] | str)]
_Text = Annotated[NulFreeText, Field(min_length=1)]


class StructuredOutputs(Body):
    """The object `structured_outputs`, which names one format. The other fields are accepted with their defaults."""

    schema_: _Schema | None = Field(None, alias="json", description="a JSON schema, or the text of one")
    json_object: bool | None = None
    regex: _Text | None = None
    choice: Choices | None = None
    grammar: _Text | None = Field(None, description="a grammar in llguidance's Lark format")
    disable_fallback: bool | None = None
    disable_any_whitespace: Literal[False] | None = None
    disable_additional_properties: Literal[False] | None = None

    @model_validator(mode="after")
    def _require_a_format(self) -> "StructuredOutputs":
        if not self.formats():
            raise ValueError("structured_outputs requires one of json, json_object, regex, choice and grammar")
        return self

    def formats(self) -> dict[str, dict[str, Any]]:
        """Return each format that the object names, by the name of its field, as the native route spells it."""
        whole = {"json_object": {"type": "json_object"}} if self.json_object else {}
        return whole | _formats("structured_outputs.", self.schema_, self.regex, self.choice, self.grammar)


class StructuredFields(Body):
    """The fields of a request that name a format: `structured_outputs`, and the older ones that begin with `guided`."""

    structured_outputs: StructuredOutputs | None = None
    guided_json: _Schema | None = Field(None, description="a JSON schema, or the text of one")
    guided_regex: _Text | None = None
    guided_choice: Choices | None = None
    guided_grammar: _Text | None = Field(None, description="a grammar in llguidance's Lark format")

    @model_validator(mode="after")
    def _require_one_format(self) -> "StructuredFields":
        named = list(self._formats())
        for name in ("response_format", "text"):
            usual = getattr(self, name, None)
            if usual is not None and usual.type != "text":
                named.append(name)
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)} exclude each other: an answer has one format")
        if self.guided_json is not None:
            check_keywords(self.guided_json, "guided_json")
        if self.structured_outputs is not None and self.structured_outputs.schema_ is not None:
            check_keywords(self.structured_outputs.schema_, "structured_outputs.json")
        return self

    def answer_format(self, usual: ResponseFormat | None) -> ResponseFormat | None:
        """Return the format that one of these fields names or, without one, the format of the usual field."""
        formats = list(self._formats().values())
        return JobResponseFormat.model_validate(formats[0]) if formats else usual

    def _formats(self) -> dict[str, dict[str, Any]]:
        inner = self.structured_outputs.formats() if self.structured_outputs is not None else {}
        return inner | _formats("guided_", self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar)


#: The names of these fields.
STRUCTURED = frozenset(StructuredFields.model_fields)
#: Their lengths that are checked before the fields are validated (web/api/body.py).
STRUCTURED_SIZES = {"structured_outputs": MAX_FIELDS, "guided_choice": MAX_CHOICES}


def _formats(
    prefix: str, schema: dict[str, Any] | None, regex: str | None, choice: list[str] | None, grammar: str | None
) -> dict[str, dict[str, Any]]:
    texts = {"regex": regex, "choice": choice, "grammar": grammar}
    found: dict[str, dict[str, Any]] = {
        f"{prefix}{name}": {"type": name, name: given} for name, given in texts.items() if given is not None
    }
    if schema is not None:
        found[f"{prefix}json"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    return found

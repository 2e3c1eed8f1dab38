"""The common parts of all request bodies: base classes, sizes, fields without effect, and digests; pure functions."""

import hashlib
import json
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from web.http.api_errors import field_errors, invalid_field, invalid_value

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


#: How many fields a body, a message or an object of options may have. The API has no object with half as many.
MAX_FIELDS = 64


def check_sizes(value: Any, limits: Mapping[str, int], *, messages: str = "") -> None:
    """Check the number of fields of a body, and the lengths of the fields that `limits` names.

    pydantic validates every item of a list that is too long, and builds an error for each invalid item. For a body of
    1 MiB that takes up to a second of the door's loop. These checks take a millisecond.

    `messages` is the name of the field with a list of messages, if the body has one. Values of a wrong type pass, since
    pydantic rejects them at once. Raises ApiError (invalid_value), which names the field and its length.
    """
    if not isinstance(value, dict):
        return
    _check_length("", value, MAX_FIELDS)
    for name, limit in limits.items():
        _check_length(name, value.get(name), limit)
    found = value.get(messages)
    for i, message in enumerate(found if isinstance(found, list) else ()):
        if isinstance(message, dict) and len(message) > MAX_FIELDS:
            _check_length(f"{messages}[{i}]", message, MAX_FIELDS)


def _check_length(name: str, value: Any, limit: int) -> None:
    if isinstance(value, dict | list) and len(value) > limit:
        kind = "fields" if isinstance(value, dict) else "items"
        raise invalid_field(name, f"{name or 'the body'} has {len(value)} {kind}; at most {limit} are allowed")


#: The names that were noted so far, of the body that is being validated; a dict keeps their order.
_noted: ContextVar[dict[str, None] | None] = ContextVar("noted", default=None)


def note_ignored(name: str) -> None:
    """Note that a field of the body that is being validated cannot change the answer, so it has no effect here.

    `name` is the path of the field without numbers, such as `messages.cache_control`, and never a client's own word:
    the names are labels of a metric.
    """
    noted = _noted.get()
    if noted is not None:
        noted[name] = None


def ignored_as(name: str) -> AfterValidator:
    """Return the validator of a field that is checked but has no effect."""

    def note(value: Any) -> Any:
        if value is not None:
            note_ignored(name)
        return value

    return AfterValidator(note)


class NotesIgnored(BaseModel):
    """Base class of bodies that know which of their fields were accepted without effect."""

    _ignored: tuple[str, ...] = PrivateAttr(())

    @property
    def ignored(self) -> tuple[str, ...]:
        """The names of the fields that were accepted without effect."""
        return self._ignored

    @model_validator(mode="wrap")
    @classmethod
    def _collect_ignored(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        noted: dict[str, None] = {}
        token = _noted.set(noted)
        try:
            body = handler(value)
        finally:
            _noted.reset(token)
        body._ignored = tuple(noted)  # noqa: SLF001 - the body is of this class
        return body


def given_fields(body: BaseModel) -> dict[str, Any]:
    """Return the fields that the client set, without its return ticket, which a repeat of the request has anew."""
    return body.model_dump(exclude_none=True, exclude_unset=True, exclude={"return_ticket"})


_SORTED = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def body_digest(body: Mapping[str, Any]) -> str:
    """Return a digest of a parsed body, which does not depend on whitespace or on the order of the body's fields."""
    return hashlib.sha256(_SORTED.encode(body).encode()).hexdigest()


def digest(*parts: str) -> str:
    """Return one digest of several texts, for use in job ids and store keys.

    The length of each text is hashed before the text, so that ("a", "bc") and ("ab", "c") have different digests.
    """
    return hashlib.sha256(b"".join(len(part.encode()).to_bytes(8) + part.encode() for part in parts)).hexdigest()

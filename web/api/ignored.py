"""Collect the names of the fields that a request has without effect, while its body is validated."""

from contextvars import ContextVar
from typing import Any, Self

from pydantic import AfterValidator, BaseModel, ModelWrapValidatorHandler, PrivateAttr, model_validator

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

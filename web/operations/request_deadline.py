"""What every route that takes a request for generation reads of it beside its body."""

from typing import Protocol

from flask import request

from web.api.deadline import AnswerMode, RequestDeadline, resolve_deadline
from web.http.api_errors import FieldError, invalid_value
from web.operations.callers import Caller
from web.runtime.context import DoorContext


class DeadlineFields(Protocol):
    """A body that may say how long its client waits."""

    @property
    def deadline_ms(self) -> int | None:
        """To the end."""

    @property
    def start_within_ms(self) -> int | None:
        """To the first token."""


def read_deadline(context: DoorContext, who: Caller, body: DeadlineFields, manner: AnswerMode) -> RequestDeadline:
    """The patience of this request. Raises ApiError for one that the door does not allow."""
    deadline = resolve_deadline(
        manner,
        named_ms=body.deadline_ms,
        start_within_ms=body.start_within_ms,
        headers=request.headers,
        settings=context.settings,
        policy=who.policy,
    )
    if isinstance(deadline, FieldError):
        raise invalid_value([deadline])
    return deadline

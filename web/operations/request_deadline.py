"""What every route that takes a request for generation reads of it beside its body."""

from typing import Protocol

from flask import request

from web.api.deadline import Manner, Patience, resolve
from web.http.api_errors import Wrong, invalid
from web.operations.callers import Caller
from web.runtime.context import Door


class Patient(Protocol):
    """A body that may say how long its client waits."""

    @property
    def deadline_ms(self) -> int | None:
        """To the end."""

    @property
    def start_within_ms(self) -> int | None:
        """To the first token."""


def patience_of(here: Door, who: Caller, body: Patient, manner: Manner) -> Patience:
    """The patience of this request. Raises Problem for one that the door does not allow."""
    patience = resolve(
        manner,
        named_ms=body.deadline_ms,
        start_within_ms=body.start_within_ms,
        headers=request.headers,
        settings=here.settings,
        policy=who.policy,
    )
    if isinstance(patience, Wrong):
        raise invalid([patience])
    return patience

"""The fields of a request that the store gets unchanged, and which of them the job's record and its JSON keep."""

import json
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache
from typing import Any, Self

#: The prefix of Penstock's fields in a job's hash.
PREFIX = "penstock_"


@dataclass(frozen=True)
class BatchLine:
    """The line of a batch that a job is for, and the claim of the batch by the process that offers the job."""

    batch: str
    token: str
    number: int


def kept(default: Any, *, shown: bool = False) -> Any:
    """Return a field that the job's record keeps as `penstock_<name>`, and that no check of admission reads.

    The record lacks the field if its value is None or False. If `shown`, the job's JSON has the field too, with
    `default` for jobs of earlier versions.
    """
    return field(default=default, metadata={"kept": True, "shown": shown})


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """The fields of a request, beside the prompt and the deadline, that the store gets unchanged."""

    #: 1, 0 or -1: the tenant's jobs with a higher priority start first. A job with -1 is a batch job, which gives way
    #: to all tenants' other jobs.
    priority: int = 0
    #: Deduplication id for refusals: if a proxy repeats a refused request, the refusal is counted only once, and the
    #: tenant's appointment does not move a second time. If None, the job's id is used.
    dedup_id: str | None = None
    #: The digests of the Idempotency-Key (None without one) and of the body. By the latter, a refused request is
    #: recognized when its client sends it again, unless it is "".
    idem_digest: str | None = None
    body_digest: str = ""
    #: Whether it is certain that the client sends this request for the first time, and that no proxy repeats it.
    is_new: bool = False
    traceparent: str = kept("")
    #: Whether the payload is kept as long as the result if the job succeeds, for requests that continue it.
    keeps_request: bool = kept(default=False)
    #: Whether the payload is kept as long as the job's record, however the job ends, so that it can be run again.
    keeps_always: bool = kept(default=False)
    #: 1 if a client follows the text from the beginning, 0 if the door tells the store when one begins to. Without it,
    #: as in jobs of doors of earlier versions, the text counts as followed.
    followed: int | None = kept(None)
    #: The client's own values. Admission counts their bytes.
    metadata: dict[str, str] = field(default_factory=dict, metadata={"shown": True})
    #: Small values that the route stores with the job and later reads from JobView.form; never a prompt or an answer.
    form: dict[str, Any] = field(default_factory=dict)
    #: Where the client is told of the job's end; "" for nowhere.
    callback_url: str = ""
    #: The line of a batch that this job is for. The store then admits the job only while the claim is valid.
    line: BatchLine | None = None

    def replaced(self, **values: Any) -> Self:
        """Return a copy with other values; `dataclasses.replace` calls __init__ and takes five times as long."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, **values)
        return other

    @property
    def return_id(self) -> str:
        """The id of the reservation that the store makes if the job is refused: the beginning of the body's digest."""
        return self.body_digest[:16]

    def kept_fields(self) -> list[str | int]:
        """Return the fields that the job's record keeps unread, as a flat list (field, value, …)."""
        flat: list[str | int] = []
        for name in _kept_names(type(self)):  # type: ignore[arg-type]  # mypy looks at __hash__ of the instances
            value = getattr(self, name)
            if value is not None and value is not False:
                flat += [PREFIX + name, int(value) if isinstance(value, bool) else value]
        return flat


@cache
def _kept_names(request: type[Any]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(request) if each.metadata.get("kept"))


def shown_fields(record: Mapping[str, str], request: type[JobRequest] = JobRequest) -> dict[str, Any]:
    """Return the fields that the job's JSON shows, out of the job's hash. `request` lists them."""
    shown = [each for each in fields(request) if each.metadata.get("shown")]
    return {each.name: _decoded(record.get(PREFIX + each.name), each) for each in shown}


def _decoded(text: str | None, each: Field[Any]) -> Any:
    """Return a field's value: its default if the record lacks it or if another program has spoiled it."""
    if each.default_factory is dict:
        return json_object(text)
    if isinstance(each.default, bool):
        return text == "1"
    if isinstance(each.default, int):
        return int(text) if text and text.removeprefix("-").isdecimal() and len(text) < 19 else each.default
    return each.default if text is None else text


def json_object(raw: Any) -> dict[str, Any]:
    """Return the object in a JSON text, or an empty one if the text is missing or spoiled."""
    try:
        value = json.loads(raw) if raw else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}

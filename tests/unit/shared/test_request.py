"""Tests of the fields of a request that the record of its job keeps, and that the job's JSON shows."""

from dataclasses import dataclass

import pytest

from shared.jobs.request import JobRequest, kept, shown_fields


@dataclass(frozen=True, kw_only=True)
class LaterRequest(JobRequest):
    """The requests of a version that has further fields."""

    label: str | None = kept(None, shown=True)
    level: int = kept(3, shown=True)
    loud: bool = kept(default=False, shown=True)
    secret: str = kept("")


def record_of(request: JobRequest) -> dict[str, str]:
    flat = request.kept_fields()
    return {str(name): str(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}


@pytest.mark.parametrize(
    "fields",
    [
        {"label": None, "level": 3, "loud": False},
        {"label": "", "level": 0, "loud": True},
        {"label": "a b", "level": -7, "loud": True},
    ],
)
def test_a_kept_field_comes_back_from_the_record_and_only_shown_ones_reach_the_json(fields):
    record = record_of(LaterRequest(**fields, secret="s"))
    assert record["penstock_secret"] == "s"
    assert shown_fields(record, LaterRequest) == shown_fields({}) | fields


@pytest.mark.parametrize("spoiled", ["", "x", "1.5", "9" * 30])
def test_a_record_without_a_field_or_with_a_spoiled_one_has_the_default(spoiled):
    defaults = shown_fields({}) | {"label": None, "level": 3, "loud": False}
    assert shown_fields({}, LaterRequest) == defaults
    record = {"penstock_metadata": spoiled, "penstock_level": spoiled, "penstock_loud": spoiled}
    assert shown_fields(record, LaterRequest) == defaults


def test_a_request_that_says_nothing_is_kept_as_an_empty_trace():
    assert JobRequest().kept_fields() == ["penstock_traceparent", ""]
    assert record_of(JobRequest(keeps_request=True)) == {"penstock_traceparent": "", "penstock_keeps_request": "1"}

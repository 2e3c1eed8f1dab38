"""Filters of lists of jobs: what their texts mean, and what is refused."""

from datetime import UTC, datetime

import pytest

from shared.jobs.job_filter import FILTER_FIELDS, InvalidFilter, JobFilter, parse_filter
from shared.jobs.states import ACTIVE_STATES, TERMINAL_STATES, JobState


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000)


NOW_MS = ms("2026-11-28T14:30:00")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("15m", "2026-11-28T14:15:00"),
        ("2h", "2026-11-28T12:30:00"),
        ("14:00", "2026-11-28T14:00:00"),
        ("14:00:05Z", "2026-11-28T14:00:05"),
        ("15:00", "2026-11-27T15:00:00"),
        ("2026-11-20", "2026-11-20T00:00:00"),
        ("2026-11-20T10:05", "2026-11-20T10:05:00"),
        ("2026-11-20 10:05:06Z", "2026-11-20T10:05:06"),
        ("2026-11-20T11:05:06+01:00", "2026-11-20T10:05:06"),
    ],
)
def test_times_are_utc_and_those_of_a_day_lie_in_the_past(text, meant):
    assert parse_filter({"since": text}, NOW_MS).since_ms == ms(meant)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tenant", "a b"),
        ("tenant", "x" * 65),
        ("state", "sleeping"),
        ("state", "failed,asleep"),
        ("reason", "because"),
        ("since", "yesterday"),
        ("since", "25:00"),
        ("since", "999999d"),
        ("until", "2026-13-01"),
        ("id", "ab*"),
        ("key", "k" * 257),
        ("model", "m" * 257),
    ],
)
def test_an_invalid_value_is_refused_with_the_name_of_its_field(field, value):
    with pytest.raises(InvalidFilter, match=f"^{field}=") as caught:
        parse_filter({field: value}, NOW_MS)
    assert caught.value.field == field


def test_an_end_before_the_beginning_is_refused():
    with pytest.raises(InvalidFilter, match=r"^until='13:00' is before since='14:00'"):
        parse_filter({"since": "14:00", "until": "13:00"}, NOW_MS)


def test_sets_of_states_have_names_and_empty_fields_select_all():
    assert parse_filter({"state": "inflight"}, NOW_MS).states == ACTIVE_STATES
    assert parse_filter({"state": "ended, running"}, NOW_MS).states == TERMINAL_STATES | {JobState.RUNNING}
    assert parse_filter(dict.fromkeys(FILTER_FIELDS, ""), NOW_MS) == JobFilter()
    assert parse_filter({"other": "1"}, NOW_MS) == JobFilter()


def test_the_query_of_a_filter_makes_the_same_filter():
    given = {
        "tenant": "blue",
        "key": "the key",
        "state": "failed,expired",
        "model": "org/repo",
        "reason": "engine_error",
        "since": "14:00",
        "until": "2026-11-28T14:05:06.789Z",
        "id": "a_-",
    }
    wanted = parse_filter(given, NOW_MS)
    assert set(wanted.as_query()) == set(FILTER_FIELDS)
    assert parse_filter(wanted.as_query(), NOW_MS) == wanted
    assert str(wanted).startswith(
        "tenant=blue key=the key state=failed,expired model=org/repo reason=engine_error since="
    )


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59.9999"])
def test_a_time_in_the_year_10000_is_refused(text):
    with pytest.raises(InvalidFilter, match=r"^since=.* is not a time"):
        parse_filter({"since": text}, NOW_MS)

"""The console's page of a job: absolute times, key, rates, finish reason, and where each millisecond went."""

import re

import pytest
from flask.testing import FlaskClient

from shared.answer_parts import ARGUMENTS, CALL, END
from shared.jobs.job import Usage
from shared.jobs.outcomes import Outcome
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import a_job, admitted, advance_clock, an_ending, claim_one, heartbeat
from tests.support.door import a_door

pytestmark = pytest.mark.ways("direct", reason="the door is in the process of the test")

#: 2026-11-28 14:05:03.250 UTC.
BEGAN_MS = 1_795_874_703_250
CALLS = f"{CALL}weather{ARGUMENTS}{{}}{END}"


@pytest.fixture
def visitor(store: Store, settings: Settings) -> FlaskClient:
    store.client.set(keys.clock(), f"={BEGAN_MS}")
    heartbeat(store)
    return a_door(store, settings)


def run_job(store: Store, *, form: dict[str, object] | None = None, **ending: object) -> str:
    """Run a job that waits for 1.5 s and is worked on for 3 s; return its id."""
    job_id = admitted(store, a_job(key_label="ci", form=form or {}))
    advance_clock(store, 1_500)
    heartbeat(store)
    claimed = claim_one(store)
    advance_clock(store, 3_000)
    usage = Usage(100, 20, 81, 400, 2_000, 450)
    store.settle(an_ending(claimed.held, **({"usage": usage} | ending)), "w1")
    return job_id


def facts_of(page: str) -> dict[str, str]:
    """Return the facts of a page, without markup."""
    found = re.findall(r"<div><dt>([^<]+)</dt><dd>(.*?)</dd></div>", page, re.DOTALL)
    return {name: re.sub(r"<[^>]+>", "", value) for name, value in found}


def parts_of(page: str) -> dict[str, int]:
    """Return the ms of each part of the time."""
    rows = re.findall(r'</svg> ([^<]+)</th><td role="cell" data-label="ms" class="n">([\d,]+)</td>', page)
    return {name: int(ms.replace(",", "")) for name, ms in rows}


def test_a_job_shows_when_it_was_where_and_how_quickly_it_was_answered(visitor: FlaskClient, store: Store) -> None:
    page = visitor.get(f"/console/jobs/{run_job(store)}").text
    facts = facts_of(page)
    assert facts["Admitted"] == "2026-11-28 14:05:03.250 UTC"
    assert facts["Claimed"] == "2026-11-28 14:05:04.750 UTC"
    assert facts["Ended"] == "2026-11-28 14:05:07.750 UTC"
    assert facts["Deadline"] == "2026-11-28 14:06:03.250 UTC, 60.0 s (default)"
    assert (facts["Key"], facts["Finish reason"]) == ("ci", "stop")
    assert facts["Answer, tokens a second"] == "40.0"
    assert facts["Prompt, tokens a second"] == "200"


def test_every_millisecond_is_explained(visitor: FlaskClient, store: Store) -> None:
    job_id = run_job(store, form={"retrieval": {"cited": [], "changed": [], "found": 0, "ms": 25}})
    page = visitor.get(f"/console/jobs/{job_id}").text
    parts = parts_of(page)
    assert parts == {
        "retrieval": 25,
        "for a turn": 1_500,
        "prepared": 50,
        "prompt": 400,
        "answer": 2_000,
        "handed over": 550,
    }
    assert "Where 4,525 ms went" in page
    assert sum(parts.values()) == 4_525
    widths = [float(width) for width in re.findall(r'<rect x="[\d.]+" width="([\d.]+)" height="10" class="part', page)]
    assert sum(widths) == pytest.approx(100, abs=0.05)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({}, "stop"),
        ({"parts": True}, "tool_calls"),
        ({"parts": True, "max_tokens": 20}, "tool_use"),
    ],
)
def test_the_finish_reason_is_the_one_that_the_client_saw(
    visitor: FlaskClient, store: Store, form: dict[str, object], said: str
) -> None:
    page = visitor.get(f"/console/jobs/{run_job(store, form=form, text=CALLS)}").text
    assert facts_of(page)["Finish reason"] == said
    assert "weather" not in page


def test_a_job_that_waits_shows_for_what_and_no_rates(visitor: FlaskClient, store: Store) -> None:
    job_id = admitted(store, a_job())
    advance_clock(store, 700)
    page = visitor.get(f"/console/jobs/{job_id}").text
    assert parts_of(page) == {"for a turn": 700}
    assert not {"Finish reason", "Answer, tokens a second", "Key", "Ended"} & set(facts_of(page))


def test_a_failed_job_has_its_code_and_no_finish_reason(visitor: FlaskClient, store: Store) -> None:
    job_id = run_job(store, outcome=Outcome.FAILED, finish_reason="", code="engine_error")
    page = visitor.get(f"/console/jobs/{job_id}").text
    assert "<code>engine_error</code>" in page
    assert "Finish reason" not in facts_of(page)

"""The console's page of all jobs: what it lists, how it is filtered, and how many jobs are canceled at once."""

import re

import pytest
import redis
from flask.testing import FlaskClient

from shared.accounts.admin_actions import list_actions
from shared.jobs.states import JobState
from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.builders import a_job, admitted, an_ending, claim_one, heartbeat, hold_clock, view_of
from tests.support.console import ATTACK, press
from tests.support.door import a_door
from tests.support.planted_jobs import plant_jobs

pytestmark = pytest.mark.ways("direct", reason="the door is in the process of the test")


@pytest.fixture
def visitor(store: Store, settings: Settings) -> FlaskClient:
    hold_clock(store)
    heartbeat(store)
    return a_door(store, settings)


def listed(page: str) -> list[str]:
    """Return the ids of the jobs that a page lists."""
    return re.findall(r'<a href="/console/jobs/([^"]+)">', page)


def test_waiting_running_and_ended_jobs_are_listed_with_why_they_ended(visitor: FlaskClient, store: Store) -> None:
    ended = admitted(store, a_job(key_label="ci"))
    store.settle(an_ending(claim_one(store).held, finish_reason="length"), "w1")
    waiting = admitted(store, a_job("green"))
    page = visitor.get("/console/jobs").text
    assert set(listed(page)) == {ended, waiting}
    for text in (">length<", ">ci<", ">green<", ">queued<", ">succeeded<"):
        assert text in page
    assert listed(visitor.get("/console/jobs?tenant=green").text) == [waiting]
    assert listed(visitor.get("/console/jobs?state=ended&reason=length&since=1h&key=ci&model=m").text) == [ended]
    assert "No job matches." in visitor.get("/console/jobs?tenant=red").text


def test_pages_are_linked_and_keep_the_filter(visitor: FlaskClient, store: Store) -> None:
    ids = plant_jobs(store.client, 120)
    seen, path = list[str](), "/console/jobs?tenant=blue"
    while path:
        page = visitor.get(path).text
        seen += listed(page)
        link = re.search(r'href="([^"]+)" id="continue"', page)
        path = link[1].replace("&amp;", "&") if link else ""
        assert "tenant=blue" in path or not path
    assert seen == ids


def test_a_search_that_finds_little_ends_after_a_bounded_number_of_jobs_and_continues(
    visitor: FlaskClient, store: Store
) -> None:
    plant_jobs(store.client, 2_000)
    page = visitor.get("/console/jobs?state=failed").text
    assert "None of the examined jobs matches." in page
    assert "1280 jobs were examined" in page


def test_an_id_opens_the_job_and_its_beginning_lists_those_that_begin_so(visitor: FlaskClient, store: Store) -> None:
    plant_jobs(store.client, 30)
    answer = visitor.get("/console/jobs?id=planted000007")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/console/jobs/planted000007")
    assert len(listed(visitor.get("/console/jobs?id=planted00001").text)) == 10
    assert "No job matches." in visitor.get("/console/jobs?id=unknown").text


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("since=yesterday", "since=&#39;yesterday&#39; is not a time"),
        ("state=asleep", "state=&#39;asleep&#39; is not one of"),
        ("id=%3Cb%3E", "id=&#39;&lt;b&gt;&#39; is not"),
        ("cursor=x", "cursor=&#39;x&#39; is not"),
    ],
)
def test_an_invalid_filter_is_said_and_stays_in_its_field(visitor: FlaskClient, query: str, says: str) -> None:
    answer = visitor.get(f"/console/jobs?{query}")
    assert (answer.status_code, answer.mimetype) == (422, "text/html")
    assert says in answer.text


def test_names_are_text_wherever_they_come_from(visitor: FlaskClient, store: Store) -> None:
    plant_jobs(store.client, 1, key_label=ATTACK, model=ATTACK, code=ATTACK, tenant=ATTACK)
    for path in ("/console/jobs", f"/console/jobs?tenant=blue&key={ATTACK}&model={ATTACK}"):
        page = visitor.get(path).text
        assert ATTACK not in page
        assert "&lt;script&gt;" in page


def test_the_jobs_of_a_filter_are_counted_and_then_canceled(
    visitor: FlaskClient, store: Store, redis_client: redis.Redis
) -> None:
    running = admitted(store, a_job())
    claim_one(store)
    waiting, other = admitted(store, a_job()), admitted(store, a_job("green"))
    assert "cancel-many" not in visitor.get("/console/jobs").text
    assert "cancel-many" not in visitor.get("/console/jobs?tenant=blue&state=ended").text
    assert "cancel-many" in visitor.get("/console/jobs?tenant=blue").text
    question = visitor.get("/console/cancelable?tenant=blue").text
    assert "2 jobs (1 queued, 1 running)" in question
    assert "tenant=blue" in question
    said = press(visitor, "cancel-many", tenant="blue", state="queued,running").text
    assert "are canceled: 1; running jobs that are asked to stop: 1; jobs that had ended already: 0." in said
    assert view_of(store, waiting).state is JobState.CANCELED
    assert view_of(store, running).cancel_requested
    assert view_of(store, other).state is JobState.QUEUED
    assert next(list_actions(redis_client, limit=1)).what == "job.canceled_many"
    assert "No waiting or running job matches" in visitor.get("/console/cancelable?tenant=blue").text


def test_a_cancel_needs_a_filter_and_a_page_of_the_console(visitor: FlaskClient, store: Store) -> None:
    waiting = admitted(store, a_job())
    assert press(visitor, "cancel-many").status_code == 422
    assert press(visitor, "cancel-many", state="ended").status_code == 422
    assert visitor.post("/console/cancel-many", data={"tenant": "blue"}).status_code == 403
    assert view_of(store, waiting).state is JobState.QUEUED

"""The console's playground over HTTP: what its page offers, and the streams of the answers that it asks for."""

import json
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from shared.accounts.admin_actions import list_actions
from shared.accounts.routes import Routes
from shared.accounts.tenants import Tenants
from shared.accounts.workers import Workers
from shared.answer_parts import ARGUMENTS, CALL, END, REASONING
from shared.jobs.route import Route
from shared.jobs.route_texts import parse_step
from shared.jobs.states import JobState
from shared.jobs.tenant_policy import TenantPolicy
from shared.store.store import Store
from tests.support.builders import a_heartbeat, an_ending, claim_one, heartbeat, view_of
from tests.support.console import ATTACK, token_of
from web.console.guard import TOKEN_HEADER

pytestmark = pytest.mark.ways("direct", reason="the door is in the process of the test")

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(autouse=True)
def worker(store: Store) -> None:
    """A worker that claims what a test claims for it."""
    heartbeat(store)


def ask(visitor: FlaskClient, tenant: str = "blue", **fields: Any) -> TestResponse:
    """Send a conversation from a page that was just loaded."""
    token = token_of(visitor.get("/console/playground").text)
    body = {"model": "m", "messages": HI, "stream": True} | fields
    return visitor.post(f"/console/playground/answer?tenant={tenant}", json=body, headers={TOKEN_HEADER: token})


def read_job_id(answer: TestResponse) -> str:
    """Return the id that the first frame of a stream has."""
    assert answer.status_code == 200, answer.text
    first = next(iter(answer.response))
    kind, data = (first.decode() if isinstance(first, bytes) else first).strip().split("\n")
    assert kind == "event: job"
    return str(json.loads(data.removeprefix("data: "))["id"])


def rest_of(answer: TestResponse) -> str:
    return "".join(part.decode() if isinstance(part, bytes) else part for part in answer.response)


def chunks_in(read: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in read.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def test_an_answer_has_its_reasoning_its_calls_and_the_facts_of_its_job_and_is_recorded(
    visitor, store, redis_client, look
):
    answer = ask(visitor)
    job_id = read_job_id(answer)
    claimed = claim_one(store)
    text = f"{REASONING}why{END}{ATTACK}{CALL}now{ARGUMENTS}{{}}{END}"
    store.settle(an_ending(claimed.held, text=text), "w1")
    read = rest_of(answer)
    deltas = [choice["delta"] for chunk in chunks_in(read) for choice in chunk["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "why"
    assert "".join(delta.get("content", "") for delta in deltas) == ATTACK
    assert next(call["function"]["name"] for delta in deltas for call in delta.get("tool_calls", [])) == "now"
    facts = read.rpartition("event: facts")[2]
    for shown in (f'href="/console/jobs/{job_id}"', "succeeded", "10 and 20", "<code>tool_calls</code>"):
        assert shown in facts
    view = view_of(store, job_id)
    assert (view.tenant, view.key_label) == ("blue", "console")
    newest = next(list_actions(redis_client, limit=1))
    assert (newest.what, newest.on) == ("job.submit", f"job {job_id} of tenant blue")
    # The page of the job shows what the model said, without marks and as text.
    shown = look(f"/console/jobs/{job_id}/live").read_until("event: end")
    assert "data: &lt;script&gt;" in shown
    assert CALL not in shown


def test_without_stream_the_whole_response_comes_at_once(visitor, store):
    answer = ask(visitor, stream=False)
    read_job_id(answer)
    store.settle(an_ending(claim_one(store).held, text="all of it"), "w1")
    whole = [chunk for chunk in chunks_in(rest_of(answer)) if "choices" in chunk]
    assert [each["choices"][0]["message"]["content"] for each in whole] == ["all of it"]


def test_a_page_that_goes_away_cancels_its_job(visitor, store):
    answer = ask(visitor)
    job_id = read_job_id(answer)
    answer.close()
    assert view_of(store, job_id).state is JobState.CANCELED


def test_a_waiting_job_shows_its_position_and_a_canceled_one_ends_the_stream(visitor, store):
    answer = ask(visitor)
    job_id = read_job_id(answer)
    facts = next(part for part in map(str, answer.response) if "event: facts" in part)
    assert "<dt>Position</dt><dd>1" in facts
    store.cancel(job_id)
    read = rest_of(answer)
    assert chunks_in(read)[-1]["error"]["code"] == "job_canceled"
    assert ">canceled<" in read.rpartition("event: facts")[2]


def test_a_refusal_says_why_and_when_to_come_back(visitor, store, redis_client):
    workers = Workers(redis_client)
    workers.drain_all()
    refused = ask(visitor)
    assert (refused.status_code, refused.get_json()["reason"]) == (503, "draining")
    assert refused.get_json()["retry_hint_ms"] > 0
    workers.resume_all()
    Tenants(redis_client).set("green", TenantPolicy(disabled=True))
    assert ask(visitor, tenant="green").status_code == 403


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"tools": [{"type": "function", "function": {"name": 7}}]}, "tools"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": 7}}}, "response_format"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages"),
        ({"tenant": "no/name"}, "tenant"),
        ({"top_p": 2}, "top_p"),
    ],
)
def test_an_error_names_the_field(visitor, fields, param):
    answer = ask(visitor, **fields)
    assert answer.status_code == 422
    assert str(answer.get_json()["error"]["param"]).startswith(param)


def test_a_conversation_for_an_upstream_is_passed_on_whole(visitor, store):
    store.renew(a_heartbeat("w2", model="away", facts={"forwards": "true"}), [])
    answer = ask(visitor, model="away", unknown_here=[1])
    assert view_of(store, read_job_id(answer)).form["forwarded"] is True
    answer.close()


def test_only_a_page_of_this_console_may_ask(visitor):
    answer = visitor.post("/console/playground/answer?tenant=blue", json={"messages": HI})
    assert (answer.status_code, answer.get_json()["error"]["code"]) == (403, "page_expired")


def test_the_page_offers_models_and_routes_and_marks_those_that_are_not_served(visitor, store, redis_client):
    store.renew(a_heartbeat("w2", model="away"), [])
    store.renew(a_heartbeat("w2", model="away", draining=True), [])
    Routes(redis_client).add(Route("best", (parse_step("m"),)))
    page = visitor.get("/console/playground?tenant=%3Cb%3E&model=m").text
    for option in ('<option value="m" selected>m</option>', ">away (draining)<", ">best (route)<"):
        assert option in page
    assert 'name="tenant" value="&lt;b&gt;"' in page
    assert 'name="tenant" value="default"' in visitor.get("/console/playground").text

"""Jobs that are run again: whose requests are kept for it and how long, and what the new job has of the first one."""

import json
from typing import Any

import pytest
from flask.testing import FlaskClient

from shared.accounts.admin_actions import list_actions
from shared.accounts.tenants import Tenants
from shared.jobs.outcomes import EndCode, Outcome
from shared.jobs.request import BatchLine
from shared.jobs.states import JobState
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import an_ending, claim_one, heartbeat, hold_clock, view_of
from tests.support.console import press
from tests.support.door import a_door
from web.api.deadline import RequestDeadline
from web.jobs.callers import Caller
from web.jobs.generation import GenerationRequest
from web.jobs.run_again import with_kept_request

pytestmark = pytest.mark.ways("direct", reason="the door is in the process of the test")

BLUE = {"X-Tenant": "blue"}
BODY = {
    "prompt": "tell me",
    "max_tokens": 20,
    "temperature": 0.5,
    "seed": 7,
    "metadata": {"a": "b"},
    "deadline_ms": 9_000,
}


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    """A door with a worker; the requests of the tenant blue are kept."""
    hold_clock(store)
    heartbeat(store)
    Tenants(store.client).set("blue", TenantPolicy(run_again=True))
    return a_door(store, settings)


def submitted(client: FlaskClient, body: dict[str, object] = BODY, path: str = "/v1/jobs", tenant: str = "blue") -> str:
    answer = client.post(path, json={"model": "m"} | body, headers={"X-Tenant": tenant})
    assert answer.status_code == 202, answer.text
    return str(answer.get_json()["id"])


def ended(client: FlaskClient, store: Store, outcome: Outcome = Outcome.SUCCEEDED, **more: object) -> str:
    """Submit a job and end it; return its id."""
    job_id = submitted(client, BODY | more)
    code = "" if outcome is Outcome.SUCCEEDED else EndCode.ENGINE_ERROR
    store.settle(an_ending(claim_one(store).held, outcome, code=code), "w1")
    return job_id


def again(client: FlaskClient, job_id: str, tenant: str = "blue", **headers: str):
    return client.post(f"/v1/jobs/{job_id}/again", headers={"X-Tenant": tenant} | headers)


def payload_of(store: Store, job_id: str) -> dict[str, object]:
    payload: dict[str, object] = json.loads(store.client.get(keys.payload(job_id)) or b"{}")
    return payload


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.FAILED])
def test_a_job_runs_again_with_the_same_request_however_it_ended(
    client: FlaskClient, store: Store, outcome: Outcome
) -> None:
    job_id = submitted(client)
    first = payload_of(store, job_id)
    store.settle(an_ending(claim_one(store).held, outcome), "w1")
    answer = again(client, job_id)
    assert answer.status_code == 202, answer.text
    job = answer.get_json()
    assert answer.headers["Location"] == f"/v1/jobs/{job['id']}"
    assert job["id"] != job_id
    assert payload_of(store, job["id"]) == first
    view = view_of(store, job["id"])
    assert (view.deadline_ms, view.metadata, view.max_tokens, view.model) == (9_000, {"a": "b"}, 20, "m")
    assert view.form["again_of"] == job_id


def test_a_canceled_job_runs_again_and_one_that_waits_does_not(client: FlaskClient, store: Store) -> None:
    job_id = submitted(client)
    refused = again(client, job_id)
    assert (refused.status_code, refused.get_json()["error"]["code"]) == (409, "cannot_run_again")
    client.delete(f"/v1/jobs/{job_id}", headers=BLUE)
    assert again(client, job_id).status_code == 202


def test_nothing_is_kept_for_a_tenant_that_has_not_opted_in(client: FlaskClient, store: Store) -> None:
    job_id = submitted(client, tenant="green")
    store.settle(an_ending(claim_one(store).held), "w1")
    assert not store.client.exists(keys.payload(job_id))
    assert again(client, job_id, "green").status_code == 409
    kept = ended(client, store)
    Tenants(store.client).change("blue", {"run_again": False})
    # The door reads policies anew after some seconds, and other doors at once.
    assert again(a_door(store, client.application.extensions["penstock"].settings), kept).status_code == 409


def test_another_tenant_finds_no_such_job(client: FlaskClient, store: Store) -> None:
    assert again(client, ended(client, store), "green").status_code == 404


def test_the_request_is_deleted_with_the_text_and_expires_with_the_record(client: FlaskClient, store: Store) -> None:
    job_id = ended(client, store)
    assert 0 < store.client.ttl(keys.payload(job_id)) <= store.client.ttl(keys.rq_job(job_id))
    client.delete(f"/v1/jobs/{job_id}?erase=1", headers=BLUE)
    assert not store.client.exists(keys.payload(job_id))
    assert again(client, job_id).status_code == 409


def test_kept_requests_count_among_the_bytes_of_their_tenant(client: FlaskClient, store: Store) -> None:
    def kept_bytes() -> int:
        return int(store.client.hget(keys.kept("blue"), "ended") or 0)

    before = kept_bytes()
    job_id = ended(client, store, prompt="x" * 20_000)
    assert 20_000 < kept_bytes() - before < 30_000
    client.delete(f"/v1/jobs/{job_id}?erase=1", headers=BLUE)
    assert kept_bytes() - before < 10_000


def test_a_private_job_stays_private(client: FlaskClient, store: Store) -> None:
    store.client.hset(keys.books("m"), "policy_local", "1")
    job_id = ended(client, store, private=True)
    assert view_of(store, again(client, job_id).get_json()["id"]).private


def test_a_chat_runs_again(client: FlaskClient, store: Store) -> None:
    messages = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
    job_id = submitted(client, messages)
    store.settle(an_ending(claim_one(store).held), "w1")
    new_id = again(client, job_id).get_json()["id"]
    assert payload_of(store, new_id)["messages"] == messages["messages"]


@pytest.mark.parametrize(
    "fields",
    [
        {"payload": {"prompt": "hello"}, "form": {"store": False}},
        {"payload": {"prompt": "hello"}, "line": BatchLine("batch", "token", 1)},
        {"payload": {"input": ["hello"]}},
        {"payload": {"query": "hello", "documents": ["a"]}},
    ],
    ids=["not to be stored", "line of a batch", "embeddings", "scores"],
)
def test_requests_that_are_stored_elsewhere_or_nowhere_are_not_kept(fields: dict[str, Any]) -> None:
    opted_in = Caller("blue", "", TenantPolicy(run_again=True))
    request = GenerationRequest(deadline=RequestDeadline(1_000, "body"), default_max_tokens=1, **fields)
    assert not with_kept_request(opted_in, request).keeps_always
    kept = GenerationRequest(payload={"prompt": ""}, deadline=RequestDeadline(1_000, "body"), default_max_tokens=1)
    assert with_kept_request(opted_in, kept).keeps_always
    assert not with_kept_request(Caller("blue", "", TenantPolicy()), kept).keeps_always


def test_a_repeated_call_with_the_same_key_runs_the_job_once(client: FlaskClient, store: Store) -> None:
    job_id = ended(client, store)
    ids = {again(client, job_id, **{"Idempotency-Key": "k"}).get_json()["id"] for _ in range(2)}
    assert len(ids) == 1
    assert again(client, job_id, **{"Idempotency-Key": "other"}).get_json()["id"] not in ids


def test_the_console_runs_a_job_again_after_its_end_and_records_it(client: FlaskClient, store: Store) -> None:
    job_id = submitted(client)
    assert 'id="again"' not in client.get(f"/console/jobs/{job_id}").text
    store.settle(an_ending(claim_one(store).held, Outcome.FAILED, code=EndCode.ENGINE_ERROR), "w1")
    assert 'id="again"' in client.get(f"/console/jobs/{job_id}").text
    said = press(client, "again", job=job_id).text
    new_id = said.partition('href="/console/jobs/')[2].partition('"')[0]
    view = view_of(store, new_id)
    assert (view.state, view.tenant, view.key_label) == (JobState.QUEUED, "blue", "console")
    assert f'href="/console/jobs/{job_id}"' in client.get(f"/console/jobs/{new_id}").text
    newest = next(list_actions(store.client, limit=1))
    assert (newest.what, job_id in newest.on) == ("job.again", True)
    # The console shows no answer of a prompt that it has not submitted.
    assert 'role="log"' not in client.get(f"/console/jobs/{new_id}").text


def test_a_job_that_the_console_runs_again_is_not_canceled_although_nobody_polls_it(
    client: FlaskClient, store: Store, settings: Settings
) -> None:
    job_id = ended(client, store)
    polled = a_door(store, settings, poll_grace_ms=60_000)
    assert view_of(store, str(again(polled, job_id).get_json()["id"])).poll_grace_ms == 60_000
    new_id = press(polled, "again", job=job_id).text.partition('href="/console/jobs/')[2].partition('"')[0]
    assert view_of(store, new_id).poll_grace_ms == 0

"""Degradation through the doors: under overload, only tenants that opted in get shorter answers, which say so."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask.testing import FlaskClient

from shared.accounts.tenants import Tenants
from shared.jobs.job import ClaimRef
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import MODEL, a_heartbeat, claim_one, reconfigure, view_of
from tests.support.door import a_door, admitted_job, job_of, settle, submit, worker
from tests.support.processes import wait_for
from tests.support.program import program
from tests.support.scripted_door import json_answer, scripted_door
from tests.support.served import Served, sim_served
from web.gate.answers import final, job_status
from web.openapi import compatible_models

#: 20 ms a token: a deadline of 8 s, less a fifth and at most 10 ms for the prompt, leaves time for about 319 tokens.
RATES: dict[str, str | int | float] = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}
LONG = {"max_tokens": 500, "deadline_ms": 8_000}
BLUE = {"X-Tenant": "blue"}


def set_tier_1(store: Store) -> None:
    """Set the pool to tier 1 and stop the scripts' time, so that admission does not compute the tier again."""
    now_ms = 1_000 * store.client.time()[0]
    store.client.set(keys.clock(), f"={now_ms}")
    store.client.hset(keys.books(MODEL), mapping={"tier": 1, "tier_look_ms": now_ms})


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    """A door to a pool at tier 1; its tenant `blue` opted in to degradation."""
    reconfigure(store, settings, degradation="on")
    Tenants(store.client).set("blue", TenantPolicy(degrade=True))
    set_tier_1(store)
    store.renew(a_heartbeat(slots=4, facts=RATES), [])
    return a_door(store, settings, degradation="on")


def test_a_job_of_a_tenant_that_opted_in_is_degraded_and_says_so_wherever_it_is_shown(client, store):
    job = admitted_job(submit(client, headers=BLUE, **LONG))
    assert "degraded" not in job
    claimed = claim_one(store)
    assert 250 <= claimed.max_tokens <= 319
    changes = [{"what": "max_tokens", "from": 500, "to": claimed.max_tokens, "why": "tier 1"}]
    assert job_of(client.get(job["urls"]["self"], headers=BLUE))["degraded"] == changes
    settle(store, claimed.held)
    ended = job_of(client.get(job["urls"]["self"], headers=BLUE))
    assert (ended["status"], ended["finish_reason"], ended["degraded"]) == ("succeeded", "length", changes)
    assert client.get("/v1/jobs", headers=BLUE).get_json()["data"][0]["degraded"] == changes
    events = client.get(job["urls"]["events"], headers=BLUE).text
    assert json.dumps(changes[0], separators=(",", ":")) in events.replace(": ", ":").replace(", ", ",")
    metrics = client.get("/metrics/fleet").text
    assert 'penstock_degraded_total{tenant="blue",what="max_tokens"} 1.0' in metrics


@pytest.mark.parametrize(
    ("tenant", "body"),
    [
        ("blue", {"degrade": False}),
        ("blue", {"response_format": {"type": "json_object"}}),
        ("green", {}),
        ("green", {"degrade": True}),
    ],
    ids=[
        "the request forbids it",
        "the request has a response format",
        "the tenant did not opt in",
        "a request alone cannot opt in",
    ],
)
def test_other_jobs_are_not_degraded(client, store, tenant: str, body: dict[str, Any]):
    job = admitted_job(submit(client, headers={"X-Tenant": tenant}, **LONG, **body))
    assert claim_one(store).max_tokens == 500
    assert "degraded" not in job_of(client.get(job["urls"]["self"], headers={"X-Tenant": tenant}))


def test_doctor_reports_the_tier_of_an_overloaded_pool(client, store, store_url, tmp_path):
    doctor = program(tmp_path, REDIS_URL=store_url)
    assert f"pool {MODEL} is at tier 1" in doctor("doctor").stderr
    store.client.hset(keys.books(MODEL), "tier", 0)
    assert "tier" not in doctor("doctor").stderr


def test_the_command_line_shows_how_a_job_was_degraded(tmp_path):
    change = {"what": "max_tokens", "from": 512, "to": 180, "why": "tier 1"}
    ended = {"id": "j1", "status": "succeeded", "text": "Once", "degraded": [change]}
    with scripted_door(json_answer(202, ended), json_answer(200, ended)) as door:
        penstock = program(tmp_path, PENSTOCK_URL=door.url)
        assert "job j1 was cut to end in time: max_tokens 512 to 180 (tier 1)\n" in penstock("submit", "x").stderr
        assert "degraded\tmax_tokens 512 to 180 (tier 1)\n" in penstock("job", "j1").stdout


CHAT = {"messages": [{"role": "user", "content": "hello"}], **LONG}


def test_a_pool_with_a_free_slot_and_no_queue_admits_no_job_by_cutting_its_answer(client, store):
    """32 tokens would fit; the expected 128 would not, not even in an idle pool, so that a retry cannot help."""
    admitted_job(submit(client, headers=BLUE, **LONG))
    settle(store, claim_one(store).held)
    answer = submit(client, headers=BLUE, max_tokens=500, deadline_ms=1_000)
    assert (answer.status_code, answer.get_json()["reason"]) == (503, "deadline_unmeetable")
    assert answer.headers["x-should-retry"] == "false"


def test_the_gates_frames_show_how_a_job_was_degraded(client, store):
    job = admitted_job(submit(client, headers=BLUE, **LONG))
    settle(store, claim_one(store).held)
    view = view_of(store, job["id"])
    changes = [change.as_dict() for change in view.degraded]
    assert changes
    assert final("a1", view)["degraded"] == job_status("a1", view)["degraded"] == changes


ROUTES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hello", **LONG},
    "/v1/responses": {"input": "hello", "max_output_tokens": 500, "deadline_ms": 8_000},
}


@pytest.mark.parametrize("path", ROUTES)
def test_openai_routes_show_beside_the_answer_how_a_job_was_degraded(client, store, path: str):
    with worker(store, lambda held: settle(store, held)):
        answer = client.post(path, json=ROUTES[path], headers=BLUE)
    body = answer.get_json()
    assert answer.status_code == 200, body
    (compatible_models.Response if path == "/v1/responses" else compatible_models.Completion).model_validate(body)
    (change,) = body["degraded"]
    assert (change["what"], change["from"], change["why"]) == ("max_tokens", 500, "tier 1")


def test_the_last_chunk_of_a_stream_shows_that_the_job_was_degraded(client, store):
    def act(held: ClaimRef) -> None:
        store.append([(held, "some words", 2)])
        settle(store, held)

    with worker(store, act):
        text = client.post("/v1/chat/completions", json=CHAT | {"stream": True}, headers=BLUE).text
    chunks = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if "degraded" in chunk] == ["length"]


#: Eight slots of 100 words a second; answers of 400 words take 4 s. With preemption, a job of a tenant that has
#: received little service would get a running job's slot at once, and so meet its deadline without a shorter answer.
SERVED = {
    "PENSTOCK_ADMISSION": "full",
    "PENSTOCK_DEGRADATION": "on",
    "PENSTOCK_MAX_BATCH_SIZE": "8",
    "PENSTOCK_PREEMPTION": "off",
    "PENSTOCK_SIM_DECODE_TPS": "100",
}
ANSWER = {"max_tokens": 400, "deadline_ms": 60_000}


def learn_answer_lengths(served: Served, *tenants: str) -> None:
    """Run eight jobs of each tenant, so that the length of its answers is known."""
    with ThreadPoolExecutor(8 * len(tenants)) as clients:
        calls = [clients.submit(served.submit, tenant, **ANSWER) for tenant in tenants for _ in range(8)]
    ids = [call.result().json()["id"] for call in calls]
    served.stage.ended(*ids, timeout_s=60)


def overload(served: Served) -> list[str]:
    """Submit a job for each of twelve tenants and a second one for eight of them; return their ids at tier 1."""
    ids = []
    for i in [*range(12), *range(8)]:
        answer = served.submit(f"filler{i}", **ANSWER)
        assert answer.status_code == 202
        ids.append(answer.json()["id"])

    def at_tier_1() -> bool:
        served.submit("passer-by", max_tokens=400, deadline_ms=1)
        return served.stage.client.hget(keys.books("sim"), "tier") == b"1"

    wait_for(at_tier_1, "the pool to reach tier 1")
    return ids


def test_under_overload_a_tenant_that_opted_in_gets_a_shorter_answer_where_another_is_refused(tmp_path):
    with sim_served(tmp_path, **SERVED) as served:
        tenants = Tenants(served.stage.client)
        # With this weight the two have received little service, so they come before tenants that have run a job.
        tenants.set("blue", TenantPolicy(degrade=True, weight=100.0))
        tenants.set("green", TenantPolicy(weight=100.0))
        learn_answer_lengths(served, "blue", "green")
        request_fields = {"max_tokens": 400, "deadline_ms": 5_400}
        for _ in range(5):
            began_s = time.monotonic()
            fillers = overload(served)
            green_answer = served.submit("green", **request_fields)
            blue_answer = served.submit("blue", **request_fields)
            # Later, the first answers have ended, and there is time for both.
            if time.monotonic() - began_s < 2.5:
                break
            for job_id in [
                *fillers,
                *(answer.json()["id"] for answer in (green_answer, blue_answer) if answer.is_success),
            ]:
                served.stage.store.cancel(job_id)
            served.stage.ended(*fillers)
        assert (green_answer.status_code, green_answer.json()["reason"]) == (503, "deadline_unmeetable")
        assert blue_answer.status_code == 202, blue_answer.text
        served.stage.ended(blue_answer.json()["id"])
        job = served.http.get(blue_answer.json()["urls"]["self"], headers={"X-Tenant": "blue"}).json()
        assert (job["status"], job["finish_reason"]) == ("succeeded", "length")
        (change,) = job["degraded"]
        assert (change["what"], change["from"], change["why"]) == ("max_tokens", 400, "tier 1")
        assert 32 <= change["to"] == job["usage"]["completion_tokens"] < 400
        assert job["ended_at"] < job["deadline_at"]
        served.stage.assert_sound()

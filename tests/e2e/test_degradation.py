"""Degradation through the doors: who allows it is answered shorter under pressure and told so, nobody else is."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask.testing import FlaskClient

from shared.jobs.job import Held
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from shared.store.tenants import Tenants
from tests.support.builders import MODEL, a_beat, claim_one, reconfigure, seen
from tests.support.door import a_door, job_of, settle, submit, taken, worker
from tests.support.processes import wait_for
from tests.support.program import program
from tests.support.scripted_door import a_door as scripted_door
from tests.support.scripted_door import says
from tests.support.served import Served, sim_served
from web.api import response_models
from web.gate.answers import final, standing

#: 20 ms a token: of a patience of 8 s, less a fifth and 10 ms or less for the prompt, about 319 tokens are left.
RATES: dict[str, str | int | float] = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}
LONG = {"max_tokens": 500, "deadline_ms": 8_000}
BLUE = {"X-Tenant": "blue"}


def press(store: Store) -> None:
    """The pool is at tier 1, and admission looks again in a minute only."""
    seconds, _ = store.client.time()
    store.client.hset(keys.books(MODEL), mapping={"tier": 1, "tier_look_ms": 1_000 * (seconds + 60)})


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    """A door to a pool at tier 1, whose tenant `blue` opted in."""
    reconfigure(store, settings, degradation="on")
    Tenants(store.client).set("blue", TenantPolicy(degrade=True))
    store.renew(a_beat(slots=4, facts=RATES), [])
    press(store)
    return a_door(store, settings, degradation="on")


def test_a_job_of_a_tenant_that_opted_in_is_cut_and_says_so_wherever_it_is_shown(client, store):
    job = taken(submit(client, headers=BLUE, **LONG))
    assert "degraded" not in job
    claimed = claim_one(store)
    assert 250 <= claimed.max_tokens <= 319
    told = [{"what": "max_tokens", "from": 500, "to": claimed.max_tokens, "why": "tier 1"}]
    assert job_of(client.get(job["urls"]["self"], headers=BLUE))["degraded"] == told
    settle(store, claimed.held)
    ended = job_of(client.get(job["urls"]["self"], headers=BLUE))
    assert (ended["status"], ended["finish_reason"], ended["degraded"]) == ("succeeded", "length", told)
    assert client.get("/v1/jobs", headers=BLUE).get_json()["data"][0]["degraded"] == told
    events = client.get(job["urls"]["events"], headers=BLUE).text
    assert json.dumps(told[0], separators=(",", ":")) in events.replace(": ", ":").replace(", ", ",")
    told_metrics = client.get("/metrics/fleet").text
    assert 'penstock_degraded_total{tenant="blue",what="max_tokens"} 1.0' in told_metrics


@pytest.mark.parametrize(
    ("tenant", "body"),
    [
        ("blue", {"degrade": False}),
        ("blue", {"response_format": {"type": "json_object"}}),
        ("green", {}),
        ("green", {"degrade": True}),
    ],
    ids=["the request forbids it", "it has a form", "its tenant did not opt in", "a request alone cannot opt in"],
)
def test_nobody_else_is_cut(client, store, tenant: str, body: dict[str, Any]):
    job = taken(submit(client, headers={"X-Tenant": tenant}, **LONG, **body))
    assert claim_one(store).max_tokens == 500
    assert "degraded" not in job_of(client.get(job["urls"]["self"], headers={"X-Tenant": tenant}))


def test_doctor_says_which_pool_is_pressed(client, store, store_url, tmp_path):
    doctor = program(tmp_path, REDIS_URL=store_url)
    assert f"pool {MODEL} is at tier 1" in doctor("doctor").stderr
    store.client.hset(keys.books(MODEL), "tier", 0)
    assert "tier" not in doctor("doctor").stderr


def test_the_command_line_says_it_too(tmp_path):
    change = {"what": "max_tokens", "from": 512, "to": 180, "why": "tier 1"}
    ended = {"id": "j1", "status": "succeeded", "text": "Once", "degraded": [change]}
    with scripted_door(says(202, ended), says(200, ended)) as door:
        penstock = program(tmp_path, PENSTOCK_URL=door.url)
        assert "j1 was changed to fit: max_tokens 512 to 180 (tier 1)\n" in penstock("submit", "x").stderr
        assert "degraded\tmax_tokens 512 to 180 (tier 1)\n" in penstock("job", "j1").stdout


CHAT = {"messages": [{"role": "user", "content": "hello"}], **LONG}


def test_with_a_free_slot_and_nothing_waiting_nobody_is_taken_for_a_short_answer(client):
    """32 tokens would fit, and the 128 that are expected do not: the pool could not do better when it is at rest."""
    answer = submit(client, headers=BLUE, max_tokens=500, deadline_ms=1_000)
    assert (answer.status_code, answer.get_json()["reason"]) == (503, "deadline_unmeetable")
    assert answer.headers["x-should-retry"] == "false"


def test_the_gates_frames_say_it(client, store):
    job = taken(submit(client, headers=BLUE, **LONG))
    settle(store, claim_one(store).held)
    view = seen(store, job["id"])
    told = [change.as_dict() for change in view.degraded]
    assert told
    assert final("a1", view)["degraded"] == standing("a1", view)["degraded"] == told


WAYS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hello", **LONG},
    "/v1/responses": {"input": "hello", "max_output_tokens": 500, "deadline_ms": 8_000},
}


@pytest.mark.parametrize("path", WAYS)
def test_openais_routes_say_it_beside_the_answer(client, store, path: str):
    with worker(store, lambda held: settle(store, held)):
        answer = client.post(path, json=WAYS[path], headers=BLUE)
    body = answer.get_json()
    assert answer.status_code == 200, body
    (response_models.Response if path == "/v1/responses" else response_models.Completion).model_validate(body)
    (change,) = body["degraded"]
    assert (change["what"], change["from"], change["why"]) == ("max_tokens", 500, "tier 1")


def test_a_streams_last_chunk_says_it(client, store):
    def act(held: Held) -> None:
        store.append([(held, "some words", 2)])
        settle(store, held)

    with worker(store, act):
        text = client.post("/v1/chat/completions", json=CHAT | {"stream": True}, headers=BLUE).text
    chunks = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if "degraded" in chunk] == ["length"]


#: Eight slots of 200 words a second; answers of 400 words take 2 s.
SERVED = {"PENSTOCK_ADMISSION": "full", "PENSTOCK_DEGRADATION": "on", "PENSTOCK_MAX_BATCH_SIZE": "8"}
ANSWER = {"max_tokens": 400, "deadline_ms": 60_000}


def knows_answers_of(served: Served, *tenants: str) -> None:
    """Eight answers of each tenant, from which its lengths are known."""
    with ThreadPoolExecutor(8 * len(tenants)) as clients:
        calls = [clients.submit(served.submit, tenant, **ANSWER) for tenant in tenants for _ in range(8)]
    ids = [call.result().json()["id"] for call in calls]
    served.stage.ended(*ids, timeout_s=60)


def fill(served: Served) -> None:
    """Twelve tenants, of which eight run a job and wait with another, until the pool is at tier 1."""
    for i in [*range(12), *range(8)]:
        assert served.submit(f"filler{i}", **ANSWER).status_code == 202

    def pressed() -> bool:
        served.submit("passer-by", max_tokens=400, deadline_ms=1)
        return served.stage.client.hget(keys.books("sim"), "tier") == b"1"

    wait_for(pressed, "a second of pressure")


def test_under_pressure_who_opted_in_is_answered_shorter_in_time_where_another_is_refused(tmp_path):
    with sim_served(tmp_path, **SERVED) as served:
        tenants = Tenants(served.stage.client)
        # By weight the two have hardly been served, so that they come before those who have run a job.
        tenants.set("blue", TenantPolicy(degrade=True, weight=100.0))
        tenants.set("green", TenantPolicy(weight=100.0))
        knows_answers_of(served, "blue", "green")
        fill(served)
        hurried = {"max_tokens": 400, "deadline_ms": 2_700}
        other, mine = served.submit("green", **hurried), served.submit("blue", **hurried)
        assert (other.status_code, other.json()["reason"]) == (503, "deadline_unmeetable")
        assert mine.status_code == 202, mine.text
        served.stage.ended(mine.json()["id"])
        job = served.http.get(mine.json()["urls"]["self"], headers={"X-Tenant": "blue"}).json()
        assert (job["status"], job["finish_reason"]) == ("succeeded", "length")
        (change,) = job["degraded"]
        assert (change["what"], change["from"], change["why"]) == ("max_tokens", 400, "tier 1")
        assert 32 <= change["to"] == job["usage"]["completion_tokens"] < 400
        assert job["ended_at"] < job["deadline_at"]
        served.stage.still_sound()

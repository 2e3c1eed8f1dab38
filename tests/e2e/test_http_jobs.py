"""`/v1/jobs` over a real store: submit, read, wait, cancel, list, and who sees what."""

import threading
import time

import pytest
from flask.testing import FlaskClient

from shared.jobs.outcomes import Outcome
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from shared.store.tenants import Tenants
from tests.support.builders import contents
from tests.support.door import a_door, fault, job_of, refused, run_next, serve, settle, submit, taken
from web.api import response_models


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    serve(store)
    return a_door(store, settings)


def test_an_admitted_job_is_202_with_its_place_and_when_to_ask_again(client: FlaskClient) -> None:
    response = submit(client, deadline_ms=20_000, metadata={"trace": "t1"})
    job = taken(response)
    assert response.headers["Location"] == job["urls"]["self"] == f"/v1/jobs/{job['id']}"
    assert int(response.headers["retry-after-ms"]) == job["queue"]["poll_after_ms"]
    assert (job["status"], job["tenant"], job["model"], job["attempts"]) == ("queued", "default", "m", 0)
    assert job["patience"] == {"deadline_ms": 20_000, "from": "body"}
    assert round(job["deadline_at"] - job["created_at"], 3) == 20
    assert job["queue"]["position"] == 1
    assert job["metadata"] == {"trace": "t1"}


def test_a_job_is_read_in_every_state_until_its_answer(client: FlaskClient, store: Store) -> None:
    job = taken(submit(client))
    held = run_next(store)
    running = job_of(client.get(job["urls"]["self"]))
    assert (running["status"], running["attempts"], running["queue"]["position"]) == ("running", 1, None)
    settle(store, held)
    response = client.get(job["urls"]["self"])
    ended = job_of(response)
    assert (ended["status"], ended["text"], ended["finish_reason"], ended["queue"]) == (
        "succeeded",
        "some words",
        "length",
        None,
    )
    assert ended["usage"]["completion_tokens"] == 20
    assert ended["usage"]["ttft_ms"] >= 7
    assert "retry-after-ms" not in response.headers


def test_an_expired_job_says_at_which_stage_and_keeps_its_text(client: FlaskClient, store: Store) -> None:
    job = taken(submit(client))
    ending = {"outcome": Outcome.EXPIRED, "code": "deadline_exceeded", "stage": "decode", "finish_reason": "deadline"}
    settle(store, run_next(store), **ending, text="some wo")
    ended = job_of(client.get(job["urls"]["self"]))
    assert (ended["status"], ended["text"], ended["finish_reason"]) == ("expired", "some wo", "deadline")
    assert (ended["error"]["code"], ended["error"]["stage"]) == ("deadline_exceeded", "decode")


def test_a_full_tenant_is_refused_and_another_is_taken(client: FlaskClient, store: Store) -> None:
    for _ in range(16):
        taken(submit(client, headers={"X-Tenant": "blue"}))
    before = contents(store)
    body = refused(submit(client, headers={"X-Tenant": "blue"}), "tenant_queue_full")
    assert contents(store) == before
    full = {"limit": "tenant_waiting_jobs", "value": 16, "max": 16}
    assert body["limits"] == {**full, "inflight": 16, "max_inflight": 64}
    taken(submit(client, headers={"X-Tenant": "green"}))


def test_nobody_serves_the_model_any_more(client: FlaskClient, store: Store) -> None:
    taken(submit(client, model="m"))
    store.client.incrby(keys.clock(), 6_000)
    refused(submit(client, model="m"), "no_worker")


def test_a_model_never_seen_is_404(client: FlaskClient) -> None:
    fault(submit(client, model="nope"), 404, "model_not_found", "model")


def test_a_request_names_a_model_when_several_are_live(client: FlaskClient, store: Store) -> None:
    serve(store, "w2", model="other")
    message = fault(submit(client), 400, "model_required", "model")
    assert "m, other" in message
    assert taken(submit(client, model="other"))["model"] == "other"


def test_a_tenant_s_default_model_and_its_allowed_models_hold(client: FlaskClient, store: Store) -> None:
    serve(store, "w2", model="other")
    Tenants(store.client).set("blue", TenantPolicy(models=("other",), default_model="other"))
    blue = {"X-Tenant": "blue"}
    assert taken(submit(client, headers=blue))["model"] == "other"
    fault(submit(client, headers=blue, model="m"), 404, "model_not_found", "model")


def test_another_tenant_s_job_is_404_like_one_that_never_was(client: FlaskClient, store: Store) -> None:
    job = taken(submit(client, headers={"X-Tenant": "blue"}))
    for path in (job["urls"]["self"], "/v1/jobs/never-was"):
        green = {"X-Tenant": "green"}
        told = {
            fault(client.get(path, headers=green), 404, "job_not_found"),
            fault(client.delete(path, headers=green), 404, "job_not_found"),
            fault(client.get(f"{path}/events", headers=green), 404, "job_not_found"),
        }
        assert len(told) == 1
    assert job_of(client.get(job["urls"]["self"], headers={"X-Tenant": "blue"}))["status"] == "queued"


def test_a_queued_job_is_canceled_at_once(client: FlaskClient, store: Store) -> None:
    job = taken(submit(client))
    canceled = job_of(client.delete(job["urls"]["self"]))
    assert (canceled["status"], canceled["error"]["code"], canceled["finish_reason"]) == (
        "canceled",
        "canceled",
        "canceled",
    )
    assert store.snapshot().inflight == 0


def test_a_running_job_is_asked_to_stop_and_ends_canceled_whatever_its_worker_says(
    client: FlaskClient, store: Store
) -> None:
    job = taken(submit(client))
    held = run_next(store)
    asked = job_of(client.delete(job["urls"]["self"]))
    assert (asked["status"], asked["cancel_requested"]) == ("running", True)
    settle(store, held)
    assert job_of(client.get(job["urls"]["self"]))["status"] == "canceled"


def test_an_ended_job_stays_as_it_ended_and_can_lose_its_text(client: FlaskClient, store: Store) -> None:
    job = taken(submit(client))
    settle(store, run_next(store))
    assert job_of(client.delete(job["urls"]["self"]))["text"] == "some words"
    erased = job_of(client.delete(job["urls"]["self"] + "?erase=1"))
    assert (erased["status"], erased["text"]) == ("succeeded", None)


def test_the_same_idempotency_key_and_body_answer_the_same_job(client: FlaskClient) -> None:
    key = {"Idempotency-Key": "k1"}
    first = taken(submit(client, headers=key))
    assert taken(submit(client, headers=key))["id"] == first["id"]
    fault(submit(client, headers=key, max_tokens=21), 422, "idempotency_mismatch", "Idempotency-Key")
    assert taken(submit(client, headers=key | {"X-Tenant": "green"}))["id"] != first["id"]


def test_a_refusal_stores_no_idempotency_key(client: FlaskClient, store: Store) -> None:
    key = {"Idempotency-Key": "k1"}
    store.client.incrby(keys.clock(), 6_000)
    refused(submit(client, headers=key, model="m"), "no_worker")
    serve(store)
    taken(submit(client, headers=key, max_tokens=21))


def test_a_request_that_a_proxy_repeats_is_one_job(client: FlaskClient) -> None:
    named = {"x-request-id": "r-1"}
    first = taken(submit(client, headers=named))
    assert taken(submit(client, headers=named))["id"] == first["id"]
    assert taken(submit(client, headers=named, prompt="another"))["id"] != first["id"]
    assert taken(submit(client, headers=named | {"X-Tenant": "green"}))["id"] != first["id"]


def test_a_wait_ends_with_the_job(client: FlaskClient, store: Store) -> None:
    ending = threading.Thread(target=lambda: (_when_waiting(store), settle(store, run_next(store))))
    ending.start()
    began = time.monotonic()
    response = submit(client, "/v1/jobs?wait_ms=30000")
    ending.join()
    assert response.status_code == 200
    assert job_of(response)["status"] == "succeeded"
    assert time.monotonic() - began < 10


def _when_waiting(store: Store) -> None:
    while store.snapshot().waiting == 0:
        time.sleep(0.01)


def test_a_wait_ends_with_its_time(client: FlaskClient) -> None:
    began = time.monotonic()
    response = submit(client, headers={"Prefer": "respond-async, wait=1"})
    assert taken(response)["status"] == "queued"
    assert response.headers["Preference-Applied"] == "wait=1"
    assert 1 <= time.monotonic() - began < 5
    read = client.get(response.headers["Location"] + "?wait_ms=50")
    assert job_of(read)["status"] == "queued"


def test_a_wait_for_what_has_ended_does_not_wait(client: FlaskClient, store: Store) -> None:
    job = taken(submit(client))
    settle(store, run_next(store))
    began = time.monotonic()
    assert job_of(client.get(job["urls"]["self"] + "?wait_ms=60000"))["status"] == "succeeded"
    assert time.monotonic() - began < 1


def test_own_jobs_come_newest_first_and_page_by_page(client: FlaskClient) -> None:
    ids = []
    for index in range(5):
        ids.append(taken(submit(client, prompt=f"p{index}"))["id"])
        time.sleep(0.002)  # jobs of one millisecond have no order among them
    taken(submit(client, headers={"X-Tenant": "green"}))
    first = client.get("/v1/jobs?limit=3").get_json()
    second = client.get(f"/v1/jobs?limit=3&cursor={first['cursor']}").get_json()
    assert [job["id"] for job in first["data"] + second["data"]] == ids[::-1]
    assert (first["has_more"], second["has_more"], second["cursor"]) == (True, False, None)


def test_jobs_are_listed_by_status(client: FlaskClient, store: Store) -> None:
    taken(submit(client, prompt="a"))
    taken(submit(client, prompt="b"))
    settle(store, run_next(store))
    assert [job["status"] for job in client.get("/v1/jobs?status=succeeded").get_json()["data"]] == ["succeeded"]
    assert len(client.get("/v1/jobs").get_json()["data"]) == 2


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("status=done", "status"),
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("cursor=", "cursor"),
    ],
)
def test_an_odd_question_is_422_by_name(client: FlaskClient, query: str, param: str) -> None:
    fault(client.get(f"/v1/jobs?{query}"), 422, "invalid_value", param)


def test_the_queue_tells_own_bounds_and_depth(client: FlaskClient, store: Store) -> None:
    Tenants(store.client).set("blue", TenantPolicy(max_waiting=3, weight=2, max_deadline_ms=5_000))
    blue = {"X-Tenant": "blue"}
    for prompt in ("a", "b"):
        taken(submit(client, headers=blue, prompt=prompt, deadline_ms=5_000))
    run_next(store)
    own = client.get("/v1/queue", headers=blue).get_json()
    assert (own["waiting"], own["running"], own["max_waiting"], own["weight"]) == (1, 1, 3, 2)
    assert (own["waiting_tokens"], own["max_waiting_tokens"], own["max_deadline_ms"]) == (21, 65_536, 5_000)
    assert (own["inflight"], own["max_inflight"]) == (2, 64)
    assert client.get("/v1/queue").get_json()["waiting"] == 0


def test_what_cannot_fit_by_any_count_is_refused_at_the_door(client: FlaskClient, store: Store) -> None:
    serve(store, "w1", facts={"n_ctx": 100, "engine": "llama"})
    client.application.extensions["penstock"].pools.picture(max_age_s=0)
    fault(submit(client, max_tokens=100), 400, "context_length_exceeded", "max_tokens")
    taken(submit(client, max_tokens=99))
    # Closer cases are the worker's, who counts.
    taken(submit(client, prompt="a" * 1_000, max_tokens=90))


def test_an_answer_of_no_named_length_is_clipped_to_the_context(client: FlaskClient, store: Store) -> None:
    serve(store, "w1", facts={"n_ctx": 100, "engine": "sim"})
    job = taken(client.post("/v1/jobs", json={"prompt": "one two three"}))
    view = store.touch(job["id"])
    assert view is not None
    assert (view.prompt_tokens, view.max_tokens) == (3, 97)


def test_a_quote_says_what_a_submit_would_come_to_and_changes_nothing(client: FlaskClient, store: Store) -> None:
    before = contents(store)
    response = submit(client, "/v1/quote", max_tokens=30)
    assert response.status_code == 200
    told = response_models.Quote.model_validate(response.get_json())
    assert (told.verdict, told.refusal, told.max_tokens, told.model) == ("admitted", None, 30, "m")
    assert told.cost_mwt > 0
    assert contents(store) == before


def test_a_quote_tells_the_refusal_it_would_get(client: FlaskClient, store: Store) -> None:
    Tenants(store.client).set("blue", TenantPolicy(max_waiting=1))
    blue = {"X-Tenant": "blue"}
    taken(submit(client, headers=blue))
    told = response_models.Quote.model_validate(submit(client, "/v1/quote", headers=blue).get_json())
    assert told.verdict == "yield"
    assert told.refusal is not None
    assert told.refusal.reason == "tenant_queue_full"
    fault(submit(client, "/v1/quote", colour="red"), 422, "invalid_value", "colour")


def test_the_end_is_predicted_when_rates_are_known_and_the_wait_has_its_parts(
    client: FlaskClient, store: Store
) -> None:
    assert taken(submit(client, prompt="unknown rates"))["queue"]["eta_ms"] is None
    serve(store, facts={"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 10})
    job = taken(submit(client, prompt="known rates"))
    assert 0 < job["queue"]["eta_ms"] < 60_000
    assert job["waited"].keys() == {"own_ms", "turn_ms", "requeued_ms"}
    quoted = submit(client, "/v1/quote").get_json()
    assert quoted["eta_ms"] > 0

"""`/v1/jobs` over a real store: submit, read, wait, cancel, list, and what each tenant can see."""

import threading
import time

import pytest
from flask.testing import FlaskClient

from shared.accounts.tenants import Tenants
from shared.jobs.outcomes import Outcome
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import contents
from tests.support.door import a_door, admitted_job, fault, job_of, refused, run_next, serve, settle, submit
from web.openapi import response_models


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    serve(store)
    return a_door(store, settings)


def test_an_admitted_job_is_202_with_its_queue_position_and_when_to_poll(client: FlaskClient) -> None:
    response = submit(client, deadline_ms=20_000, metadata={"trace": "t1"})
    job = admitted_job(response)
    assert response.headers["Location"] == job["urls"]["self"] == f"/v1/jobs/{job['id']}"
    assert int(response.headers["retry-after-ms"]) == job["queue"]["poll_after_ms"]
    assert (job["status"], job["tenant"], job["model"], job["attempts"]) == ("queued", "default", "m", 0)
    assert job["patience"] == {"deadline_ms": 20_000, "from": "body"}
    assert round(job["deadline_at"] - job["created_at"], 3) == 20
    assert job["queue"]["position"] == 1
    assert job["metadata"] == {"trace": "t1"}


def test_a_job_can_be_read_while_it_runs_and_after_its_end(client: FlaskClient, store: Store) -> None:
    job = admitted_job(submit(client))
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


def test_an_expired_job_names_its_stage_and_keeps_its_text(client: FlaskClient, store: Store) -> None:
    job = admitted_job(submit(client))
    ending = {"outcome": Outcome.EXPIRED, "code": "deadline_exceeded", "stage": "decode", "finish_reason": "deadline"}
    settle(store, run_next(store), **ending, text="some wo")
    ended = job_of(client.get(job["urls"]["self"]))
    assert (ended["status"], ended["text"], ended["finish_reason"]) == ("expired", "some wo", "deadline")
    assert (ended["error"]["code"], ended["error"]["stage"]) == ("deadline_exceeded", "decode")


def test_a_tenant_with_a_full_queue_is_refused_and_another_tenant_is_admitted(
    client: FlaskClient, store: Store
) -> None:
    for _ in range(16):
        admitted_job(submit(client, headers={"X-Tenant": "blue"}))
    before = contents(store)
    body = refused(submit(client, headers={"X-Tenant": "blue"}), "tenant_queue_full")
    assert contents(store) == before
    full = {"limit": "tenant_waiting_jobs", "value": 16, "max": 16}
    assert body["limits"] == {**full, "inflight": 16, "max_inflight": 64}
    admitted_job(submit(client, headers={"X-Tenant": "green"}))


def test_a_job_for_a_model_without_live_workers_is_refused(client: FlaskClient, store: Store) -> None:
    admitted_job(submit(client, model="m"))
    store.client.incrby(keys.clock(), 6_000)
    refused(submit(client, model="m"), "no_worker")


def test_an_unknown_model_is_404(client: FlaskClient) -> None:
    fault(submit(client, model="nope"), 404, "model_not_found", "model")


def test_a_request_must_name_a_model_if_several_are_live(client: FlaskClient, store: Store) -> None:
    serve(store, "w2", model="other")
    message = fault(submit(client), 400, "model_required", "model")
    assert "m, other" in message
    assert admitted_job(submit(client, model="other"))["model"] == "other"


def test_a_tenants_default_model_and_allowed_models_apply(client: FlaskClient, store: Store) -> None:
    serve(store, "w2", model="other")
    Tenants(store.client).set("blue", TenantPolicy(models=("other",), default_model="other"))
    blue = {"X-Tenant": "blue"}
    assert admitted_job(submit(client, headers=blue))["model"] == "other"
    fault(submit(client, headers=blue, model="m"), 404, "model_not_found", "model")


def test_a_job_of_another_tenant_is_404_like_an_unknown_one(client: FlaskClient, store: Store) -> None:
    job = admitted_job(submit(client, headers={"X-Tenant": "blue"}))
    for path in (job["urls"]["self"], "/v1/jobs/never-was"):
        green = {"X-Tenant": "green"}
        messages = {
            fault(client.get(path, headers=green), 404, "job_not_found"),
            fault(client.delete(path, headers=green), 404, "job_not_found"),
            fault(client.get(f"{path}/events", headers=green), 404, "job_not_found"),
        }
        assert len(messages) == 1
    assert job_of(client.get(job["urls"]["self"], headers={"X-Tenant": "blue"}))["status"] == "queued"


def test_a_queued_job_is_canceled_at_once(client: FlaskClient, store: Store) -> None:
    job = admitted_job(submit(client))
    canceled = job_of(client.delete(job["urls"]["self"]))
    assert (canceled["status"], canceled["error"]["code"], canceled["finish_reason"]) == (
        "canceled",
        "canceled",
        "canceled",
    )
    assert store.snapshot().inflight == 0


def test_a_running_job_with_a_cancel_request_ends_canceled_whatever_its_worker_reports(
    client: FlaskClient, store: Store
) -> None:
    job = admitted_job(submit(client))
    held = run_next(store)
    view = job_of(client.delete(job["urls"]["self"]))
    assert (view["status"], view["cancel_requested"]) == ("running", True)
    settle(store, held)
    assert job_of(client.get(job["urls"]["self"]))["status"] == "canceled"


def test_deleting_an_ended_job_changes_nothing_and_erase_removes_its_text(client: FlaskClient, store: Store) -> None:
    job = admitted_job(submit(client))
    settle(store, run_next(store))
    assert job_of(client.delete(job["urls"]["self"]))["text"] == "some words"
    erased = job_of(client.delete(job["urls"]["self"] + "?erase=1"))
    assert (erased["status"], erased["text"]) == ("succeeded", None)


def test_the_same_idempotency_key_and_body_return_the_same_job(client: FlaskClient) -> None:
    key = {"Idempotency-Key": "k1"}
    first = admitted_job(submit(client, headers=key))
    assert admitted_job(submit(client, headers=key))["id"] == first["id"]
    fault(submit(client, headers=key, max_tokens=21), 422, "idempotency_mismatch", "Idempotency-Key")
    assert admitted_job(submit(client, headers=key | {"X-Tenant": "green"}))["id"] != first["id"]


def test_a_refusal_stores_no_idempotency_key(client: FlaskClient, store: Store) -> None:
    key = {"Idempotency-Key": "k1"}
    store.client.incrby(keys.clock(), 6_000)
    refused(submit(client, headers=key, model="m"), "no_worker")
    serve(store)
    admitted_job(submit(client, headers=key, max_tokens=21))


def test_a_request_that_a_proxy_repeats_is_one_job(client: FlaskClient) -> None:
    headers = {"x-request-id": "r-1"}
    first = admitted_job(submit(client, headers=headers))
    assert admitted_job(submit(client, headers=headers))["id"] == first["id"]
    assert admitted_job(submit(client, headers=headers, prompt="another"))["id"] != first["id"]
    assert admitted_job(submit(client, headers=headers | {"X-Tenant": "green"}))["id"] != first["id"]


def test_a_wait_ends_when_the_job_ends(client: FlaskClient, store: Store) -> None:
    ending = threading.Thread(target=lambda: (_wait_until_queued(store), settle(store, run_next(store))))
    ending.start()
    began = time.monotonic()
    response = submit(client, "/v1/jobs?wait_ms=30000")
    ending.join()
    assert response.status_code == 200
    assert job_of(response)["status"] == "succeeded"
    assert time.monotonic() - began < 10


def _wait_until_queued(store: Store) -> None:
    while store.snapshot().waiting == 0:
        time.sleep(0.01)


def test_a_wait_ends_when_its_time_is_over(client: FlaskClient) -> None:
    began = time.monotonic()
    response = submit(client, headers={"Prefer": "respond-async, wait=1"})
    assert admitted_job(response)["status"] == "queued"
    assert response.headers["Preference-Applied"] == "wait=1"
    assert 1 <= time.monotonic() - began < 20
    read = client.get(response.headers["Location"] + "?wait_ms=50")
    assert job_of(read)["status"] == "queued"


def test_a_wait_for_an_ended_job_returns_at_once(client: FlaskClient, store: Store) -> None:
    job = admitted_job(submit(client))
    settle(store, run_next(store))
    began = time.monotonic()
    assert job_of(client.get(job["urls"]["self"] + "?wait_ms=60000"))["status"] == "succeeded"
    assert time.monotonic() - began < 20


def test_a_tenants_own_jobs_are_listed_newest_first_in_pages(client: FlaskClient) -> None:
    ids = []
    for index in range(5):
        ids.append(admitted_job(submit(client, prompt=f"p{index}"))["id"])
        time.sleep(0.002)  # jobs of the same millisecond have no defined order
    admitted_job(submit(client, headers={"X-Tenant": "green"}))
    first = client.get("/v1/jobs?limit=3").get_json()
    second = client.get(f"/v1/jobs?limit=3&cursor={first['cursor']}").get_json()
    assert [job["id"] for job in first["data"] + second["data"]] == ids[::-1]
    assert (first["has_more"], second["has_more"], second["cursor"]) == (True, False, None)


def test_jobs_are_listed_by_status(client: FlaskClient, store: Store) -> None:
    admitted_job(submit(client, prompt="a"))
    admitted_job(submit(client, prompt="b"))
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
def test_an_invalid_query_parameter_is_422_and_named(client: FlaskClient, query: str, param: str) -> None:
    fault(client.get(f"/v1/jobs?{query}"), 422, "invalid_value", param)


def test_the_queue_route_shows_the_tenants_own_bounds_and_depth(client: FlaskClient, store: Store) -> None:
    Tenants(store.client).set("blue", TenantPolicy(max_waiting=3, weight=2, max_deadline_ms=5_000))
    blue = {"X-Tenant": "blue"}
    for prompt in ("a", "b"):
        admitted_job(submit(client, headers=blue, prompt=prompt, deadline_ms=5_000))
    run_next(store)
    own = client.get("/v1/queue", headers=blue).get_json()
    assert (own["waiting"], own["running"], own["max_waiting"], own["weight"]) == (1, 1, 3, 2)
    assert (own["waiting_tokens"], own["max_waiting_tokens"], own["max_deadline_ms"]) == (21, None, 5_000)
    assert (own["inflight"], own["max_inflight"]) == (2, 64)
    assert client.get("/v1/queue").get_json()["waiting"] == 0


def test_a_request_that_certainly_exceeds_the_context_is_400_at_the_door(client: FlaskClient, store: Store) -> None:
    serve(store, "w1", facts={"n_ctx": 100, "engine": "llama"})
    client.application.extensions["penstock"].pools.directory(max_age_s=0)
    fault(submit(client, max_tokens=100), 400, "context_length_exceeded", "max_tokens")
    admitted_job(submit(client, max_tokens=99))
    # Closer cases are left to the worker, which counts the tokens.
    admitted_job(submit(client, prompt="a" * 1_000, max_tokens=90))


def test_a_prompt_that_seems_too_long_for_the_context_is_admitted_as_one_that_fills_it(
    client: FlaskClient, store: Store
) -> None:
    # The whole prompt would take ten minutes. The worker refuses it as soon as it has counted its tokens.
    serve(store, facts={"n_ctx": 100, "engine": "llama", "mu_wtps": 10, "prefill_tps": 10, "tpot_ms": 100})
    admitted_job(submit(client, prompt="a " * 10_000, max_tokens=1, deadline_ms=60_000))
    assert store.jobs("default").jobs[0].prompt_tokens == 100


def test_an_answer_without_max_tokens_is_limited_to_the_context(client: FlaskClient, store: Store) -> None:
    serve(store, "w1", facts={"n_ctx": 100, "counts_words": True})
    job = admitted_job(client.post("/v1/jobs", json={"prompt": "one two three"}))
    view = store.touch(job["id"])
    assert view is not None
    assert (view.prompt_tokens, view.max_tokens) == (3, 97)


def test_a_quote_predicts_the_verdict_of_a_submit_and_changes_nothing(client: FlaskClient, store: Store) -> None:
    before = contents(store)
    response = submit(client, "/v1/quote", max_tokens=30)
    assert response.status_code == 200
    quote = response_models.Quote.model_validate(response.get_json())
    assert (quote.verdict, quote.refusal, quote.max_tokens, quote.model) == ("admitted", None, 30, "m")
    assert quote.cost_mwt > 0
    assert contents(store) == before


def test_a_quote_contains_the_refusal_that_a_submit_would_get(client: FlaskClient, store: Store) -> None:
    Tenants(store.client).set("blue", TenantPolicy(max_waiting=1))
    blue = {"X-Tenant": "blue"}
    admitted_job(submit(client, headers=blue))
    quote = response_models.Quote.model_validate(submit(client, "/v1/quote", headers=blue).get_json())
    assert quote.verdict == "yield"
    assert quote.refusal is not None
    assert quote.refusal.reason == "tenant_queue_full"
    fault(submit(client, "/v1/quote", colour="red"), 422, "invalid_value", "colour")


def test_the_eta_is_given_once_rates_are_known_and_the_wait_has_its_parts(client: FlaskClient, store: Store) -> None:
    assert admitted_job(submit(client, prompt="unknown rates"))["queue"]["eta_ms"] is None
    serve(store, facts={"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 10})
    job = admitted_job(submit(client, prompt="known rates"))
    assert 0 < job["queue"]["eta_ms"] < 60_000
    assert job["waited"].keys() == {"own_ms", "turn_ms", "paused_ms", "requeued_ms"}
    quoted = submit(client, "/v1/quote").get_json()
    assert 0 < quoted["eta_early_ms"] <= quoted["eta_ms"] <= quoted["eta_late_ms"]

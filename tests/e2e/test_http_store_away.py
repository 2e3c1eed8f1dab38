"""The HTTP door without its store: it refuses jobs within a second, and no refused job keeps running."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.builders import stat, view_of
from tests.support.door import a_door, admitted_job, door_store, job_of, refused, run_next, serve, settle, submit
from tests.support.lossy import LossyProxy
from tests.support.processes import in_time, wait_for


@pytest.fixture
def alone(settings: Settings, tmp_path: Path) -> FlaskClient:
    """A door whose store was never started."""
    return a_door(door_store(f"unix://{tmp_path}/missing.sock"), settings)


@pytest.fixture
def proxy(tmp_path: Path, store_url: str) -> Iterator[LossyProxy]:
    with LossyProxy(tmp_path, store_url) as proxy:
        yield proxy


def test_every_route_that_needs_the_store_refuses_at_once(alone: FlaskClient) -> None:
    def attempt() -> list[tuple[float, float]]:
        began = time.monotonic()
        answers = [
            submit(alone),
            alone.get("/v1/jobs/x"),
            alone.delete("/v1/jobs/x"),
            alone.get("/v1/jobs"),
            alone.get("/v1/queue"),
            alone.get("/v1/jobs/x/events"),
            alone.get("/v1/models"),
            alone.get("/health/ready"),
            alone.get("/metrics/fleet"),
            alone.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]}),
        ]
        took_s = time.monotonic() - began
        for answer in answers:
            body = refused(answer, "store_unavailable")
            assert "x-should-retry" not in answer.headers
            assert body["limits"]["inflight"] is None
        return [(took_s, 1)]

    in_time(attempt)


def test_health_and_process_metrics_work_without_the_store(alone: FlaskClient) -> None:
    refused(submit(alone), "store_unavailable")
    assert alone.get("/health").status_code == 200
    assert "penstock_refused_without_store_total" in alone.get("/metrics").text


def test_a_submit_is_refused_in_time_if_the_store_does_not_answer(
    store: Store, store_url: str, settings: Settings
) -> None:
    client = a_door(door_store(store_url), settings)

    def attempt() -> list[tuple[float, float]]:
        serve(store)
        # A door that waited until the store answers would admit the job.
        store.client.client_pause(3_000)
        began = time.monotonic()
        refused(submit(client), "store_unavailable")
        took_s = time.monotonic() - began
        wait_for(lambda: submit(client).status_code == 202, "the store to be back")
        return [(took_s, 1.4)]

    in_time(attempt)


def test_an_offer_whose_answer_is_lost_is_repeated_and_admits_one_job(
    store: Store, proxy: LossyProxy, settings: Settings
) -> None:
    serve(store)
    client = a_door(door_store(proxy.url), settings)
    proxy.lose(b"$8\r\nadmitted", times=1)
    job = admitted_job(submit(client))
    assert proxy.left == 0
    assert stat(store, "admitted") == 1
    assert [view.id for view in store.jobs("default").jobs] == [job["id"]]


def test_a_submit_whose_offer_gets_no_answer_is_refused_and_its_job_is_canceled(
    store: Store, proxy: LossyProxy, settings: Settings
) -> None:
    serve(store)
    client = a_door(door_store(proxy.url), settings)
    proxy.lose(b"$8\r\nadmitted", times=2)
    refused(submit(client), "store_unavailable")
    wait_for(lambda: stat(store, "ended|canceled") == 1, "the job in doubt to be canceled")
    assert store.snapshot().inflight == 0
    assert stat(store, "admitted") == 1


@pytest.mark.parametrize("headers", [{"Idempotency-Key": "k1"}, {"x-request-id": "r1"}])
def test_a_retry_after_an_unanswered_offer_gets_exactly_one_job(
    store: Store, proxy: LossyProxy, settings: Settings, headers: dict[str, str]
) -> None:
    serve(store)
    client = a_door(door_store(proxy.url), settings)
    proxy.lose(b"$8\r\nadmitted", times=2)
    refused(submit(client, headers=headers), "store_unavailable")
    wait_for(lambda: stat(store, "ended|canceled") == 1, "the job in doubt to be canceled")
    job = admitted_job(submit(client, headers=headers))
    assert job["status"] == "queued"
    assert admitted_job(submit(client, headers=headers))["id"] == job["id"]
    assert store.snapshot().inflight == 1


def test_a_repeated_submit_whose_offer_gets_no_answer_does_not_cancel_the_first_submits_job(
    store: Store, proxy: LossyProxy, settings: Settings
) -> None:
    serve(store)
    client = a_door(door_store(proxy.url), settings)
    headers = {"x-request-id": "r1"}
    job = admitted_job(submit(client, headers=headers))
    proxy.lose(b"$8\r\nadmitted", times=2)
    refused(submit(client, headers=headers), "store_unavailable")
    jobs_in_doubt = client.application.extensions["penstock"].in_doubt
    wait_for(jobs_in_doubt.one_pass, "the jobs in doubt to be checked")
    assert job_of(client.get(job["urls"]["self"]))["status"] == "queued"


def test_a_submit_does_not_read_its_job_back(store: Store, proxy: LossyProxy, settings: Settings) -> None:
    serve(store)
    client = a_door(door_store(proxy.url), settings)
    proxy.lose(b"$3\r\njob", times=1)
    job = admitted_job(submit(client))
    assert (proxy.left, job["status"], job["queue"]["position"]) == (1, "queued", 1)
    assert [view.id for view in store.jobs("default").jobs] == [job["id"]]


@pytest.mark.parametrize("headers", [{"Idempotency-Key": "k1"}, {"x-request-id": "r1"}])
def test_a_repeated_submit_whose_job_cannot_be_read_is_refused_and_cancels_nothing(
    store: Store, proxy: LossyProxy, settings: Settings, headers: dict[str, str]
) -> None:
    serve(store)
    client = a_door(door_store(proxy.url), settings)
    job = admitted_job(submit(client, headers=headers))
    proxy.lose(b"$3\r\njob", times=1)
    refused(submit(client, headers=headers), "store_unavailable")
    jobs_in_doubt = client.application.extensions["penstock"].in_doubt
    wait_for(jobs_in_doubt.one_pass, "the jobs in doubt to be checked")
    assert job_of(client.get(job["urls"]["self"]))["status"] == "queued"


def test_a_waiting_call_survives_a_store_outage(store: Store, store_url: str, settings: Settings) -> None:
    serve(store)
    client = a_door(door_store(store_url), settings)
    job = admitted_job(submit(client))
    held = run_next(store)

    def pause_the_store_and_settle() -> None:
        event_hub = client.application.extensions["penstock"].event_hub
        wait_for(lambda: event_hub.followed == 1, "the call to wait")
        store.client.client_pause(1_500)
        # The store answers this when the pause is over.
        settle(store, held)

    outage = threading.Thread(target=pause_the_store_and_settle)
    outage.start()
    ended = job_of(client.get(f"/v1/jobs/{job['id']}?wait_ms=20000"))
    outage.join()
    assert ended["status"] == "succeeded"
    assert view_of(store, job["id"]).state == "succeeded"

"""rq-dashboard and `rq info` with real jobs in every state: every page answers correctly and changes nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from shared.audit.invariants import find_breaches
from shared.jobs.states import JobState
from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.builders import a_heartbeat, a_job, admitted
from tests.support.dashboard_pages import REGISTRIES, data, listed, make_app, pages, state_of, store_dump
from tests.support.dashboard_scene import QUEUE, REGISTRY_OF, Scene, set_scene
from tests.support.door import a_door

pytestmark = pytest.mark.rq


@pytest.fixture
def scene(store: Store) -> Scene:
    return set_scene(store)


@pytest.fixture
def reader(store: Store, tmp_path: Path) -> FlaskClient:
    return make_app(store, tmp_path).test_client()


def test_every_page_and_json_route_answers_200_with_jobs_in_every_state(scene: Scene, reader: FlaskClient) -> None:
    seen = 0
    for path, answer in pages(reader, scene, thorough=True):
        assert answer.status_code == 200, f"{path}: {answer.text[:500]}"
        assert reader.head(path, buffered=True, follow_redirects=True).status_code == 200, path
        seen += 1
    assert seen > 500


def test_nothing_counts_as_open_after_it_was_sent(store: Store, settings: Settings) -> None:
    proxy = {"REMOTE_ADDR": "10.0.0.1"}
    door = a_door(store, settings, dashboard="read", trusted_proxies="10.0.0.1")
    for path in ("/rq/", "/rq/static/css/main.css", "/rq/static/js/underscore-umd-min.js"):
        with door.get(path, headers={"X-Forwarded-For": "192.0.2.7"}, environ_overrides=proxy) as answer:
            assert (answer.status_code, len(answer.data) > 0) == (200, True), path
        assert door.application.extensions["penstock"].request_bounds.address_requests.taken == 0, path


@pytest.mark.parametrize("state", JobState)
def test_a_job_is_listed_only_in_the_registry_of_its_state(scene: Scene, reader: FlaskClient, state: JobState) -> None:
    job_id = scene.jobs[state]
    for order in ("asc", "dsc"):
        registries = [registry for registry in REGISTRIES if job_id in listed(reader, registry, order)]
        assert registries == [REGISTRY_OF[state]]
    (queue,) = data(reader, "queues")["queues"]
    assert (queue["name"], queue["count"]) == (QUEUE, 1)
    assert queue["started_job_registry_count"] == 1
    assert queue["finished_job_registry_count"] == 1
    assert queue["failed_job_registry_count"] == 2
    assert queue["canceled_job_registry_count"] == 1


def test_a_jobs_page_shows_its_status_and_its_result_or_error(scene: Scene, reader: FlaskClient) -> None:
    shown = {state: data(reader, f"job/{job_id}") for state, job_id in scene.jobs.items()}
    assert shown[JobState.SUCCEEDED]["result"]["completion_tokens"] == 20
    assert shown[JobState.FAILED]["exc_info"] == "penstock: engine_error"
    assert shown[JobState.EXPIRED]["exc_info"] == "penstock: deadline_exceeded"
    assert {state: job["status"] for state, job in shown.items()} == {
        JobState.QUEUED: "queued",
        JobState.RUNNING: "started",
        JobState.SUCCEEDED: "finished",
        JobState.FAILED: "failed",
        JobState.EXPIRED: "failed",
        JobState.CANCELED: "canceled",
    }


def test_the_workers_page_names_the_running_job(scene: Scene, reader: FlaskClient) -> None:
    (worker,) = data(reader, "workers")["workers"]
    assert (worker["name"], worker["state"]) == ("w1", "busy")
    assert worker["current_job"]["job_id"] == scene.jobs[JobState.RUNNING]
    assert scene.jobs[JobState.RUNNING] in worker["current_job"]["call_string"]


def test_the_link_to_all_jobs_opens_a_queue_that_exists(scene: Scene, reader: FlaskClient) -> None:
    page = reader.get("/rq/0/view/jobs")
    assert page.status_code == 200
    assert f'title="Queue name" value="{QUEUE}"' in page.text


def test_the_link_to_all_jobs_opens_while_there_is_no_queue(store: Store, reader: FlaskClient) -> None:
    assert reader.get("/rq/0/view/jobs").status_code == 200


def test_pages_of_a_queue_neither_overlap_nor_omit_a_job(store: Store, reader: FlaskClient) -> None:
    store.renew(a_heartbeat(), [])
    ids = [admitted(store, a_job("blue", latest_start_ms=1_000 + i)) for i in range(7)]
    for order, expected in (("asc", ids), ("dsc", ids[::-1])):
        assert [job_id for page in (1, 2, 3) for job_id in listed(reader, "queued", order, 3, page)] == expected
        assert listed(reader, "queued", order, 3, 4) == []


def test_pages_of_a_registry_neither_overlap_nor_omit_a_job(store: Store, reader: FlaskClient) -> None:
    store.renew(a_heartbeat(), [])
    ids = {admitted(store, a_job("blue")) for _ in range(7)}
    for job_id in ids:
        store.cancel(job_id)
    for order in ("asc", "dsc"):
        shown = [job_id for page in (1, 2, 3) for job_id in listed(reader, "canceled", order, 3, page)]
        assert len(shown) == 7
        assert set(shown) == ids


def test_reading_the_pages_changes_neither_the_store_nor_the_doors_timeouts(
    scene: Scene, store: Store, reader: FlaskClient
) -> None:
    store.client.rpush(f"rq:queue:{QUEUE}", "no-such-job")
    store.client.sadd("rq:workers", "rq:worker:long-gone")
    before = store_dump(store.client)
    timeout_s = store.client.connection_pool.connection_kwargs["socket_timeout"]
    for _ in pages(reader, scene):
        pass
    assert store_dump(store.client) == before
    assert store.client.connection_pool.connection_kwargs["socket_timeout"] == timeout_s
    store.client.lrem(f"rq:queue:{QUEUE}", 0, "no-such-job")
    store.client.srem("rq:workers", "rq:worker:long-gone")


def test_rq_info_counts_the_jobs_of_every_state_correctly(scene: Scene, store: Store, store_url: str) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RQ_")}
    done = subprocess.run(
        [sys.executable, "-m", "rq.cli", "info", "--raw", "--url", store_url, "--serializer", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environ,
    )
    assert done.returncode == 0, done.stderr
    assert f"queue {QUEUE} 1, 1 executing, 1 finished, 2 failed" in done.stdout
    assert find_breaches(store.client) == []
    assert state_of(store, scene.jobs[JobState.RUNNING]) is JobState.RUNNING

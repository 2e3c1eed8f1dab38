"""rq-dashboard and `rq info` over real jobs in every state: all pages answer, nothing is executed, nothing moves."""

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import redis
from flask import Flask
from flask.testing import FlaskClient

from shared.answers import CancelAnswer
from shared.clock import RealClock
from shared.config import load
from shared.invariants import breaches
from shared.states import JobState
from shared.store import Store
from tests.support.builders import a_beat, a_job, admitted
from tests.support.dashboard_scene import ATTACK, QUEUE, REGISTRY_OF, Scene, plant, set_scene
from web.app import create_app

REGISTRIES = ("queued", "scheduled", "deferred", "started", "finished", "failed", "canceled")


@pytest.fixture
def scene(store: Store) -> Scene:
    return set_scene(store)


def make_app(store: Store, tmp_path: Path, mode: str = "read") -> Flask:
    environ = {"PENSTOCK_STATE_DIR": str(tmp_path), "PENSTOCK_AUTH": "open", "PENSTOCK_DASHBOARD": mode}
    return create_app(load(environ=environ, dotenv=None), store, RealClock())


@pytest.fixture
def reader(store: Store, tmp_path: Path) -> FlaskClient:
    return make_app(store, tmp_path).test_client()


@pytest.fixture
def writer(store: Store, tmp_path: Path) -> FlaskClient:
    return make_app(store, tmp_path, "write").test_client()


def paths_of(app: Flask, scene: Scene, *, thorough: bool) -> Iterator[str]:
    """Every address of every reading route of the blueprint, with all registries, both orders and all jobs.

    `thorough`: also of queues that have nothing, with short pages, and beyond the last one.
    """
    values: dict[str, list[Any]] = {
        "instance_number": [0],
        "queue_name": [QUEUE, "default", "green.never-seen"] if thorough else [QUEUE],
        "registry_name": list(REGISTRIES),
        "per_page": ["1", "8"] if thorough else ["8"],
        "order": ["asc", "dsc"],
        "page": ["1", "2", "99"] if thorough else ["1"],
        "job_id": list(scene.jobs.values()),
        "filename": ["css/main.css", "js/underscore-umd-min.js"],
    }
    for rule in app.url_map.iter_rules():
        if not rule.endpoint.startswith("rq_dashboard.") or rule.endpoint == "rq_dashboard.requeue_all":
            continue
        if "GET" not in (rule.methods or set()):
            continue
        names = sorted(rule.arguments - set(rule.defaults or {}))
        # A route with an argument that is not spelled above fails here: it would go unseen.
        for chosen in product(*(values[name] for name in names)):
            built = rule.build({**dict(zip(names, chosen, strict=True)), **(rule.defaults or {})}, append_unknown=False)
            assert built is not None
            yield built[1]


def pages(client: FlaskClient, scene: Scene, *, thorough: bool = False) -> Iterator[tuple[str, Any]]:
    for path in paths_of(client.application, scene, thorough=thorough):
        # Some addresses of the first page lead to /rq/ itself.
        yield path, client.get(path, buffered=True, follow_redirects=True)


def data(client: FlaskClient, path: str) -> Any:
    answer = client.get(f"/rq/0/data/{path}.json")
    assert answer.status_code == 200, answer.text
    return answer.get_json()


def listed(client: FlaskClient, registry: str, order: str = "asc", per_page: int = 200, page: int = 1) -> list[str]:
    jobs = data(client, f"jobs/{QUEUE}/{registry}/{per_page}/{order}/{page}")["jobs"]
    return [job["id"] for job in jobs]


def test_every_page_and_json_route_answers_200_with_jobs_in_every_state(scene: Scene, reader: FlaskClient) -> None:
    seen = 0
    for path, answer in pages(reader, scene, thorough=True):
        assert answer.status_code == 200, f"{path}: {answer.text[:500]}"
        assert reader.head(path, buffered=True, follow_redirects=True).status_code == 200, path
        seen += 1
    assert seen > 500


@pytest.mark.parametrize("state", JobState)
def test_a_job_is_listed_where_its_state_belongs_and_nowhere_else(
    scene: Scene, reader: FlaskClient, state: JobState
) -> None:
    job_id = scene.jobs[state]
    for order in ("asc", "dsc"):
        homes = [registry for registry in REGISTRIES if job_id in listed(reader, registry, order)]
        assert homes == [REGISTRY_OF[state]]
    (queue,) = data(reader, "queues")["queues"]
    assert (queue["name"], queue["count"]) == (QUEUE, 1)
    assert queue["started_job_registry_count"] == 1
    assert queue["finished_job_registry_count"] == 1
    assert queue["failed_job_registry_count"] == 2
    assert queue["canceled_job_registry_count"] == 1


def test_a_jobs_page_tells_how_it_ended_in_numbers(scene: Scene, reader: FlaskClient) -> None:
    told = {state: data(reader, f"job/{job_id}") for state, job_id in scene.jobs.items()}
    assert told[JobState.SUCCEEDED]["result"]["completion_tokens"] == 20
    assert told[JobState.FAILED]["exc_info"] == "penstock: engine_error"
    assert told[JobState.EXPIRED]["exc_info"] == "penstock: deadline_exceeded"
    assert {state: job["status"] for state, job in told.items()} == {
        JobState.QUEUED: "queued",
        JobState.RUNNING: "started",
        JobState.SUCCEEDED: "finished",
        JobState.FAILED: "failed",
        JobState.EXPIRED: "failed",
        JobState.CANCELED: "canceled",
    }


def test_the_workers_page_names_the_job_at_hand(scene: Scene, reader: FlaskClient) -> None:
    (worker,) = data(reader, "workers")["workers"]
    assert (worker["name"], worker["state"]) == ("w1", "busy")
    assert worker["current_job"]["job_id"] == scene.jobs[JobState.RUNNING]
    assert scene.jobs[JobState.RUNNING] in worker["current_job"]["call_string"]


def test_pages_of_a_list_neither_overlap_nor_leave_out(store: Store, reader: FlaskClient) -> None:
    store.renew(a_beat(), [])
    ids = [admitted(store, a_job("blue", latest_start_ms=1_000 + i)) for i in range(7)]
    for order, wanted in (("asc", ids), ("dsc", ids[::-1])):
        assert [job_id for page in (1, 2, 3) for job_id in listed(reader, "queued", order, 3, page)] == wanted
        assert listed(reader, "queued", order, 3, 4) == []


def test_pages_of_a_registry_neither_overlap_nor_leave_out(store: Store, reader: FlaskClient) -> None:
    store.renew(a_beat(), [])
    ids = {admitted(store, a_job("blue")) for _ in range(7)}
    for job_id in ids:
        store.cancel(job_id)
    for order in ("asc", "dsc"):
        shown = [job_id for page in (1, 2, 3) for job_id in listed(reader, "canceled", order, 3, page)]
        assert len(shown) == 7
        assert set(shown) == ids


def test_looking_moves_nothing_and_leaves_the_doors_timeouts(scene: Scene, store: Store, reader: FlaskClient) -> None:
    store.client.rpush(f"rq:queue:{QUEUE}", "no-such-job")
    store.client.sadd("rq:workers", "rq:worker:long-gone")
    before = picture(store.client)
    timeout_s = store.client.connection_pool.connection_kwargs["socket_timeout"]
    for _ in pages(reader, scene):
        pass
    assert picture(store.client) == before
    assert store.client.connection_pool.connection_kwargs["socket_timeout"] == timeout_s
    store.client.lrem(f"rq:queue:{QUEUE}", 0, "no-such-job")
    store.client.srem("rq:workers", "rq:worker:long-gone")


def picture(client: redis.Redis) -> dict[bytes, Any]:
    """Every key and what it holds."""
    return {key: client.dump(key) for key in sorted(client.keys("*"))}


# What others wrote.


def test_words_of_others_stand_in_no_page_unescaped(store: Store, tmp_path: Path) -> None:
    scene = set_scene(store, prompt=ATTACK, metadata={"note": ATTACK})
    plant(store, scene, ATTACK)
    reader = make_app(store, tmp_path).test_client()
    as_data = 0
    for path, answer in pages(reader, scene):
        assert answer.status_code == 200, path
        if answer.is_json:
            # Data for the page's scripts, which no browser shows as a page.
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            as_data += ATTACK in json.dumps(answer.get_json())
        elif answer.mimetype == "text/html":
            assert "onerror" not in answer.text, path
    # The words did arrive where the scripts must take care of them.
    assert as_data > 10


def test_prompts_and_metadata_of_tenants_are_in_no_answer_at_all(store: Store, tmp_path: Path) -> None:
    scene = set_scene(store, prompt=ATTACK, metadata={"note": ATTACK})
    for path, answer in pages(make_app(store, tmp_path).test_client(), scene):
        assert b"onerror" not in answer.data or "/static/" in path, path


def test_no_page_asks_another_server_for_anything(scene: Scene, reader: FlaskClient) -> None:
    asked = re.compile(r"""<(?!a\b)[a-z]+\b[^>]*?\b(?:src|href|action)=["']?([^"'\s>]+)""")
    for path, answer in pages(reader, scene):
        if answer.mimetype == "text/html":
            addresses = asked.findall(answer.text)
            assert len(addresses) >= 6, path
            assert all(address.startswith("/rq/") for address in addresses), addresses


class Harmful:
    """Unpickled, it leaves a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_a_pickle_planted_by_hand_is_executed_by_no_page(
    scene: Scene, store: Store, reader: FlaskClient, writer: FlaskClient, tmp_path: Path
) -> None:
    mark = tmp_path / "executed"
    harm = pickle.dumps(Harmful(mark))
    pickle.loads(harm)
    assert mark.exists()
    mark.unlink()
    client = store.client
    for job_id in scene.jobs.values():
        client.hset(f"rq:job:{job_id}", mapping={"data": harm, "meta": harm, "result": harm})
    planted = [
        scene.jobs[state] for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELED, JobState.EXPIRED)
    ]
    for job_id in planted:
        client.xadd(f"rq:results:{job_id}", {"type": 1, "return_value": rq_bytes(harm)})
    for path, answer in pages(reader, scene):
        assert answer.status_code == 200, f"{path}: {answer.text[:500]}"
    told = data(reader, f"job/{scene.jobs[JobState.SUCCEEDED]}")
    assert told["result"] is None
    assert "not JSON" in told["exc_info"]
    assert "not JSON" in told["metadata"]
    for job_id in scene.jobs.values():
        writer.post(f"/rq/job/{job_id}/requeue")
        assert writer.post(f"/rq/job/{job_id}/delete").status_code == 200
    for registry in REGISTRIES:
        assert writer.post(f"/rq/queue/{QUEUE}/{registry}/empty").status_code == 200
    assert not mark.exists()


def rq_bytes(raw: bytes) -> str:
    """Bytes as RQ's stream of results holds them."""
    from base64 import b64encode

    return b64encode(raw).decode()


@pytest.mark.parametrize(
    "garbage",
    [
        {"data": b"\xff\xfe"},
        {"description": b"\xff\xfe"},
        {"status": "on-fire"},
        {"created_at": "yesterday"},
        {"timeout": "soon"},
        {"result_ttl": "x"},
        {"dependency_ids": '{"a": 1}'},
        {"meta": "[" * 20_000},
        {"exc_info": b"\xff"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_garbled_record_costs_at_most_its_own_page(
    scene: Scene, store: Store, reader: FlaskClient, garbage: dict[str, Any]
) -> None:
    victim = scene.jobs[JobState.SUCCEEDED]
    sound: Any = store.client.hgetall(f"rq:job:{victim}")
    store.client.hset(f"rq:job:{victim}", mapping=garbage)
    for path, answer in pages(reader, scene):
        assert answer.status_code == 200 or (victim in path and answer.status_code == 404), path
    store.client.hset(f"rq:job:{victim}", mapping=sound)


@pytest.mark.parametrize(
    "entry",
    [{"type": "x"}, {"type": 9}, {"no": "type"}, {"type": 1, "return_value": "%%"}, {"type": 2, "exc_string": "zzzz"}],
)
def test_a_garbled_result_is_told_to_be_one(
    scene: Scene, store: Store, reader: FlaskClient, entry: dict[Any, Any]
) -> None:
    job_id = scene.jobs[JobState.SUCCEEDED]
    store.client.xadd(f"rq:results:{job_id}", entry)
    assert "not read" in data(reader, f"job/{job_id}")["exc_info"]
    assert job_id in listed(reader, "finished")


def test_a_job_that_is_gone_is_a_clean_404(scene: Scene, store: Store, writer: FlaskClient) -> None:
    job_id = scene.jobs[JobState.CANCELED]
    store.client.delete(f"rq:job:{job_id}")
    for answer in (
        writer.get(f"/rq/0/view/job/{job_id}"),
        writer.get(f"/rq/0/data/job/{job_id}.json"),
        writer.post(f"/rq/job/{job_id}/delete"),
    ):
        assert answer.status_code == 404
        assert answer.get_json()["error"]["code"] == "job_not_found"
    assert listed(writer, "canceled") == []


def test_a_worker_whose_job_is_gone_is_shown_idle(scene: Scene, store: Store, reader: FlaskClient) -> None:
    store.client.hset("rq:worker:w1", "current_job", "gone")
    assert data(reader, "workers")["workers"][0]["current_job"] == "idle"
    store.client.hset("rq:worker:w1", "current_job", "n'importe quoi")
    assert data(reader, "workers")["workers"][0]["current_job"] == "idle"


# Buttons.


def state_of(store: Store, job_id: str) -> JobState:
    view = store.touch(job_id, quiet=True)
    assert view is not None
    return view.state


def test_deleting_a_waiting_job_cancels_it(scene: Scene, store: Store, writer: FlaskClient) -> None:
    job_id = scene.jobs[JobState.QUEUED]
    answer = writer.post(f"/rq/job/{job_id}/delete")
    assert answer.get_json() == {"status": "OK", "answer": "canceled"}
    assert state_of(store, job_id) is JobState.CANCELED


def test_deleting_a_running_job_asks_its_worker_to_stop(scene: Scene, store: Store, writer: FlaskClient) -> None:
    job_id = scene.jobs[JobState.RUNNING]
    assert writer.post(f"/rq/job/{job_id}/delete").get_json()["answer"] == "requested"
    view = store.touch(job_id, quiet=True)
    assert view is not None
    assert view.cancel_requested
    assert view.state is JobState.RUNNING


def test_deleting_an_ended_job_removes_its_text(scene: Scene, store: Store, writer: FlaskClient) -> None:
    job_id = scene.jobs[JobState.SUCCEEDED]
    assert writer.post(f"/rq/job/{job_id}/delete").get_json()["answer"] == "ended"
    view = store.touch(job_id, quiet=True)
    assert view is not None
    assert view.text is None
    assert view.state is JobState.SUCCEEDED


def test_emptying_a_queue_cancels_what_waits_there_and_nothing_else(
    scene: Scene, store: Store, writer: FlaskClient
) -> None:
    more = [admitted(store, a_job("blue")) for _ in range(3)]
    other = admitted(store, a_job("green"))
    assert writer.post(f"/rq/queue/{QUEUE}/queued/empty").get_json() == {"status": "OK", "count": 4}
    assert {state_of(store, job_id) for job_id in more} == {JobState.CANCELED}
    assert state_of(store, other) is JobState.QUEUED
    assert state_of(store, scene.jobs[JobState.RUNNING]) is JobState.RUNNING
    assert listed(writer, "queued") == []


def test_emptying_any_registry_keeps_the_books(scene: Scene, store: Store, writer: FlaskClient) -> None:
    for registry in REGISTRIES:
        assert writer.post(f"/rq/queue/{QUEUE}/{registry}/empty").status_code == 200
        assert breaches(store.client) == []
    assert store.cancel(scene.jobs[JobState.RUNNING]) is CancelAnswer.REQUESTED


def test_nothing_is_requeued_or_compacted_and_the_answer_says_why(
    scene: Scene, store: Store, writer: FlaskClient
) -> None:
    before = picture(store.client)
    presses = [f"/rq/job/{job_id}/requeue" for job_id in scene.jobs.values()]
    for path in (*presses, f"/rq/requeue/{QUEUE}", f"/rq/queue/{QUEUE}/compact"):
        answer = writer.post(path)
        assert answer.status_code == 409, path
        assert len(answer.get_json()["error"]["message"].split()) > 5
    assert picture(store.client) == before


def test_a_reading_dashboard_shows_no_button_that_removes(
    scene: Scene, reader: FlaskClient, writer: FlaskClient
) -> None:
    path = f"/rq/0/view/job/{scene.jobs[JobState.QUEUED]}"
    assert 'id="delete-job-btn"' in writer.get(path).text
    assert 'id="delete-job-btn"' not in reader.get(path).text


# RQ's own command.


def test_rq_info_tells_the_truth_of_jobs_in_every_state(scene: Scene, store: Store, store_url: str) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RQ_")}
    told = subprocess.run(
        [sys.executable, "-m", "rq.cli", "info", "--raw", "--url", store_url, "--serializer", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environ,
    )
    assert told.returncode == 0, told.stderr
    assert f"queue {QUEUE} 1, 1 executing, 1 finished, 2 failed" in told.stdout
    assert breaches(store.client) == []
    assert state_of(store, scene.jobs[JobState.RUNNING]) is JobState.RUNNING

"""Data that other programs wrote into RQ's records is not executed, not shown unescaped, and breaks no other page."""

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from shared.jobs.states import JobState
from shared.store.store import Store
from tests.support.dashboard_pages import REGISTRIES, data, listed, make_app, pages
from tests.support.dashboard_scene import ATTACK, QUEUE, Scene, plant, set_scene

pytestmark = pytest.mark.rq


@pytest.fixture
def scene(store: Store) -> Scene:
    return set_scene(store)


@pytest.fixture
def reader(store: Store, tmp_path: Path) -> FlaskClient:
    return make_app(store, tmp_path).test_client()


@pytest.fixture
def writer(store: Store, tmp_path: Path) -> FlaskClient:
    return make_app(store, tmp_path, "write").test_client()


def test_no_page_contains_injected_markup_unescaped(store: Store, tmp_path: Path) -> None:
    scene = set_scene(store, prompt=ATTACK, metadata={"note": ATTACK})
    plant(store, scene, ATTACK)
    reader = make_app(store, tmp_path).test_client()
    as_data = 0
    for path, answer in pages(reader, scene):
        assert answer.status_code == 200, path
        if answer.is_json:
            # JSON for the page's scripts: no browser renders it as a page.
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            as_data += ATTACK in json.dumps(answer.get_json())
        elif answer.mimetype == "text/html":
            assert "onerror" not in answer.text, path
    # The markup did reach the JSON that the scripts must escape.
    assert as_data > 10


def test_no_answer_contains_prompts_or_metadata_of_tenants(store: Store, tmp_path: Path) -> None:
    scene = set_scene(store, prompt=ATTACK, metadata={"note": ATTACK})
    for path, answer in pages(make_app(store, tmp_path).test_client(), scene):
        assert b"onerror" not in answer.data or "/static/" in path, path


def test_no_page_loads_anything_from_another_server(scene: Scene, reader: FlaskClient) -> None:
    loaded_address = re.compile(r"""<(?!a\b)[a-z]+\b[^>]*?\b(?:src|href|action)=["']?([^"'\s>]+)""")
    for path, answer in pages(reader, scene):
        if answer.mimetype == "text/html":
            addresses = loaded_address.findall(answer.text)
            assert len(addresses) >= 6, path
            assert all(address.startswith("/rq/") for address in addresses), addresses


class Harmful:
    """An object that creates a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_no_page_executes_an_injected_pickle(
    scene: Scene, store: Store, reader: FlaskClient, writer: FlaskClient, tmp_path: Path
) -> None:
    mark = tmp_path / "executed"
    harmful = pickle.dumps(Harmful(mark))
    pickle.loads(harmful)
    assert mark.exists()
    mark.unlink()
    client = store.client
    for job_id in scene.jobs.values():
        client.hset(f"rq:job:{job_id}", mapping={"data": harmful, "meta": harmful, "result": harmful})
    planted = [
        scene.jobs[state] for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELED, JobState.EXPIRED)
    ]
    for job_id in planted:
        client.xadd(f"rq:results:{job_id}", {"type": 1, "return_value": rq_bytes(harmful)})
    for path, answer in pages(reader, scene):
        assert answer.status_code == 200, f"{path}: {answer.text[:500]}"
    shown = data(reader, f"job/{scene.jobs[JobState.SUCCEEDED]}")
    assert shown["result"] is None
    assert "not JSON" in shown["exc_info"]
    assert "not JSON" in shown["metadata"]
    for job_id in scene.jobs.values():
        writer.post(f"/rq/job/{job_id}/requeue")
        assert writer.post(f"/rq/job/{job_id}/delete").status_code == 200
    for registry in REGISTRIES:
        assert writer.post(f"/rq/queue/{QUEUE}/{registry}/empty").status_code == 200
    assert not mark.exists()


def rq_bytes(raw: bytes) -> str:
    """Encode bytes as RQ stores them in its stream of results."""
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
def test_a_corrupt_job_record_breaks_at_most_its_own_page(
    scene: Scene, store: Store, reader: FlaskClient, garbage: dict[str, Any]
) -> None:
    victim = scene.jobs[JobState.SUCCEEDED]
    intact: Any = store.client.hgetall(f"rq:job:{victim}")
    store.client.hset(f"rq:job:{victim}", mapping=garbage)
    for path, answer in pages(reader, scene):
        assert answer.status_code == 200 or (victim in path and answer.status_code == 404), path
    store.client.hset(f"rq:job:{victim}", mapping=intact)


@pytest.mark.parametrize(
    "entry",
    [{"type": "x"}, {"type": 9}, {"no": "type"}, {"type": 1, "return_value": "%%"}, {"type": 2, "exc_string": "zzzz"}],
)
def test_a_corrupt_result_is_shown_as_unreadable(
    scene: Scene, store: Store, reader: FlaskClient, entry: dict[Any, Any]
) -> None:
    job_id = scene.jobs[JobState.SUCCEEDED]
    store.client.xadd(f"rq:results:{job_id}", entry)
    assert "not read" in data(reader, f"job/{job_id}")["exc_info"]
    assert job_id in listed(reader, "finished")


def test_a_job_whose_record_was_deleted_is_404(scene: Scene, store: Store, writer: FlaskClient) -> None:
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


def test_a_worker_whose_job_does_not_exist_is_shown_idle(scene: Scene, store: Store, reader: FlaskClient) -> None:
    store.client.hset("rq:worker:w1", "current_job", "gone")
    assert data(reader, "workers")["workers"][0]["current_job"] == "idle"
    store.client.hset("rq:worker:w1", "current_job", "n'importe quoi")
    assert data(reader, "workers")["workers"][0]["current_job"] == "idle"

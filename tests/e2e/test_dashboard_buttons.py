"""The dashboard's buttons act through the store's scripts, and every invariant holds afterwards."""

from pathlib import Path

import pytest
from flask.testing import FlaskClient

from shared.audit.invariants import find_breaches
from shared.jobs.states import JobState
from shared.store.replies import CancelAnswer
from shared.store.store import Store
from tests.support.builders import a_job, admitted
from tests.support.dashboard_pages import REGISTRIES, listed, make_app, state_of, store_dump
from tests.support.dashboard_scene import QUEUE, Scene, set_scene

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


def test_deleting_a_queued_job_cancels_it(scene: Scene, store: Store, writer: FlaskClient) -> None:
    job_id = scene.jobs[JobState.QUEUED]
    answer = writer.post(f"/rq/job/{job_id}/delete")
    assert answer.get_json() == {"status": "OK", "answer": "canceled"}
    assert state_of(store, job_id) is JobState.CANCELED


def test_deleting_a_running_job_requests_its_cancel(scene: Scene, store: Store, writer: FlaskClient) -> None:
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


def test_emptying_a_queue_cancels_its_queued_jobs_and_nothing_else(
    scene: Scene, store: Store, writer: FlaskClient
) -> None:
    more = [admitted(store, a_job("blue")) for _ in range(3)]
    other = admitted(store, a_job("green"))
    assert writer.post(f"/rq/queue/{QUEUE}/queued/empty").get_json() == {"status": "OK", "count": 4}
    assert {state_of(store, job_id) for job_id in more} == {JobState.CANCELED}
    assert state_of(store, other) is JobState.QUEUED
    assert state_of(store, scene.jobs[JobState.RUNNING]) is JobState.RUNNING
    assert listed(writer, "queued") == []


def test_every_invariant_holds_after_any_registry_is_emptied(scene: Scene, store: Store, writer: FlaskClient) -> None:
    for registry in REGISTRIES:
        assert writer.post(f"/rq/queue/{QUEUE}/{registry}/empty").status_code == 200
        assert find_breaches(store.client) == []
    assert store.cancel(scene.jobs[JobState.RUNNING]) is CancelAnswer.REQUESTED


def test_requeue_and_compact_change_nothing_and_the_answer_says_why(
    scene: Scene, store: Store, writer: FlaskClient
) -> None:
    before = store_dump(store.client)
    requeue_paths = [f"/rq/job/{job_id}/requeue" for job_id in scene.jobs.values()]
    for path in (*requeue_paths, f"/rq/requeue/{QUEUE}", f"/rq/queue/{QUEUE}/compact"):
        answer = writer.post(path)
        assert answer.status_code == 409, path
        assert len(answer.get_json()["error"]["message"].split()) > 5
    assert store_dump(store.client) == before


def test_a_read_only_dashboard_shows_no_delete_button(scene: Scene, reader: FlaskClient, writer: FlaskClient) -> None:
    path = f"/rq/0/view/job/{scene.jobs[JobState.QUEUED]}"
    assert 'id="delete-job-btn"' in writer.get(path).text
    assert 'id="delete-job-btn"' not in reader.get(path).text

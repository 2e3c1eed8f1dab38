"""The door without its store: refusals within the second, and nothing that runs for nobody."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.builders import seen, stat
from tests.support.door import a_door, door_store, job_of, refused, run_next, serve, settle, submit, taken
from tests.support.lossy import LossyLine
from tests.support.processes import wait_for


@pytest.fixture
def alone(settings: Settings, tmp_path: Path) -> FlaskClient:
    """A door whose store nobody has started."""
    return a_door(door_store(f"unix://{tmp_path}/nobody.sock"), settings)


@pytest.fixture
def line(tmp_path: Path, store_url: str) -> Iterator[LossyLine]:
    with LossyLine(tmp_path, store_url) as line:
        yield line


def test_every_route_of_a_tenant_refuses_at_once(alone: FlaskClient) -> None:
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
    assert time.monotonic() - began < 1
    for answer in answers:
        body = refused(answer, "store_unavailable")
        assert "x-should-retry" not in answer.headers
        assert body["limits"]["inflight"] is None


def test_the_process_itself_still_answers_and_counts(alone: FlaskClient) -> None:
    refused(submit(alone), "store_unavailable")
    assert alone.get("/health").status_code == 200
    assert "penstock_refused_without_store_total" in alone.get("/metrics").text


def test_a_store_that_keeps_silent_is_refused_for_within_its_second(
    store: Store, store_url: str, settings: Settings
) -> None:
    serve(store)
    client = a_door(door_store(store_url), settings)
    store.client.client_pause(1_500)
    began = time.monotonic()
    refused(submit(client), "store_unavailable")
    assert time.monotonic() - began < 1.4
    wait_for(lambda: submit(client).status_code == 202, "the store to be back")


def test_an_admit_whose_answer_is_lost_is_asked_again_and_is_one_job(
    store: Store, line: LossyLine, settings: Settings
) -> None:
    serve(store)
    client = a_door(door_store(line.url), settings)
    line.lose(b"$8\r\nadmitted", times=1)
    job = taken(submit(client))
    assert line.left == 0
    assert stat(store, "admitted") == 1
    assert [view.id for view in store.jobs("default").jobs] == [job["id"]]


def test_an_admit_that_stays_without_an_answer_is_refused_and_runs_for_nobody(
    store: Store, line: LossyLine, settings: Settings
) -> None:
    serve(store)
    client = a_door(door_store(line.url), settings)
    line.lose(b"$8\r\nadmitted", times=2)
    refused(submit(client), "store_unavailable")
    wait_for(lambda: stat(store, "ended|canceled") == 1, "the job in doubt to be canceled")
    assert store.snapshot().inflight == 0
    assert stat(store, "admitted") == 1


@pytest.mark.parametrize("named", [{"Idempotency-Key": "k1"}, {"x-request-id": "r1"}])
def test_who_comes_back_after_a_lost_admit_has_a_job_that_runs_and_only_one(
    store: Store, line: LossyLine, settings: Settings, named: dict[str, str]
) -> None:
    serve(store)
    client = a_door(door_store(line.url), settings)
    line.lose(b"$8\r\nadmitted", times=2)
    refused(submit(client, headers=named), "store_unavailable")
    wait_for(lambda: stat(store, "ended|canceled") == 1, "the job in doubt to be canceled")
    job = taken(submit(client, headers=named))
    assert job["status"] == "queued"
    assert taken(submit(client, headers=named))["id"] == job["id"]
    assert store.snapshot().inflight == 1


def test_a_repeat_that_the_store_does_not_answer_leaves_the_job_to_who_has_heard_of_it(
    store: Store, line: LossyLine, settings: Settings
) -> None:
    serve(store)
    client = a_door(door_store(line.url), settings)
    named = {"x-request-id": "r1"}
    job = taken(submit(client, headers=named))
    line.lose(b"$8\r\nadmitted", times=2)
    refused(submit(client, headers=named), "store_unavailable")
    doubts = client.application.extensions["penstock"].doubts
    wait_for(doubts.one_pass, "the doubt to be looked at")
    assert job_of(client.get(job["urls"]["self"]))["status"] == "queued"


def test_a_job_whose_first_look_fails_is_refused_and_runs_for_nobody(
    store: Store, line: LossyLine, settings: Settings
) -> None:
    serve(store)
    client = a_door(door_store(line.url), settings)
    line.lose(b"$3\r\njob", times=1)
    refused(submit(client), "store_unavailable")
    wait_for(lambda: stat(store, "ended|canceled") == 1, "the job in doubt to be canceled")
    assert store.snapshot().inflight == 0


def test_a_call_that_waits_outlasts_a_store_that_is_away(store: Store, store_url: str, settings: Settings) -> None:
    serve(store)
    client = a_door(door_store(store_url), settings)
    job = taken(submit(client))
    held = run_next(store)

    def away_and_back() -> None:
        hub = client.application.extensions["penstock"].hub
        wait_for(lambda: hub.followed == 1, "the call to wait")
        store.client.client_pause(1_500)
        # Answered when the pause is over.
        settle(store, held)

    meanwhile = threading.Thread(target=away_and_back)
    meanwhile.start()
    ended = job_of(client.get(f"/v1/jobs/{job['id']}?wait_ms=20000"))
    meanwhile.join()
    assert ended["status"] == "succeeded"
    assert seen(store, job["id"]).state == "succeeded"

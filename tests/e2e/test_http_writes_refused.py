"""A store that refuses writes, as after a failed save to a full disk: reads answer as usual, and writes get a yield."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from flask.testing import FlaskClient

from shared.accounts.api_keys import ApiKeys
from shared.settings.settings import Settings
from shared.store.connection import open_client
from shared.store.embedded import EmbeddedStore
from shared.store.store import Store
from tests.support.builders import hold_clock
from tests.support.console import Viewer
from tests.support.door import a_door, admitted_job, door_store, job_of, refused, run_next, serve, settle, submit
from tests.support.gate import served, submit_frame
from tests.support.processes import wait_for
from tests.support.program import program
from web.openapi import response_models


@pytest.fixture
def own_store(tmp_path: Path, settings: Settings) -> Iterator[Store]:
    """A store of this test alone, because a test makes it refuse writes."""
    embedded = EmbeddedStore.start(tmp_path / "own")
    with open_client(embedded.url, name="penstock-test") as client:
        store = Store(client)
        store.configure(settings)
        yield store
    embedded.stop(grace_s=0.0)


def refuse_writes(client: redis.Redis) -> None:
    """Make a save fail, after which the server refuses writes with MISCONF: a folder is where the file should be."""
    folder = Path(client.config_get("dir")["dir"])
    (folder / client.config_get("dbfilename")["dbfilename"] / "in the way").mkdir(parents=True)
    client.config_set("stop-writes-on-bgsave-error", "yes")
    client.config_set("save", "3600 1")
    client.bgsave()
    wait_for(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", "the save to fail")
    with pytest.raises(redis.ResponseError, match="MISCONF"):
        client.set("x", "y")


def accept_writes(client: redis.Redis) -> None:
    client.config_set("stop-writes-on-bgsave-error", "no")


def url_of(store: Store) -> str:
    return f"unix://{store.client.connection_pool.connection_kwargs['path']}"


def test_reads_answer_while_the_store_refuses_writes(own_store: Store, settings: Settings) -> None:
    # The worker stays live, although it cannot beat meanwhile.
    hold_clock(own_store)
    serve(own_store)
    key = {"Authorization": f"Bearer {ApiKeys(own_store.client).create('blue').key}"}
    door: FlaskClient = a_door(door_store(url_of(own_store)), settings, auth="required")
    ended = admitted_job(submit(door, headers=key))
    settle(own_store, run_next(own_store))
    polled = admitted_job(submit(door, headers=key, poll_grace_ms=60_000))
    held = run_next(own_store)
    own_store.append([(held, "some ", 10)])
    queued = admitted_job(submit(door, headers=key))
    refuse_writes(own_store.client)
    for _ in range(2):
        assert job_of(door.get(ended["urls"]["self"], headers=key))["text"] == "some words"
        assert job_of(door.get(polled["urls"]["self"], headers=key))["status"] == "running"
        assert job_of(door.get(f"{queued['urls']['self']}?wait_ms=200", headers=key))["queue"]["position"] == 1
        assert b"event: ended" in door.get(ended["urls"]["events"], headers=key).data
        for path in ("/v1/jobs", "/v1/queue", "/v1/models", "/health", "/metrics"):
            assert door.get(path, headers=key).status_code == 200, path
        assert door.post("/v1/quote", json={"prompt": "hello", "max_tokens": 20}, headers=key).status_code == 200
        said = refused(submit(door, headers=key), "store_unavailable")
        assert said["store_fault"] == "disk_failed"
        assert "the store refuses writes" in said["error"]["message"]
        not_ready = door.get("/health/ready")
        assert not_ready.status_code == 503
        response_models.Ready.model_validate(not_ready.json)
        assert (not_ready.json["reason"], not_ready.json["store_fault"]) == ("store_unavailable", "disk_failed")
        refused(door.delete(queued["urls"]["self"], headers=key), "store_unavailable")
    accept_writes(own_store.client)
    assert job_of(door.delete(queued["urls"]["self"], headers=key))["status"] == "canceled"
    wait_for(lambda: door.get("/health/ready").status_code == 200, "the door to be ready")


def test_the_console_the_start_page_and_doctor_say_why_the_store_refuses_writes(
    own_store: Store, settings: Settings, tmp_path: Path
) -> None:
    hold_clock(own_store)
    serve(own_store)
    door: FlaskClient = a_door(door_store(url_of(own_store)), settings)
    viewer = Viewer(door)
    viewer.read_until("Serving")
    refuse_writes(own_store.client)
    said = viewer.read_until("could not save its data to its disk, so no job is admitted")
    assert "<code>penstock redis BGSAVE</code>" in said
    # The figures are those of this moment, because the store still answers reads.
    assert "The figures below are the last ones" not in said
    viewer.close()
    assert "could not save its data to its disk" in door.get("/").text
    doctor = program(tmp_path, REDIS_URL=url_of(own_store))("doctor", "--json")
    assert doctor.returncode == 1, doctor.stderr
    assert json.loads(doctor.stdout)["store_fault"] == "disk_failed"
    accept_writes(own_store.client)


def test_the_gate_answers_a_status_and_metrics_while_the_store_refuses_writes(
    own_store: Store, settings: Settings
) -> None:
    serve(own_store)
    with served(door_store(url_of(own_store)), settings) as gate:
        gate.client.submitted("a1")
        refuse_writes(own_store.client)
        assert gate.client.ask({"op": "status", "ref": "a1"})["status"] == "queued"
        assert gate.client.ask({"op": "metrics"})["inflight"] == 1
        assert gate.client.ask(submit_frame("a2"))["reason"] == "store_unavailable"
        accept_writes(own_store.client)

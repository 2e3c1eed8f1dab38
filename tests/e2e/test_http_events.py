"""Event streams over a real store: in order, resumable, and told to their end."""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from flask.testing import FlaskClient

from shared.jobs.job import Held
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import beat, seen
from tests.support.door import a_door, fault, run_next, serve, settle, submit, taken
from web.api import response_models
from web.operations.event_stream import READER_REST_S


@dataclass
class Event:
    id: str
    kind: str
    data: Any


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    serve(store)
    return a_door(store, settings)


def events(client: FlaskClient, job_id: str, last: str | None = None) -> Iterator[Event | str]:
    """Events and comments as they come."""
    headers = {} if last is None else {"Last-Event-ID": last}
    response = client.get(f"/v1/jobs/{job_id}/events", headers=headers, buffered=False)
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/event-stream")
    assert response.headers["X-Accel-Buffering"] == "no"
    assert response.headers["Cache-Control"] == "no-store"
    text = ""
    for piece in response.iter_encoded():
        text += piece.decode()
        while "\n\n" in text:
            block, _, text = text.partition("\n\n")
            fields = dict(line.partition(": ")[::2] for line in block.splitlines())
            if "event" in fields:
                yield Event(fields.get("id", ""), fields["event"], json.loads(fields["data"]))
            else:
                yield block


def told(client: FlaskClient, job_id: str, last: str | None = None) -> list[Event]:
    """The whole story, without comments."""
    return [event for event in events(client, job_id, last) if isinstance(event, Event)]


def kinds(story: list[Event]) -> list[str]:
    return [event.kind for event in story]


def run_through(store: Store, *texts: str) -> Held:
    """Claim the next job, tell these texts, settle."""
    held = run_next(store)
    for count, text in enumerate(texts, 1):
        store.append([(held, text, count)])
    settle(store, held)
    return held


def test_a_comment_comes_before_anything_else(client: FlaskClient) -> None:
    job = taken(submit(client))
    stream = events(client, job["id"])
    first = next(stream)
    assert isinstance(first, str)
    assert first.startswith(":")
    client.delete(job["urls"]["self"])
    assert next(reversed([item.kind for item in stream if isinstance(item, Event)])) == "ended"


def test_a_job_is_told_from_the_queue_to_its_end_while_it_happens(client: FlaskClient, store: Store) -> None:
    job = taken(submit(client))
    stream = (event for event in events(client, job["id"]) if isinstance(event, Event))
    queued = next(stream)
    assert queued.kind == "queued"
    response_models.Job.model_validate(queued.data)
    held = run_next(store)
    assert next(stream).data == {"attempt": 1}
    for count, text in enumerate(("Once ", "upon\n\na ", "žluť"), 1):
        store.append([(held, text, count)])
        event = next(stream)
        assert (event.kind, event.data) == ("token", {"text": text, "tokens": count})
    settle(store, held)
    ended = next(stream)
    assert (ended.kind, ended.data["status"]) == ("ended", "succeeded")
    response_models.Job.model_validate(ended.data)
    assert next(stream, None) is None


def test_a_broken_stream_is_taken_up_where_it_broke(client: FlaskClient, store: Store) -> None:
    job = taken(submit(client))
    run_through(store, "a", "b", "c")
    story = told(client, job["id"])
    assert kinds(story) == ["queued", "started", "token", "token", "token", "ended"]
    rest = told(client, job["id"], last=story[2].id)
    assert [event.id for event in rest] == [event.id for event in story[3:]]
    assert kinds(told(client, job["id"], last=story[-1].id)) == ["ended"]


def test_a_late_reader_is_served_by_the_result(client: FlaskClient, store: Store) -> None:
    job = taken(submit(client))
    run_through(store, "some ", "words")
    store.client.delete(keys.events(job["id"]))  # as a minute after the end
    story = told(client, job["id"])
    assert kinds(story) == ["queued", "token", "ended"]
    assert story[1].data == {"text": "some words", "tokens": 20}
    assert kinds(told(client, job["id"], last="5-0")) == ["ended"]


def test_a_job_that_ends_in_the_queue_is_told_so(client: FlaskClient, store: Store) -> None:
    job = taken(submit(client))
    stream = (event for event in events(client, job["id"]) if isinstance(event, Event))
    assert next(stream).kind == "queued"
    client.delete(job["urls"]["self"])
    ended = next(stream)
    assert (ended.kind, ended.data["status"]) == ("ended", "canceled")


def test_text_that_a_worker_sends_twice_is_told_once(client: FlaskClient, store: Store) -> None:
    job = taken(submit(client))
    held = run_next(store)
    for text, count in (("a", 1), ("a", 1), ("b", 2)):
        store.append([(held, text, count)])
    settle(store, held)
    assert [event.data["text"] for event in told(client, job["id"]) if event.kind == "token"] == ["a", "b"]


def test_a_second_attempt_begins_its_text_anew(client: FlaskClient, store: Store) -> None:
    job = taken(submit(client))
    held = run_next(store)
    store.append([(held, "a", 1)])
    store.release("w1", [held])
    beat(store)
    run_through(store, "a", "b")
    story = told(client, job["id"])
    assert kinds(story) == ["queued", "started", "token", "started", "token", "token", "ended"]


def test_several_readers_of_one_job_hear_all_of_it(client: FlaskClient, store: Store) -> None:
    job = taken(submit(client))
    heard: dict[int, list[str]] = {}

    def read(reader: int) -> None:
        heard[reader] = [e.data["text"] for e in told(client, job["id"]) if e.kind == "token"]

    readers = [threading.Thread(target=read, args=(index,)) for index in range(4)]
    for reader in readers[:2]:
        reader.start()
    held = run_next(store)
    for count in range(1, 11):
        store.append([(held, f"t{count}", count)])
        if count == 5:
            for reader in readers[2:]:
                reader.start()
    settle(store, held)
    for reader in readers:
        reader.join(timeout=20)
    assert heard == {index: [f"t{count}" for count in range(1, 11)] for index in range(4)}


def test_a_reader_that_leaves_cancels_nothing(client: FlaskClient, store: Store) -> None:
    job = taken(submit(client))
    stream = events(client, job["id"])
    next(stream)
    stream.close()
    assert seen(store, job["id"]).state == "queued"


@pytest.mark.parametrize("last", ["x", "1-", "-1", "1-2-3", "1" * 40, "9" * 20 + "-0", "1-" + "9" * 20, f"{2**64}-0"])
def test_an_event_id_that_no_event_had_is_422(client: FlaskClient, last: str) -> None:
    job = taken(submit(client))
    there = f"/v1/jobs/{job['id']}/events"
    fault(client.get(there, headers={"Last-Event-ID": last}), 422, "invalid_value", "Last-Event-ID")
    fault(client.get(there, query_string={"last_event_id": last}), 422, "invalid_value", "last_event_id")


def test_a_number_that_no_stream_can_hold_delays_no_other_reader(client: FlaskClient, store: Store) -> None:
    job = taken(submit(client))
    stream = events(client, job["id"])
    next(stream)
    client.get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": "9" * 20 + "-0"}, buffered=False).close()
    began_s = time.monotonic()
    run_through(store, "a")
    assert kinds([event for event in stream if isinstance(event, Event)]) == ["queued", "started", "token", "ended"]
    assert time.monotonic() - began_s < READER_REST_S


def test_the_last_number_that_a_stream_can_hold_is_one(client: FlaskClient, store: Store) -> None:
    job = taken(submit(client))
    run_through(store, "a")
    assert kinds(told(client, job["id"], f"{2**64 - 1}-{2**64 - 1}")) == ["ended"]


def test_followers_leave_nothing_behind(client: FlaskClient, store: Store) -> None:
    hub = client.application.extensions["penstock"].hub
    job = taken(submit(client))
    run_through(store, "a")
    told(client, job["id"])
    assert hub.followed == 0

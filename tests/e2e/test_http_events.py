"""Event streams over a real store: in order, resumable, and complete."""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from flask.testing import FlaskClient

from shared.clock import RealClock
from shared.errors import StoreUnavailable
from shared.jobs.job import ClaimRef, JobView
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from tests.support.answers import answer_in_two_attempts
from tests.support.builders import heartbeat, view_of
from tests.support.door import a_door, admitted_job, fault, run_next, serve, settle, submit
from web.jobs import event_stream
from web.jobs.event_stream import (
    JobEnded,
    JobStarted,
    NothingNew,
    TextDelta,
    follow_job,
)
from web.openapi import response_models
from web.runtime.context import DoorContext


@dataclass
class Event:
    id: str
    kind: str
    data: Any


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    serve(store)
    return a_door(store, settings)


def follow(client: FlaskClient, job_id: str, last: str | None = None) -> Iterator[Event | str]:
    """Yield events and comments as they arrive."""
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


def read_all(client: FlaskClient, job_id: str, last: str | None = None) -> list[Event]:
    """Return all events of the stream, without comments."""
    return [event for event in follow(client, job_id, last) if isinstance(event, Event)]


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


def run_job(store: Store, *texts: str) -> ClaimRef:
    """Claim the next job, append these texts, and settle it."""
    held = run_next(store)
    for count, text in enumerate(texts, 1):
        store.append([(held, text, count)])
    settle(store, held)
    return held


def test_a_stream_begins_with_a_comment(client: FlaskClient) -> None:
    job = admitted_job(submit(client))
    stream = follow(client, job["id"])
    first = next(stream)
    assert isinstance(first, str)
    assert first.startswith(":")
    client.delete(job["urls"]["self"])
    assert next(reversed([item.kind for item in stream if isinstance(item, Event)])) == "ended"


def test_a_stream_sends_each_event_of_a_job_as_it_happens(client: FlaskClient, store: Store) -> None:
    job = admitted_job(submit(client))
    stream = (event for event in follow(client, job["id"]) if isinstance(event, Event))
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


def test_a_broken_stream_is_resumed_where_it_broke(client: FlaskClient, store: Store) -> None:
    job = admitted_job(submit(client))
    run_job(store, "a", "b", "c")
    events = read_all(client, job["id"])
    assert kinds(events) == ["queued", "started", "token", "token", "token", "ended"]
    rest = read_all(client, job["id"], last=events[2].id)
    assert [event.id for event in rest] == [event.id for event in events[3:]]
    assert kinds(read_all(client, job["id"], last=events[-1].id)) == ["ended"]


def test_a_late_reader_gets_the_text_from_the_result(client: FlaskClient, store: Store) -> None:
    job = admitted_job(submit(client))
    run_job(store, "some ", "words")
    store.client.delete(keys.events(job["id"]))  # as the store does a minute after the end
    events = read_all(client, job["id"])
    assert kinds(events) == ["queued", "token", "ended"]
    assert events[1].data == {"text": "some words", "tokens": 20}
    assert kinds(read_all(client, job["id"], last="5-0")) == ["ended"]


def test_a_job_canceled_in_the_queue_ends_its_stream_with_an_ended_event(client: FlaskClient, store: Store) -> None:
    job = admitted_job(submit(client))
    stream = (event for event in follow(client, job["id"]) if isinstance(event, Event))
    assert next(stream).kind == "queued"
    client.delete(job["urls"]["self"])
    ended = next(stream)
    assert (ended.kind, ended.data["status"]) == ("ended", "canceled")


def test_text_that_a_worker_sends_twice_is_delivered_once(client: FlaskClient, store: Store) -> None:
    job = admitted_job(submit(client))
    held = run_next(store)
    for text, count in (("a", 1), ("a", 1), ("b", 2)):
        store.append([(held, text, count)])
    settle(store, held)
    assert [event.data["text"] for event in read_all(client, job["id"]) if event.kind == "token"] == ["a", "b"]


def test_a_later_reader_gets_the_text_of_an_attempt_that_began_anew_and_not_of_the_one_before(
    client: FlaskClient, store: Store
) -> None:
    job = admitted_job(submit(client))
    held = run_next(store)
    store.append([(held, "a", 1)])
    store.release("w1", [held])
    heartbeat(store)
    run_job(store, "a", "b")
    events = read_all(client, job["id"])
    assert kinds(events) == ["queued", "started", "token", "token", "ended"]
    assert [event.data["text"] for event in events if event.kind == "token"] == ["a", "b"]


def test_an_attempt_that_continues_says_so_and_sends_only_new_text(client: FlaskClient, store: Store) -> None:
    job = admitted_job(submit(client))
    answer_in_two_attempts(store, run_next(store), ["a", "b"], ["c"])
    events = read_all(client, job["id"])
    assert kinds(events) == ["queued", "started", "token", "token", "started", "token", "ended"]
    started = [event.data for event in events if event.kind == "started"]
    assert started == [{"attempt": 1}, {"attempt": 1, "resumed": True}]
    assert [event.data["tokens"] for event in events if event.kind == "token"] == [1, 2, 3]


def test_several_readers_of_one_job_each_receive_the_whole_text(client: FlaskClient, store: Store) -> None:
    job = admitted_job(submit(client))
    received: dict[int, list[str]] = {}

    def read(reader: int) -> None:
        received[reader] = [e.data["text"] for e in read_all(client, job["id"]) if e.kind == "token"]

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
    assert received == {index: [f"t{count}" for count in range(1, 11)] for index in range(4)}


def test_a_reader_that_disconnects_cancels_nothing(client: FlaskClient, store: Store) -> None:
    job = admitted_job(submit(client))
    stream = follow(client, job["id"])
    next(stream)
    stream.close()
    assert view_of(store, job["id"]).state == "queued"


@pytest.mark.parametrize("last", ["x", "1-", "-1", "1-2-3-4", "1" * 40, "9" * 20 + "-0", "1-" + "9" * 20, f"{2**64}-0"])
def test_an_invalid_event_id_is_422(client: FlaskClient, last: str) -> None:
    job = admitted_job(submit(client))
    url = f"/v1/jobs/{job['id']}/events"
    fault(client.get(url, headers={"Last-Event-ID": last}), 422, "invalid_value", "Last-Event-ID")
    fault(client.get(url, query_string={"last_event_id": last}), 422, "invalid_value", "last_event_id")


def test_an_event_id_out_of_range_delays_no_other_reader(
    client: FlaskClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A reader that gets no events would read the job so much later.
    monkeypatch.setattr("web.jobs.tenant_jobs.REFRESH_INTERVAL_S", 600)
    job = admitted_job(submit(client))
    stream = follow(client, job["id"])
    next(stream)
    client.get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": "9" * 20 + "-0"}, buffered=False).close()
    began_s = time.monotonic()
    run_job(store, "a")
    assert kinds([event for event in stream if isinstance(event, Event)]) == ["queued", "started", "token", "ended"]
    assert time.monotonic() - began_s < 60


def test_the_largest_possible_event_id_is_valid(client: FlaskClient, store: Store) -> None:
    job = admitted_job(submit(client))
    run_job(store, "a")
    assert kinds(read_all(client, job["id"], f"{2**64 - 1}-{2**64 - 1}")) == ["ended"]


def test_a_job_is_no_longer_followed_after_its_stream_ended(client: FlaskClient, store: Store) -> None:
    event_hub = client.application.extensions["penstock"].event_hub
    job = admitted_job(submit(client))
    run_job(store, "a")
    read_all(client, job["id"])
    assert event_hub.followed == 0


def test_a_stream_reaches_the_end_of_its_job_though_its_client_disconnects_while_the_store_is_away(
    client: FlaskClient, store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = DoorContext(settings, store, RealClock())
    queued = view_of(store, admitted_job(submit(client))["id"])
    run_job(store, "all words")
    failures = [StoreUnavailable("gone")] * 3
    refresh = event_stream.refresh_job

    def read(context: DoorContext, view: JobView) -> JobView:
        if failures:
            raise failures.pop()
        return refresh(context, view)

    monkeypatch.setattr(event_stream, "refresh_job", read)
    items = follow_job(context, queued, stop=lambda: len(failures) < 3)
    kept = [item for item in items if not isinstance(item, NothingNew)]
    assert [type(item) for item in kept] == [JobStarted, TextDelta, JobEnded]
    assert context.event_hub.followed == 0

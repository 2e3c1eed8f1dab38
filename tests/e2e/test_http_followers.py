"""How a door tells workers which jobs are followed, and streams of jobs that nobody followed from the beginning."""

import time
from typing import Any

import pytest
from flask.testing import FlaskClient

from shared.errors import StoreUnavailable
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from tests.e2e.test_http_events import read_all
from tests.support.builders import view_of
from tests.support.door import a_door, admitted_job, post_response, run_next, serve, settle, submit, worker


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    serve(store)
    return a_door(store, settings)


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("stream", [True, False])
def test_only_requests_that_stream_are_followed_from_their_admission_on(client, store, path, stream):
    body = {"/v1/completions": {"prompt": "hello"}, "/v1/responses": {"input": "hello"}}.get(path, CHAT)
    found = []

    def act(held):
        found.append((view_of(store, held.id).is_followed, store.client.exists(keys.bell("w1"))))
        settle(store, held)

    with worker(store, act):
        response = client.post(path, json={"model": "m", "stream": stream} | body)
        assert response.status_code == 200, response.text
    assert found == [(stream, 0)]


def test_a_background_response_is_followed_if_it_is_streamed(client, store):
    post_response(client, background=True)
    assert not view_of(store, run_next(store).id).is_followed


def test_whoever_polls_or_waits_does_not_follow_because_no_text_is_shown_before_the_end(client, store):
    job = admitted_job(submit(client, "/v1/jobs?wait_ms=10"))
    held = run_next(store)
    store.append([(held, "some ", 1)])
    assert client.get(f"/v1/jobs/{job['id']}?wait_ms=10").get_json()["text"] is None
    assert not view_of(store, job["id"]).is_followed


def test_a_call_that_waits_reads_its_job_seldom_if_nothing_depends_on_it(client, store, monkeypatch):
    monkeypatch.setattr("web.jobs.tenant_jobs.TOUCH_S", 0.02)
    reads, touch = [], Store.touch
    monkeypatch.setattr(Store, "touch", lambda *given, **named: reads.append(0) or touch(*given, **named))
    admitted_job(submit(client, "/v1/jobs?wait_ms=500"))
    assert len(reads) <= 3


@pytest.mark.parametrize("route", ["?wait_ms=60000", "/events"])
def test_whoever_waits_for_a_job_or_reads_its_stream_polls_it_often_if_that_keeps_it_alive(
    client, store, monkeypatch, route
):
    monkeypatch.setattr("web.jobs.tenant_jobs.TOUCH_S", 0.02)
    monkeypatch.setattr("web.jobs.tenant_jobs.REFRESH_INTERVAL_S", 600)
    job = admitted_job(submit(client, poll_grace_ms=60_000))
    held, polls, touch = run_next(store), [], Store.touch

    def poll(*given, quiet: bool = False, **named):
        polls.append(quiet)
        if polls.count(False) == 5:
            settle(store, held)
        return touch(*given, quiet=quiet, **named)

    monkeypatch.setattr(Store, "touch", poll)
    assert "succeeded" in client.get(job["urls"]["self"] + route).text
    assert polls.count(False) >= 5


def test_a_reader_of_a_running_job_is_announced_to_its_worker(client, store):
    job = admitted_job(submit(client))
    held = run_next(store)

    def act() -> None:
        rings = store.wait_for_work("w1", "", timeout_s=5)
        assert rings.followed == [job["id"]]
        store.append([(held, "some words", 20)])
        settle(store, held)

    stream = client.get(f"/v1/jobs/{job['id']}/events", buffered=False).iter_encoded()
    next(stream), next(stream), next(stream)
    act()
    assert b'"text":"some words"' in b"".join(stream)


def tokens(client: FlaskClient, job_id: str, last: str | None = None) -> list[str]:
    """Return the texts of the job's stream after the event `last`. Its last event is the end."""
    *events, ended = read_all(client, job_id, last)
    assert ended.kind == "ended"
    return [event.data["text"] for event in events if event.kind == "token"]


@pytest.mark.parametrize("n", [1, 2])
def test_a_stream_ends_with_the_text_of_the_result_that_its_events_lack(client, store, n):
    """The worker has written the beginning, and the job has ended before anybody followed it."""
    job = admitted_job(submit(client, n=n) if n > 1 else submit(client))
    held = run_next(store)
    store.append([(held, "some ", 1)])
    settle(store, held)
    assert tokens(client, job["id"]) == ["some ", "words"]
    started, text, rest, ended = (event.id for event in read_all(client, job["id"]) if event.id)
    assert tokens(client, job["id"], started) == ["some ", "words"]
    assert tokens(client, job["id"], text) == ["words"]
    assert tokens(client, job["id"], rest) == tokens(client, job["id"], ended) == []


def test_a_job_without_any_event_of_text_streams_its_result(client, store):
    job = admitted_job(submit(client))
    settle(store, run_next(store))
    assert tokens(client, job["id"]) == ["some words"]
    started, rest, _ = (event.id for event in read_all(client, job["id"]) if event.id)
    assert tokens(client, job["id"], started) == ["some words"]
    assert tokens(client, job["id"], rest) == []


def test_a_stream_waits_for_the_store_before_it_shows_the_rest_of_a_text(client, store, monkeypatch):
    job = admitted_job(submit(client))
    held = run_next(store)
    store.append([(held, "some ", 1)])
    settle(store, held)
    _, text, *_ = (event.id for event in read_all(client, job["id"]) if event.id)
    read, away = Store.read_events, iter([True] * 3)

    def read_or_fail(self, after, *, block_ms):
        if after == {job["id"]: "0"} and next(away, False):
            raise StoreUnavailable("the line is cut")
        return read(self, after, block_ms=block_ms)

    monkeypatch.setattr(Store, "read_events", read_or_fail)
    assert tokens(client, job["id"], text) == ["words"]
    assert next(away, None) is None


def test_an_answer_whose_first_read_after_its_end_fails_is_read_again_at_once(client, store, monkeypatch):
    ended, failed = Store.ended, []

    def fail_once(self: Store, job_id: str, *, tenant: str) -> Any:
        if not failed:
            failed.append(job_id)
            raise StoreUnavailable("one read timed out")
        return ended(self, job_id, tenant=tenant)

    monkeypatch.setattr(Store, "ended", fail_once)
    monkeypatch.setattr("web.jobs.tenant_jobs.REFRESH_INTERVAL_S", 600)
    began = time.monotonic()
    with worker(store, lambda held: settle(store, held)):
        response = client.post("/v1/chat/completions", json={"model": "m"} | CHAT)
    assert (response.status_code, len(failed)) == (200, 1)
    # Long before the deadline.
    assert time.monotonic() - began < 60

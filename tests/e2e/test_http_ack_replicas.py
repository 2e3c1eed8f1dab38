"""PENSTOCK_ACK_REPLICAS: no client gets a job's id before the replicas have the job, on all routes and on the gate."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from shared.audit.invariants import find_breaches, unowned_keys
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.connection import DOOR, open_client
from shared.store.store import Store
from tests.support.builders import view_of
from tests.support.door import a_door, admitted_job, job_of, post_response, refused, run_next, serve, settle, submit
from tests.support.gate import served, submit_frame
from tests.support.kept_alive import keep_alive
from tests.support.lossy import LossyProxy
from tests.support.processes import wait_for
from tests.support.store_servers import StoreServer, commands_run

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StoreServer, StoreServer]]:
    """A primary and its replica."""
    folder = tmp_path_factory.mktemp("pair")
    with StoreServer(folder / "primary") as primary, StoreServer(folder / "replica") as replica:
        replica.follow(primary.port)
        primary.wait_until_replicas_are_listed(1)
        yield primary, replica


@pytest.fixture
def replica(pair: tuple[StoreServer, StoreServer]) -> Iterator[StoreServer]:
    yield pair[1]
    pair[1].process.resume()


@pytest.fixture
def store(pair: tuple[StoreServer, StoreServer], replica: StoreServer, settings: Settings) -> Iterator[Store]:
    pair[0].client.flushall()
    store = _store_at(pair[0].url)
    store.configure(settings)
    keep_alive(store)
    serve(store)
    yield store
    assert find_breaches(store.client) == []
    assert unowned_keys(store.client) == []


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    return a_door(store, settings, ack_replicas=1)


def jobs_of(store: Store) -> list[tuple[str, str]]:
    """Return (state, end code) of every job that the store knows."""
    return [(str(view.state), view.code) for tenant in ("default", "blue") for view in store.jobs(tenant).jobs]


def wait_until_taken_back(store: Store) -> None:
    wait_for(lambda: jobs_of(store) == [("canceled", "unheard")], "the one job to be canceled as unheard")


def test_a_job_whose_client_has_its_id_is_in_the_replica(client: FlaskClient, replica: StoreServer) -> None:
    for _ in range(20):
        job = admitted_job(submit(client))
        assert replica.client.hget(keys.rq_job(job["id"]), "penstock_state") == b"queued"
        client.delete(job["urls"]["self"])


def _native(client: FlaskClient) -> TestResponse:
    return submit(client)


def _native_wait(client: FlaskClient) -> TestResponse:
    return submit(client, "/v1/jobs?wait_ms=5000")


def _chat(client: FlaskClient) -> TestResponse:
    return client.post("/v1/chat/completions", json=CHAT)


def _chat_stream(client: FlaskClient) -> TestResponse:
    return client.post("/v1/chat/completions", json=CHAT | {"stream": True})


def _response(client: FlaskClient) -> TestResponse:
    return post_response(client)


def _response_in_background(client: FlaskClient) -> TestResponse:
    return post_response(client, background=True)


def _embeddings(client: FlaskClient) -> TestResponse:
    return client.post("/v1/embeddings", json={"input": "hello", "model": "vectors"})


@pytest.mark.parametrize(
    "send",
    [_native, _native_wait, _chat, _chat_stream, _response, _response_in_background, _embeddings],
)
def test_with_a_replica_that_does_not_answer_every_route_refuses_and_takes_the_job_back(
    store: Store, replica: StoreServer, settings: Settings, send: Any
) -> None:
    if send is _embeddings:
        serve(store, "w2", model="vectors", facts={"pooling": "mean"})
    client = a_door(store, settings, ack_replicas=1)
    replica.process.pause()
    refused(send(client), "store_unavailable")
    wait_until_taken_back(store)


def test_with_a_replica_that_does_not_answer_the_gate_yields_and_takes_the_job_back(
    store: Store, replica: StoreServer, settings: Settings
) -> None:
    with served(store, replace(settings, ack_replicas=1)) as serving:
        assert serving.client.ask(submit_frame("a1"))["status"] == "accepted"
        serving.client.send({"op": "cancel", "ref": "a1"})
        assert serving.client.read()["status"] == "canceled"
        replica.process.pause()
        answer = serving.client.ask(submit_frame("a2"))
        assert (answer["status"], answer["reason"]) == ("yield", "store_unavailable")
        wait_for(lambda: ("canceled", "unheard") in jobs_of(store), "the second job to be canceled")
    assert store.snapshot().inflight == 0


def test_one_replica_is_too_few_for_two(store: Store, settings: Settings) -> None:
    refused(submit(a_door(store, settings, ack_replicas=2)), "store_unavailable")
    wait_until_taken_back(store)


def test_without_the_setting_the_replica_does_not_matter(
    store: Store, replica: StoreServer, settings: Settings
) -> None:
    replica.process.pause()
    admitted_job(submit(a_door(store, settings)))


def test_a_refusal_does_not_wait_for_the_replica(store: Store, replica: StoreServer, settings: Settings) -> None:
    store.farewell("w1", "m")
    client = a_door(store, settings, ack_replicas=1)
    before = commands_run(store.client, "wait")
    refused(submit(client, model="m"), "no_worker")
    assert commands_run(store.client, "wait") == before


@pytest.mark.parametrize("headers", [{"Idempotency-Key": "k1"}, {"x-request-id": "r1"}])
def test_a_repeat_of_a_refused_request_gets_one_job_when_the_replica_is_back(
    client: FlaskClient, store: Store, replica: StoreServer, headers: dict[str, str]
) -> None:
    replica.process.pause()
    refused(submit(client, headers=headers), "store_unavailable")
    wait_until_taken_back(store)
    replica.process.resume()
    job = admitted_job(submit(client, headers=headers))
    assert admitted_job(submit(client, headers=headers))["id"] == job["id"]
    assert sorted(jobs_of(store)) == [("canceled", "unheard"), ("queued", "")]
    assert replica.client.exists(keys.rq_job(job["id"]))


@pytest.mark.parametrize("headers", [{"Idempotency-Key": "k1"}, {"x-request-id": "r1"}])
def test_a_job_is_taken_back_when_every_repeat_of_its_request_was_refused(
    client: FlaskClient, store: Store, replica: StoreServer, settings: Settings, headers: dict[str, str]
) -> None:
    """Each repeat finds the job while the first request still waits for the replica."""
    other = a_door(_store_at(_url_of(store)), settings, ack_replicas=1)
    replica.process.pause()
    answers: list[TestResponse] = []
    calls = [
        threading.Thread(target=lambda door=door: answers.append(submit(door, headers=headers)))  # type: ignore[misc]
        for door in (client, other, other)
    ]
    for call in calls:
        call.start()
    for call in calls:
        call.join(timeout=20)
    for answer in answers:
        refused(answer, "store_unavailable")
    # A repeat that comes after the job was taken back gets a new job.
    wait_for(lambda: set(jobs_of(store)) == {("canceled", "unheard")}, "every job to be canceled as unheard")


@pytest.mark.parametrize("headers", [{"Idempotency-Key": "k1"}, {"x-request-id": "r1"}])
@pytest.mark.parametrize("state", ["queued", "succeeded"])
def test_a_repeat_of_an_admitted_request_waits_for_the_replica_again_and_never_takes_the_job_back(
    client: FlaskClient, store: Store, settings: Settings, replica: StoreServer, headers: dict[str, str], state: str
) -> None:
    """The last repeat is sent on a connection that has written nothing: WAIT alone would return at once there."""
    job = admitted_job(submit(client, headers=headers))
    assert admitted_job(submit(client, headers=headers))["id"] == job["id"]
    if state == "succeeded":
        settle(store, run_next(store))
    replica.process.pause()
    other = a_door(_store_at(_url_of(store)), settings, ack_replicas=1)
    refused(submit(other, headers=headers), "store_unavailable")
    in_doubt = other.application.extensions["penstock"].in_doubt
    wait_for(in_doubt.one_pass, "the first cancel of the repeat's offer")
    assert view_of(store, job["id"]).state == state
    replica.process.resume()
    assert job_of(submit(other, headers=headers))["id"] == job["id"]


def test_an_offer_whose_answer_is_lost_is_repeated_and_waits_for_the_replica(
    store: Store, replica: StoreServer, settings: Settings, tmp_path: Path
) -> None:
    before = commands_run(store.client, "wait")
    with LossyProxy(tmp_path, _url_of(store)) as proxy:
        client = a_door(_store_at(proxy.url), settings, ack_replicas=1)
        proxy.lose(b"$8\r\nadmitted", times=1)
        job = admitted_job(submit(client))
    assert replica.client.exists(keys.rq_job(job["id"]))
    assert commands_run(store.client, "wait") == before + 1


def _url_of(store: Store) -> str:
    options = store.client.connection_pool.connection_kwargs
    return f"redis://{options['host']}:{options['port']}"


def _store_at(url: str) -> Store:
    return Store(open_client(url, name="penstock-test-door", timeouts=DOOR))

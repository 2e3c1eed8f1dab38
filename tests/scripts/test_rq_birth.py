"""Tests of a worker's registration with RQ, which is for people who look: whatever goes wrong, the worker serves."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.exceptions import NoPermissionError
from rq import Worker
from rq.serializers import JSONSerializer

from shared.errors import StoreUnavailable
from shared.log import LimitedEvent
from shared.store.connection import open_client
from shared.store.embedded import EmbeddedStore
from tests.support.logs import logs_of_this_thread
from workers import rqworker
from workers.rqworker import RqWorker

pytestmark = pytest.mark.rq


@pytest.fixture(autouse=True)
def logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict]]:
    """The logged lines. Each test begins with an event that has not been logged before."""
    monkeypatch.setattr(rqworker, "_UNREGISTERED", LimitedEvent("rq.unregistered", interval_s=60.0), raising=False)
    with logs_of_this_thread() as entries:
        yield entries


def a_worker(client: redis.Redis, name: str = "w1") -> RqWorker:
    return RqWorker(name, client, serve=lambda: True)


def registered(client: redis.Redis) -> list[Worker]:
    return Worker.all(connection=client, serializer=JSONSerializer)


@pytest.mark.parametrize(
    "folder", ["plain", "a b", "a=b", " a  = b c ", "fd=8 addr=x", "a\tb", "grün ✓", "it's", "a%20b", "a\nb"]
)
def test_a_worker_is_registered_whatever_the_path_of_the_stores_socket(tmp_path: Path, folder: str, logs) -> None:
    embedded = EmbeddedStore.start(tmp_path / folder)
    try:
        client = open_client(embedded.url, name="penstock-worker")
        a_worker(client).register_birth()
        (found,) = registered(client)
        assert found.name == "w1"
        assert "store.sock" in found.ip_address or folder == "fd=8 addr=x"
        client.close()
    finally:
        embedded.stop()
    assert logs == []


@pytest.mark.parametrize("path", ["a b", "a=b c"])
def test_the_url_of_a_socket_may_contain_a_space_as_it_is(tmp_path: Path, path: str) -> None:
    embedded = EmbeddedStore.start(tmp_path / path)
    try:
        socket = tmp_path / path / "store" / "store.sock"
        assert socket.is_socket()
        client = open_client(f"unix://{socket}", name="penstock-worker")
        a_worker(client).register_birth()
        assert [one.name for one in registered(client)] == ["w1"]
        client.close()
    finally:
        embedded.stop()


class Garbled(redis.Redis):
    """A store that answers CLIENT INFO with something else, or not at all."""

    info: bytes | Exception = b""

    def execute_command(self, *arguments, **options):
        if arguments[0] == "CLIENT":
            if isinstance(self.info, Exception):
                raise self.info
            return self.info
        return super().execute_command(*arguments, **options)


def garbled(client: redis.Redis, info: bytes | Exception | None) -> Garbled:
    """Return a client of the same store."""
    made = Garbled(connection_pool=client.connection_pool)
    made.info = info
    return made


@pytest.mark.parametrize(
    "info", [b"", b"OK", b"\xff\xfe", None, [b"id"], redis.ResponseError("unknown"), NoPermissionError("no")]
)
def test_an_address_that_the_store_does_not_say_is_unknown(redis_client, info, logs) -> None:
    a_worker(garbled(redis_client, info)).register_birth()
    (found,) = registered(redis_client)
    assert found.ip_address == "unknown"
    assert logs == []


@pytest.mark.parametrize("fault", ["another type", "the same name", "RQ itself"])
def test_a_registration_that_fails_is_logged_once_a_minute_and_ends_nothing(
    redis_client, monkeypatch, fault, logs
) -> None:
    worker = a_worker(redis_client)
    if fault == "another type":
        redis_client.set("rq:workers", "x", ex=60)
    elif fault == "the same name":
        redis_client.hset(worker.key, "birth", "before")
        redis_client.expire(worker.key, 60)
    else:
        monkeypatch.setattr("rq.worker.BaseWorker.serialize", lambda _: 1 / 0)
    for _ in range(3):
        worker.register_birth()
    assert [(entry["event"], entry["worker"]) for entry in logs] == [("rq.unregistered", "w1")]


def test_a_store_that_is_away_is_not_hidden_because_the_pass_has_to_be_repeated(redis_client) -> None:
    worker = a_worker(garbled(redis_client, redis.ConnectionError("cut")))
    with pytest.raises(StoreUnavailable):
        worker.register_birth()


def test_a_worker_that_cannot_say_that_it_ended_has_ended(redis_client, monkeypatch, logs) -> None:
    monkeypatch.setattr("rq.worker.BaseWorker.register_death", lambda _: 1 / 0)
    assert a_worker(redis_client).work()
    assert [entry["event"] for entry in logs] == ["rq.death_untold"]

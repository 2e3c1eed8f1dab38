"""Tests which stores are refused at the start, and with which messages."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from shared.errors import StoreUnavailable, StoreUnfit
from shared.store.connection import open_client
from shared.store.embedded import EmbeddedStore
from shared.store.preflight import check_fitness


@pytest.fixture
def server(tmp_path: Path) -> Iterator[redis.Redis]:
    """A store that only this test uses, so that the test can change its configuration."""
    embedded = EmbeddedStore.start(tmp_path)
    with open_client(embedded.url, name="penstock-test") as client:
        yield client
    embedded.stop()


def test_the_embedded_store_is_fit(server):
    assert check_fitness(server) == []


def test_a_store_that_evicts_is_refused_with_its_policy(server):
    server.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(StoreUnfit, match="allkeys-lru"):
        check_fitness(server)


def test_a_store_without_an_append_only_file_is_refused(server):
    server.config_set("appendonly", "no")
    with pytest.raises(StoreUnfit, match="appendonly is 'no'"):
        check_fitness(server)


@pytest.fixture
def guest(server: redis.Redis) -> Iterator[redis.Redis]:
    """A client that may run every command except CONFIG, as in many managed stores."""
    server.acl_setuser("guest", enabled=True, nopass=True, categories=["+@all"], commands=["-config"], keys=["*"])
    url = "unix://guest:any@" + server.connection_pool.connection_kwargs["path"]
    with open_client(url, name="guest") as client:
        yield client


def test_where_config_is_forbidden_a_durable_store_is_accepted(guest):
    assert check_fitness(guest) == []


def test_where_config_is_forbidden_a_store_without_an_append_only_file_gives_a_warning(server, guest):
    server.config_set("appendonly", "no")
    [warning] = check_fitness(guest)
    assert "aof_enabled=0" in warning


def test_where_config_is_forbidden_a_store_that_evicts_is_still_refused(server, guest):
    server.config_set("maxmemory-policy", "volatile-ttl")
    with pytest.raises(StoreUnfit, match="volatile-ttl"):
        check_fitness(guest)


def test_a_store_that_cannot_be_reached_is_unavailable_and_not_unfit(tmp_path):
    with open_client(f"unix://{tmp_path}/none", name="any") as client, pytest.raises(StoreUnavailable):
        check_fitness(client)


def test_an_old_server_is_refused_with_its_version():
    from shared.store.preflight import _check_version

    with pytest.raises(StoreUnfit, match=r"6\.0\.16"):
        _check_version("6.0.16")
    _check_version("6.2.0")
    _check_version("7.2.4")


def test_a_store_without_a_limit_on_its_memory_gives_a_warning(server):
    server.config_set("maxmemory", "0")
    [warning] = check_fitness(server)
    assert "no maxmemory" in warning


def test_where_config_is_forbidden_a_store_without_a_limit_still_gives_a_warning(server, guest):
    server.config_set("maxmemory", "0")
    [warning] = check_fitness(guest)
    assert "no maxmemory" in warning


@pytest.mark.parametrize(
    ("name", "value"),
    [("stream-node-max-bytes", "0"), ("stream-node-max-bytes", "4096"), ("hash-max-ziplist-value", "64")],
)
def test_a_store_whose_ended_jobs_keep_more_memory_than_necessary_gives_a_warning(server, name, value):
    server.config_set(name, value)
    [warning] = check_fitness(server)
    assert f"{name.replace('ziplist', 'listpack')} is {value} " in warning

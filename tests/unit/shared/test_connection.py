"""Tests the timeouts of connections to the store, that no call is repeated, and how each failure is reported."""

import socket
import time
from contextlib import closing

import pytest
import redis
from redis.sentinel import SentinelConnectionPool

from shared.errors import ConfigError, StoreUnavailable
from shared.settings.secret_values import without_password
from shared.settings.settings import load
from shared.settings.store_url import normal_store_url
from shared.store.clients.cluster import NodePool, SSLNodeConnection
from shared.store.connection import DOOR, WORKER, open_blocking_client, open_client
from shared.store.redis_errors import store_faults
from tests.support.processes import in_time

#: The distinguishing features of a store.
KNOWN = {"host", "port", "db", "path", "username", "password"}


def test_the_door_waits_a_quarter_of_a_second_to_connect_and_one_second_for_an_answer():
    options = open_client("redis://store:6379/0", name="door", timeouts=DOOR).connection_pool.connection_kwargs
    assert (options["socket_connect_timeout"], options["socket_timeout"]) == (0.25, 1.0)


@pytest.mark.parametrize("url", ["redis://store", "rediss://store", "unix:///run/store.sock"])
@pytest.mark.parametrize("timeouts", [DOOR, WORKER])
def test_no_client_repeats_a_call_by_itself(url, timeouts):
    connection = open_client(url, name="any", timeouts=timeouts).connection_pool.make_connection()
    assert connection.retry.get_retries() == 0
    assert connection.retry_on_error == []


def test_a_url_that_enables_retries_or_sets_a_timeout_is_refused():
    with pytest.raises(ConfigError, match="retry_on_timeout"):
        open_client("redis://store?retry_on_timeout=yes", name="any")
    with pytest.raises(ConfigError, match="socket_timeout"):
        open_client("redis+sentinel://a:1/main?socket_timeout=9", name="any")


@pytest.mark.parametrize("sign", "/?#")
def test_an_error_shows_no_part_of_a_password_that_is_not_escaped(sign):
    with pytest.raises(ConfigError, match="write / as %2F") as raised:
        open_client(f"redis://me:sek{sign}ret@store:6379", name="any")
    assert "sek" not in str(raised.value)


def test_a_url_with_an_unknown_scheme_is_quoted_without_its_password():
    with pytest.raises(ConfigError, match=r"http://me:\*\*\*@store") as raised:
        open_client("http://me:secret@store", name="any")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        ("redis://:secret@store:6379/1", "redis://:***@store:6379/1"),
        ("unix:///run/s.sock?password=secret", "unix:///run/s.sock?password=***"),
        ("redis+sentinel://me:secret@a:1,b:2/main", "redis+sentinel://me:***@a:1,b:2/main"),
        ("redis://store", "redis://store"),
        ("redis://me:se@cret@store:6379/1", "redis://me:***@store:6379/1"),
        ("redis://:se/cr#et?@store", "redis://:***@store"),
        ("redis://store/0?password=sec&ret&db=1", "redis://store/0?password=***&db=1"),
        ("redis://store:6379/0?password=se@cret", "redis://store:6379/0?password=***"),
        (
            "redis+sentinel://me:s@a:1/main?sentinel_password=se@c",
            "redis+sentinel://me:***@a:1/main?sentinel_password=***",
        ),
    ],
)
def test_a_printed_url_has_no_password(url, printed):
    assert without_password(url) == printed


def test_sentinels_and_the_primary_have_the_door_s_timeouts():
    url = "redis+sentinel://me:pa%20ss@one:26379,two/main/3?sentinel_password=other&ssl=true"
    pool = open_client(url, name="door", timeouts=DOOR).connection_pool
    assert isinstance(pool, SentinelConnectionPool)
    assert pool.service_name == "main"
    options = pool.connection_kwargs
    assert (options["username"], options["password"], options["db"]) == ("me", "pa ss", 3)
    assert options["socket_timeout"] == 1.0
    sentinels = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    assert [(one["host"], one["port"]) for one in sentinels] == [("one", 26379), ("two", 26379)]
    assert {one["password"] for one in sentinels} == {"other"}
    assert {one["socket_connect_timeout"] for one in sentinels} == {0.25}


def test_the_nodes_of_a_cluster_have_the_door_s_timeouts_and_the_credentials_of_the_url():
    url = "valkey+cluster://me:pa%20ss@one,[::1]:7000?ssl=true&ssl_ca_certs=/ca.pem"
    pool = open_client(url, name="door", prefix="{c1}:", timeouts=DOOR).connection_pool
    assert isinstance(pool, NodePool)
    assert pool.connection_class is SSLNodeConnection
    assert pool.owner.seeds == (("one", 6379), ("::1", 7000))
    connection = pool.make_connection()
    assert (connection.username, connection.password, connection.socket_timeout) == ("me", "pa ss", 1.0)
    assert connection.ca_certs == "/ca.pem"
    assert connection.retry.get_retries() == 0


@pytest.mark.parametrize(
    ("url", "prefix", "why"),
    [
        ("redis+cluster://one:1/3", "{c1}:", "a cluster has no database '3'"),
        ("redis+cluster://one:x", "{c1}:", "'one:x' is not a node's host:port"),
        ("redis+cluster://", "{c1}:", "'' is not a node's host:port"),
        ("redis+cluster://one:1?socket_timeout=9", "{c1}:", "sets socket_timeout, which is fixed"),
        ("redis+cluster://one:1", "", "a cluster needs a hash tag"),
    ],
)
def test_the_error_for_an_invalid_cluster_url_names_the_part_that_is_wrong(url, prefix, why):
    with pytest.raises(ConfigError, match=why):
        open_client(url, name="any", prefix=prefix)


@pytest.mark.parametrize("url", ["redis+sentinel://one:26379", "redis+sentinel://one:x/main"])
def test_the_error_for_an_invalid_sentinel_url_names_the_part_that_is_wrong(url):
    with pytest.raises(ConfigError, match=r"service|host:port"):
        open_client(url, name="any")


def test_a_blocking_client_has_its_own_connections_with_a_timeout_longer_than_its_block():
    client = open_client("redis://store:6379/2", name="door", timeouts=DOOR)
    blocking = open_blocking_client(client, block_s=5.0)
    assert blocking.connection_pool is not client.connection_pool
    options = blocking.connection_pool.connection_kwargs
    assert options["socket_timeout"] > 5.0
    assert (options["host"], options["port"], options["db"]) == ("store", 6379, 2)
    assert blocking.connection_pool.make_connection().retry.get_retries() == 0


def test_a_blocking_client_behind_sentinels_uses_the_same_sentinels():
    client = open_client("redis+sentinel://one:26379/main", name="door", timeouts=DOOR)
    blocking = open_blocking_client(client, block_s=5.0)
    assert isinstance(blocking.connection_pool, SentinelConnectionPool)
    assert blocking.connection_pool.sentinel_manager is client.connection_pool.sentinel_manager
    assert blocking.connection_pool.make_connection().connection_pool is not client.connection_pool.proxy


def test_a_store_that_never_answers_is_unavailable_after_the_door_s_timeout_of_one_second():
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        client = open_client(f"redis://127.0.0.1:{silent.getsockname()[1]}", name="door", timeouts=DOOR)

        def attempt() -> list[tuple[float, float]]:
            began = time.monotonic()
            with pytest.raises(StoreUnavailable), store_faults(client):
                client.ping()
            return [(time.monotonic() - began, 1.5)]

        in_time(attempt)
        client.close()


def test_a_store_that_does_not_exist_is_unavailable_at_once(tmp_path):
    client = open_client(f"unix://{tmp_path}/none.sock", name="door", timeouts=DOOR)

    def attempt() -> list[tuple[float, float]]:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="cannot serve"), store_faults(client):
            client.ping()
        return [(time.monotonic() - began, 0.5)]

    in_time(attempt)


@pytest.mark.parametrize(
    "error",
    [
        redis.exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        redis.exceptions.ReadOnlyError("You can't write against a read only replica."),
        redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory"),
        redis.ResponseError("MISCONF Errors writing to the AOF file: No space left on device"),
        redis.ResponseError("BUSY Redis is busy running a script."),
        redis.ResponseError("Error running script (call to f_1): @user_script:1: -OOM command not allowed when"),
        redis.ResponseError("Error running script: @user_script: 7: -READONLY You can't write against a replica."),
    ],
)
def test_a_temporary_error_of_the_store_is_raised_as_store_unavailable(error):
    with pytest.raises(StoreUnavailable), store_faults(open_client("redis://store", name="any")):
        raise error


@pytest.mark.parametrize("text", ["WRONGTYPE Operation against a key", "user_script:3: BUSYBODY is nil"])
def test_an_error_that_our_own_code_causes_is_not_raised_as_store_unavailable(text):
    with pytest.raises(redis.ResponseError), store_faults(open_client("redis://store", name="any")):
        raise redis.ResponseError(text)


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("valkey://me:pw@store:7000/2", "redis://me:pw@store:7000/2"),
        ("VALKEY://store", "redis://store"),
        ("valkeys://store:6380", "rediss://store:6380"),
        ("redis+unix:///run/a b.sock?db=3", "unix:///run/a b.sock?db=3"),
        ("redis+socket:///run/s.sock", "unix:///run/s.sock"),
        ("valkey+unix:///run/s.sock", "unix:///run/s.sock"),
        ("valkey+socket:///run/s.sock", "unix:///run/s.sock"),
        ("unix:/run/s.sock", "unix:///run/s.sock"),
        ("valkey+sentinel://a:1,b:2/main", "redis+sentinel://a:1,b:2/main"),
    ],
)
def test_other_names_of_a_scheme_mean_the_same_store(url, same):
    assert normal_store_url(url) == same
    assert load(environ={"REDIS_URL": url}, dotenv=None).redis_url == url
    pools = [open_client(one, name="any").connection_pool for one in (url, same)]
    assert pools[0].connection_class is pools[1].connection_class
    kwargs = [{name: value for name, value in pool.connection_kwargs.items() if name in KNOWN} for pool in pools]
    assert kwargs[0] == kwargs[1]


@pytest.mark.parametrize(
    "url", ["http://store", "valkey:store", "valkeyz://store", "store:6379", "valkey+http://store"]
)
def test_no_other_scheme_names_a_store(url):
    with pytest.raises(ConfigError, match="REDIS_URL"):
        load(environ={"REDIS_URL": url}, dotenv=None)

"""Which fault the store has, from the errors of a real server that cannot serve for one reason after another."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
import redis

from shared.errors import StoreUnavailable, Unconfirmed
from shared.store.connection import Timeouts, open_client
from shared.store.preflight import find_write_fault
from shared.store.redis_errors import find_fault, store_faults
from shared.store_fault import StoreFault
from tests.support.ports import free_port
from tests.support.processes import wait_for
from tests.support.store_servers import StoreServer

PATIENT = Timeouts(connect_s=30, answer_s=30, connections=2)
HASTY = Timeouts(connect_s=0.1, answer_s=0.1, connections=2)
#: Each setting of a server with which it answers and refuses writes, and the fault that it then has.
REFUSED_WRITES = [
    ({"maxmemory": "1"}, {"maxmemory": "0"}, StoreFault.MEMORY_FULL),
    ({"min-replicas-to-write": "1"}, {"min-replicas-to-write": "0"}, StoreFault.TOO_FEW_REPLICAS),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with StoreServer(tmp_path_factory.mktemp("faulty")) as running:
        yield running


def fault_at(url: str, *, timeouts: Timeouts = PATIENT) -> StoreFault:
    """Return the fault that a client of this URL meets when it reads."""
    client = open_client(url, name="test", timeouts=timeouts)
    with closing(client), pytest.raises(StoreUnavailable) as raised, store_faults(client):
        client.get("x")
    assert "secret" not in str(raised.value)
    return raised.value.fault


def fault_of_a_write(client: redis.Redis) -> StoreFault:
    with pytest.raises(StoreUnavailable) as raised, store_faults(client):
        client.set("x", "y")
    return raised.value.fault


@pytest.mark.parametrize(("broken", "mended", "fault"), REFUSED_WRITES, ids=str)
def test_a_server_that_refuses_writes_says_why(server, broken, mended, fault):
    for name, value in broken.items():
        server.client.config_set(name, value)
    assert fault_of_a_write(server.client) is fault
    assert find_write_fault(server.client) is fault
    for name, value in mended.items():
        server.client.config_set(name, value)
    assert find_write_fault(server.client) is None


def test_a_replica_is_read_only_and_one_without_old_data_as_well(server):
    server.client.replicaof("127.0.0.1", free_port())
    assert fault_of_a_write(server.client) is StoreFault.READ_ONLY
    assert find_write_fault(server.client) is StoreFault.READ_ONLY
    server.client.config_set("replica-serve-stale-data", "no")
    assert fault_at(server.url) is StoreFault.READ_ONLY
    server.client.config_set("replica-serve-stale-data", "yes")
    server.promote()
    assert find_write_fault(server.client) is None


def test_a_server_that_could_not_save_refuses_writes(server):
    folder = Path(server.client.config_get("dir")["dir"])
    # A folder is where the file should be.
    in_the_way = folder / server.client.config_get("dbfilename")["dbfilename"] / "in the way"
    in_the_way.mkdir(parents=True)
    server.client.config_set("save", "3600 1")
    server.client.bgsave()
    wait_for(lambda: server.client.info("persistence")["rdb_last_bgsave_status"] == "err", "the save to fail")
    assert fault_of_a_write(server.client) is StoreFault.DISK_FAILED
    assert find_write_fault(server.client) is StoreFault.DISK_FAILED
    server.client.config_set("save", "")
    assert find_write_fault(server.client) is None


def test_looking_for_a_refusal_of_writes_changes_nothing(server):
    server.client.flushall()
    assert find_write_fault(server.client) is None
    assert server.client.dbsize() == 0
    # Another program's value in the key is no reason to say that writes are refused.
    server.client.set("penstock:tenants", "no sorted set")
    assert find_write_fault(server.client) is None
    server.client.delete("penstock:tenants")


def test_a_wrong_and_a_missing_password_are_told_apart(server):
    server.client.config_set("requirepass", "right")
    try:
        assert fault_at(f"redis://:secret@127.0.0.1:{server.port}") is StoreFault.PASSWORD_REFUSED
        assert fault_at(f"redis://me:secret@127.0.0.1:{server.port}") is StoreFault.PASSWORD_REFUSED
        assert fault_at(server.url) is StoreFault.PASSWORD_MISSING
    finally:
        server.client.config_set("requirepass", "")


def test_a_password_for_a_server_without_one_is_refused(server):
    assert fault_at(f"redis://:secret@127.0.0.1:{server.port}") is StoreFault.PASSWORD_REFUSED


def test_a_server_without_a_free_connection_says_so(server):
    most = server.client.config_get("maxclients")["maxclients"]
    server.client.config_set("maxclients", "1")
    try:
        assert fault_at(server.url) is StoreFault.CONNECTIONS_FULL
    finally:
        server.client.config_set("maxclients", most)


def test_a_server_in_a_long_script_is_busy(server):
    server.client.config_set("busy-reply-threshold", "1")

    def spin() -> None:
        with closing(open_client(server.url, name="spin", timeouts=PATIENT)) as client, suppress(redis.RedisError):
            client.eval("while true do end", 0)

    spinning = threading.Thread(target=spin)
    spinning.start()
    other = open_client(server.url, name="test", timeouts=PATIENT)

    def is_busy() -> bool:
        try:
            with store_faults(other):
                other.get("x")
        except StoreUnavailable as error:
            return error.fault is StoreFault.BUSY
        return False

    wait_for(is_busy, "the script to run")
    other.script_kill()
    spinning.join(30)
    other.close()


def test_a_server_that_is_stopped_is_unreachable_and_one_that_says_nothing_is_late():
    assert fault_at(f"redis://me:secret@127.0.0.1:{free_port()}") is StoreFault.UNREACHABLE
    assert fault_at("unix:///nowhere/store.sock") is StoreFault.UNREACHABLE
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        assert fault_at(f"redis://127.0.0.1:{silent.getsockname()[1]}", timeouts=HASTY) is StoreFault.TIMEOUT


def test_sentinels_that_are_away_name_no_primary():
    assert fault_at(f"redis+sentinel://127.0.0.1:{free_port()}/main", timeouts=HASTY) is StoreFault.NO_PRIMARY


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (
            redis.ResponseError("MISCONF Errors writing to the AOF file: No space left on device"),
            StoreFault.DISK_FULL,
        ),
        (redis.ResponseError("MISCONF Errors writing to the AOF file: Input/output error"), StoreFault.DISK_FAILED),
        (redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory"), StoreFault.LOADING),
        (redis.ResponseError("Error running script: @user_script:1: -OOM command not allowed"), StoreFault.MEMORY_FULL),
        (redis.exceptions.ClusterDownError("CLUSTERDOWN The cluster is down"), StoreFault.OTHER),
        (redis.exceptions.MaxConnectionsError("Too many connections"), StoreFault.TIMEOUT),
        (redis.ResponseError("WRONGTYPE Operation against a key"), None),
    ],
)
def test_errors_that_a_test_cannot_cause_have_a_fault(error, fault):
    assert find_fault(error) is fault


def test_too_few_confirming_replicas_are_a_fault_of_their_own():
    assert Unconfirmed("0 of 1 replicas", "a job").fault is StoreFault.TOO_FEW_REPLICAS


def test_each_fault_has_a_label_a_predicate_and_advice():
    for fault in StoreFault:
        assert 0 < len(fault.label) <= 20
        assert fault.says[0].islower()
        assert fault.advice[0].isupper()
        assert not fault.advice.endswith(".")

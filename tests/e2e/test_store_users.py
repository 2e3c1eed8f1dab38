"""Tests the store's users of compose.yaml: the whole product runs with the rights of its user, which has no others."""

import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from shared.errors import StoreUnavailable
from shared.store.connection import open_client
from shared.store.embedded import server_binary
from shared.store.preflight import check_fitness
from tests.support.ports import free_port
from tests.support.processes import wait_for
from tests.support.program import Program, program
from tests.support.up import Up

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a server with the configuration and the users of compose.yaml, and yield the URL for Penstock."""
    folder = tmp_path_factory.mktemp("store")
    port = free_port()
    make = [ROOT / "deploy" / "make_credentials.sh", ROOT / "deploy" / "users.acl", folder, folder, f"127.0.0.1:{port}"]
    subprocess.run(make, check=True)
    server = subprocess.Popen(
        [server_binary(), ROOT / "deploy" / "valkey.conf", "--port", str(port), "--aclfile", folder / "users.acl"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
    )
    found = (folder / "redis-url").read_text().strip()
    try:
        with open_client(found, name="penstock-test") as client:
            until_s = time.monotonic() + 20
            while True:
                try:
                    check_fitness(client)
                    break
                except StoreUnavailable:
                    assert server.poll() is None, "the server refused its configuration"
                    assert time.monotonic() < until_s
                    time.sleep(0.02)
        yield found
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def penstock(tmp_path: Path, url: str) -> Program:
    """The program, which reads the URL with the password from a file."""
    file = tmp_path / "redis-url"
    file.write_text(url + "\n")
    return program(tmp_path, REDIS_URL_FILE=str(file))


def test_a_second_start_keeps_the_password(tmp_path: Path) -> None:
    make = [ROOT / "deploy" / "make_credentials.sh", ROOT / "deploy" / "users.acl", tmp_path, tmp_path, "store:6379"]
    written = []
    for _ in range(2):
        subprocess.run(make, check=True)
        written.append([(tmp_path / name).read_text() for name in ("users.acl", "redis-url")])
    assert written[0] == written[1]
    assert "PASSWORD_SHA256" not in written[0][0]


@pytest.mark.parametrize(
    "command",
    [
        ("SET", "other", "1"),
        ("GET", "other"),
        ("FLUSHALL",),
        ("FLUSHDB",),
        ("CONFIG", "SET", "maxmemory", "1"),
        ("KEYS", "*"),
        ("SHUTDOWN",),
        ("ACL", "LIST"),
        ("REPLICAOF", "NO", "ONE"),
        ("SCRIPT", "FLUSH"),
        ("EVAL", "return redis.call('SET', 'other', '1')", "0"),
        ("SORT", "penstock:keys"),
        ("CLIENT", "KILL", "TYPE", "normal"),
        ("MONITOR",),
    ],
)
def test_the_user_of_penstock_has_no_right_that_penstock_does_not_need(url: str, command: tuple[str, ...]) -> None:
    with open_client(url, name="penstock-test") as client, pytest.raises(redis.ResponseError, match=r"(?i)permission"):
        client.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py has no types for it


def test_without_a_password_a_client_can_only_ping(url: str) -> None:
    anonymous = "redis://" + url.rpartition("@")[2]
    with redis.Redis.from_url(anonymous, protocol=2, driver_info=None) as client:
        assert client.execute_command("PING")  # type: ignore[no-untyped-call]  # redis-py has no types for it
        with pytest.raises(redis.ResponseError, match=r"(?i)permission"):
            client.execute_command("GET", "penstock:config")  # type: ignore[no-untyped-call]  # redis-py has no types


def test_the_whole_product_runs_with_the_rights_of_its_user(tmp_path: Path, penstock: Program) -> None:
    url_file = penstock.environ["REDIS_URL_FILE"]
    with Up(tmp_path / "state", REDIS_URL_FILE=url_file, PENSTOCK_AUTH="open", PENSTOCK_DASHBOARD="write") as up:
        up.serving()
        job_id = up.submit(5)
        assert up.job(job_id, wait_ms=20_000)["status"] == "succeeded"
        long_id = up.submit(2_000)
        up.wait_until_running(long_id)
        assert up.ask("DELETE", f"/v1/jobs/{long_id}")[0] == 200
        wait_for(lambda: up.job(long_id)["status"] == "canceled", "the job to be canceled")
        for page in ("/v1/jobs", "/v1/models", "/rq/0/data/queues.json"):
            assert up.ask("GET", page)[0] == 200, page
        with urllib.request.urlopen(up.url + "/metrics/fleet", timeout=20) as answer:
            assert b"penstock_inflight 0" in answer.read()
        for command in (["keys", "add", "blue"], ["tenants", "set", "blue", "--weight", "2"], ["audit"], ["doctor"]):
            done = penstock(*command)
            assert done.returncode == 0, done.stderr
        assert url_file not in up.err
        assert "NOPERM" not in up.err

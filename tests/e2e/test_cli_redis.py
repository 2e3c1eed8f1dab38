"""`penstock redis` as a process: piped, on a terminal, from stdin, and through redis-cli."""

import os
import subprocess
from pathlib import Path

import pytest
import redis

from shared.cli.commands.redis import redis_cli_options
from tests.support.program import Program, program


@pytest.fixture
def penstock(tmp_path: Path, store_url: str, redis_client: redis.Redis) -> Program:
    """The program on the session's store, which is empty; it cannot find a redis-cli even if one is installed."""
    return program(tmp_path, REDIS_URL=store_url, PATH="/nonexistent")


def test_a_piped_redis_command_prints_bare_values(penstock: Program, redis_client: redis.Redis) -> None:
    assert penstock("redis", "ZCARD", "penstock:inflight").stdout == "0\n"
    redis_client.rpush("list", "a b", "c")
    assert penstock("redis", "LRANGE", "list", "0", "-1").stdout == "a b\nc\n"
    assert penstock("redis", "GET", "nothing").stdout == "\n"
    assert penstock("redis", "PING").stdout == "PONG\n"


def test_on_a_terminal_a_value_cannot_change_its_state(penstock: Program, redis_client: redis.Redis) -> None:
    redis_client.rpush("list", "red \x1b[31m", "ü")
    assert penstock.on_a_terminal("redis", "ZCARD", "penstock:inflight") == "0\n"
    assert penstock.on_a_terminal("redis", "LRANGE", "list", "0", "-1") == "red ␛[31m\nü\n"
    assert penstock.on_a_terminal("redis", "GET", "nothing") == "\n"


def test_a_redis_command_that_fails_prints_the_stores_error(penstock: Program) -> None:
    done = penstock("redis", "ZCARD")
    assert "ERR wrong number of arguments" in done.stdout


def test_a_value_that_is_not_utf8_reaches_the_store_unchanged(penstock: Program, redis_client: redis.Redis) -> None:
    done = subprocess.run(
        penstock.command("redis"),
        env={**penstock.environ, "PYTHONIOENCODING": "utf-8"},
        input=b"SET key \xff\n",
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"OK\n")
    assert redis_client.get("key") == b"\xff"


def test_redis_reads_commands_from_stdin_if_none_is_given(penstock: Program) -> None:
    done = penstock("redis", stdin="SET key 'two words'\nGET key\n\nDEL key\n")
    assert (done.returncode, done.stdout) == (0, "OK\ntwo words\n1\n")


@pytest.fixture
def redis_cli(tmp_path: Path) -> str:
    """A PATH with a redis-cli that writes what it is given."""
    fake = tmp_path / "redis-cli"
    fake.write_text('#!/bin/sh\necho "$* [$REDISCLI_AUTH]"\n')
    fake.chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("url", "options", "password"),
    [
        (
            "redis://ann:p%40ss@db.example:6380/2",
            "--no-auth-warning --user ann -n 2 -h db.example -p 6380",
            {"REDISCLI_AUTH": "p@ss"},
        ),
        ("redis://127.0.0.1", "-h 127.0.0.1 -p 6379", {}),
        ("rediss://db.example:6380", "--tls -h db.example -p 6380", {}),
        ("unix:///run/a%20b.sock?db=1", "-n 1 -s /run/a b.sock", {}),
        ("valkey+unix:///run/a b=c.sock", "-s /run/a b=c.sock", {}),
        ("valkeys://db.example", "--tls -h db.example -p 6379", {}),
    ],
)
def test_the_options_of_redis_cli_contain_no_password(url: str, options: str, password: dict[str, str]) -> None:
    found, environ = redis_cli_options(url)
    assert (" ".join(found), environ) == (options, password)


def test_redis_cli_is_used_if_installed(tmp_path: Path, store_url: str, redis_cli: str) -> None:
    done = program(tmp_path, REDIS_URL=store_url, PATH=redis_cli)("redis", "ZCARD", "key")
    assert done.returncode == 0
    assert done.stdout.endswith("ZCARD key []\n")


def test_redis_cli_gets_neither_a_command_without_a_name_nor_a_store_that_does_not_answer(
    tmp_path: Path, store_url: str, redis_cli: str
) -> None:
    done = program(tmp_path, REDIS_URL=store_url, PATH=redis_cli)("redis", "")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "penstock: command '' is empty\n")
    done = program(tmp_path, REDIS_URL="redis://127.0.0.1:1", PATH=redis_cli)("redis", "PING")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)

"""The commands that speak to the store, as processes: what they print, where, and with which exit code."""

import json
import re
import subprocess
import time
from pathlib import Path

import pytest
import redis

from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.api_keys import ApiKeys
from shared.store.store import Store
from shared.store.tenants import Tenants
from tests.support.builders import a_job
from tests.support.program import Program, program


@pytest.fixture
def penstock(tmp_path: Path, store_url: str, redis_client: redis.Redis) -> Program:
    """The program on the session's store, emptied."""
    return program(tmp_path, REDIS_URL=store_url)


def rows(text: str) -> list[dict[str, str]]:
    """A piped table as dicts."""
    head, *lines = [line.split("\t") for line in text.splitlines()]
    return [dict(zip(head, line, strict=True)) for line in lines]


def test_help_and_version_need_neither_store_nor_settings(tmp_path: Path) -> None:
    broken = program(tmp_path, PENSTOCK_LEASE_MS="soon")
    helped = broken("--help")
    assert helped.returncode == 0
    assert "submit" in helped.stdout
    assert re.fullmatch(r"penstock (\d+\.\d+\.\d+|\(not installed\))\n", broken("--version").stdout)


def test_no_command_at_all_shows_the_help_and_is_a_mistake(penstock: Program) -> None:
    bare = penstock()
    assert bare.returncode == 2
    assert "Usage" in bare.stdout
    assert bare.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["frobnicate"], "frobnicate"),
        (["submit", "--frobnicate", "x"], "--frobnicate"),
        (["submit"], "prompt"),
        (["submit", "x", "--max-tokens", "many"], "many"),
        (["submit", "x", "--deadline", "20"], "deadline='20'"),
        (["jobs", "--status", "lost"], "lost"),
        (["tenants", "add", "a b"], "tenant='a b'"),
        (["tenants", "add", "blue", "--weight", "heavy"], "weight='heavy'"),
        (["tenants", "add", "blue", "--rpm", "0"], "rpm=0"),
        (["tenants", "set", "blue"], "nothing to set"),
        (["tenants", "set", "blue", "--max-deadline", "never"], "max_deadline='never'"),
        (["keys", "add", "blue", "--expires", "soon"], "expires='soon'"),
        (["keys", "add", "blue", "--act-as", "a b"], "act_as='a b'"),
        (["jobs", "--tenant", "€"], "tenant='€'"),
        (["jobs", "--tenant", "a\nb"], r"tenant='a\nb'"),
        (["redis", ""], "command ''"),
    ],
)
def test_a_mistake_is_told_in_one_sentence_that_quotes_it(penstock: Program, arguments: list[str], says: str) -> None:
    done = penstock(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"PENSTOCK_URL": "http://[::1"}, "PENSTOCK_URL='http://[::1'"),
        ({"PENSTOCK_URL": "http://127.0.0.1:eight"}, "PENSTOCK_URL='http://127.0.0.1:eight'"),
        ({"PENSTOCK_API_KEY": "psk_€"}, "PENSTOCK_API_KEY"),
        ({"PENSTOCK_LISTEN": "127.0.0.1:80000"}, "PENSTOCK_LISTEN='127.0.0.1:80000'"),
    ],
)
def test_a_setting_that_cannot_be_is_told_before_anybody_is_asked(
    tmp_path: Path, environ: dict[str, str], says: str
) -> None:
    done = program(tmp_path, **environ)("jobs")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert says in done.stderr
    assert "psk_€" not in done.stderr


def test_a_prompt_that_is_no_text_is_told_and_where(tmp_path: Path) -> None:
    penstock = program(tmp_path, PYTHONIOENCODING="utf-8")
    told = subprocess.run(
        penstock.command("submit", "-"), env=penstock.environ, input=b"so far \xff", capture_output=True, check=False
    )
    assert (told.returncode, told.stdout) == (2, b"")
    assert b"byte 7" in told.stderr
    assert len(told.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("key", "command"),
    [
        (keys.tenants(), ["tenants", "ls"]),
        (keys.tenants(), ["tenants", "set", "blue", "--rpm", "3"]),
        (keys.keys(), ["keys", "add", "blue"]),
        (keys.inflight(), ["doctor"]),
        (keys.config(), ["config", "--check"]),
    ],
)
def test_a_key_that_is_not_what_it_should_be_is_a_fault_in_one_sentence(
    penstock: Program, redis_client: redis.Redis, key: str, command: list[str]
) -> None:
    redis_client.set(key, "somebody's")
    done = penstock(*command)
    assert (done.returncode, done.stdout) == (1, "")
    assert "WRONGTYPE" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", [["tenants", "ls"], ["keys", "ls"], ["doctor"], ["redis", "PING"]])
def test_without_a_store_one_sentence_says_where_it_was_looked_for(tmp_path: Path, command: list[str]) -> None:
    done = program(tmp_path / "empty")(*command)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert str(tmp_path / "empty") in done.stderr


@pytest.mark.parametrize("command", [["tenants", "ls"], ["keys", "ls"], ["doctor"], ["redis", "PING"]])
def test_a_store_that_does_not_answer_is_a_fault_in_one_sentence(tmp_path: Path, command: list[str]) -> None:
    done = program(tmp_path, REDIS_URL="redis://127.0.0.1:1")(*command)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert "store" in done.stderr


def test_a_tenant_is_added_changed_listed_and_removed(penstock: Program, redis_client: redis.Redis) -> None:
    added = penstock("tenants", "add", "blue", "--weight", "2", "--models", "small,large", "--max-deadline", "30s")
    assert (added.returncode, added.stdout) == (0, "")
    changed = penstock("tenants", "set", "blue", "--weight", "default", "--rpm", "60", "--disabled")
    assert changed.returncode == 0
    expected = TenantPolicy(rpm=60, models=("small", "large"), max_deadline_ms=30_000, disabled=True)
    assert Tenants(redis_client).get("blue") == expected

    (row,) = rows(penstock("tenants", "ls").stdout)
    assert (row["tenant"], row["rpm"], row["models"], row["disabled"]) == ("blue", "60", "small,large", "yes")
    (entry,) = json.loads(penstock("tenants", "ls", "--json").stdout)
    assert entry["policy"]["max_deadline_ms"] == 30_000

    assert penstock("tenants", "rm", "blue").returncode == 0
    assert Tenants(redis_client).get("blue") is None
    again = penstock("tenants", "rm", "blue")
    assert (again.returncode, len(again.stderr.splitlines())) == (1, 1)


def test_a_tenant_is_not_added_over_another(penstock: Program, redis_client: redis.Redis) -> None:
    Tenants(redis_client).set("blue", TenantPolicy(weight=3))
    refused = penstock("tenants", "add", "blue", "--weight", "1")
    assert refused.returncode == 1
    assert "blue" in refused.stderr
    assert Tenants(redis_client).get("blue") == TenantPolicy(weight=3)


def test_a_key_is_printed_alone_on_stdout_and_never_again(penstock: Program, redis_client: redis.Redis) -> None:
    made = penstock("keys", "add", "blue", "--label", "ci", "--expires", "90d", "--act-as", "team-*")
    key = made.stdout.strip()
    assert made.stdout == f"{key}\n"
    assert key not in made.stderr
    facts = ApiKeys(redis_client).lookup(key)
    assert facts is not None
    assert facts.expires_ms == facts.created_ms + 90 * 86_400_000

    listed = penstock("keys", "ls")
    assert key not in listed.stdout
    (row,) = rows(listed.stdout)
    assert (row["id"], row["tenant"], row["label"], row["act as"]) == (facts.id, "blue", "ci", "team-*")


def test_a_key_is_rotated_and_removed(penstock: Program, redis_client: redis.Redis) -> None:
    old = penstock("keys", "add", "blue", "--label", "ci").stdout.strip()
    new = json.loads(penstock("keys", "rotate", "ci", "--overlap", "1h", "--json").stdout)["key"]
    ring = ApiKeys(redis_client)
    assert ring.lookup(old) is not None
    assert ring.lookup(new) is not None
    assert penstock("keys", "rm", "ci", "--tenant", "green").returncode == 1
    assert penstock("keys", "rm", "ci").returncode == 0
    assert ring.lookup(old) is ring.lookup(new) is None
    assert penstock("keys", "rotate", "ci").returncode == 1


def test_doctor_shows_every_invariant_and_ends_well_where_all_hold(penstock: Program, store: Store) -> None:
    store.admit(a_job())
    done = penstock("doctor")
    assert done.returncode == 0
    table = rows(done.stdout)
    assert [row["no"] for row in table] == [str(number) for number in range(1, 11)]
    assert {row["verdict"] for row in table} <= {"holds", "not judged"}
    assert json.loads(penstock("doctor", "--json").stdout)["holds"] is True


def test_doctor_names_what_is_broken(penstock: Program, redis_client: redis.Redis) -> None:
    redis_client.zadd(keys.inflight(), {"ghost": 1_790_000_000_000})
    done = penstock("doctor", "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["holds"] is False
    broken = {row["invariant"]: row["breaches"] for row in found["invariants"] if row["verdict"] == "BROKEN"}
    assert 2 in broken
    assert any("ghost" in what for what in broken[2])


def test_config_says_every_setting_and_whence(tmp_path: Path) -> None:
    command = program(tmp_path, PENSTOCK_LEASE_MS="5000", PENSTOCK_API_KEY="psk_secret", REDIS_URL="redis://:pw@h:1/0")
    done = command("config", "--json")
    held = {row["name"]: row for row in json.loads(done.stdout)}
    assert (held["PENSTOCK_LEASE_MS"]["value"], held["PENSTOCK_LEASE_MS"]["from"]) == (5000, "environment")
    assert (held["PENSTOCK_MAX_INFLIGHT"]["value"], held["PENSTOCK_MAX_INFLIGHT"]["from"]) == ("auto", "default")
    piped = command("config").stdout
    assert "PENSTOCK_FAIRNESS\ttokens\tdefault" in piped
    assert "psk_secret" not in done.stdout + piped
    assert ":pw@" not in done.stdout + piped


def test_a_setting_that_is_unknown_or_out_of_range_is_quoted(tmp_path: Path) -> None:
    for name, value in (("PENSTOCK_LEASES_MS", "5000"), ("PENSTOCK_LEASE_MS", "5")):
        done = program(tmp_path, **{name: value})("config", "--check")
        assert (done.returncode, done.stdout) == (2, "")
        assert name in done.stderr
        assert repr(value) in done.stderr


def test_config_check_asks_the_store_and_writes_nothing(
    penstock: Program, tmp_path: Path, redis_client: redis.Redis
) -> None:
    assert penstock("config", "--check").returncode == 0
    assert redis_client.keys() == []
    assert program(tmp_path / "empty")("config", "--check").returncode == 0
    assert program(tmp_path, REDIS_URL="redis://127.0.0.1:1")("config", "--check").returncode == 1


def test_config_check_tells_what_the_store_holds_otherwise(penstock: Program, store: Store) -> None:
    done = penstock.with_env(PENSTOCK_LEASE_MS="4000")("config", "--check")
    assert done.returncode == 2
    assert "lease_ms is '15000' there and '4000' here" in done.stderr


def test_a_part_with_other_system_wide_settings_starts_only_to_take_over(
    penstock: Program, store: Store, redis_client: redis.Redis
) -> None:
    other = penstock.with_env(PENSTOCK_LEASE_MS="4000")
    refused = other("worker", "--engine", "sim")
    assert refused.returncode == 2
    assert "--take-over" in refused.stderr
    assert redis_client.hget(keys.config(), "lease_ms") == b"15000"
    worker = other.start("worker", "--engine", "sim", "--take-over")
    try:
        give_up = time.monotonic() + 60
        while not redis_client.zcard(keys.workers()) and time.monotonic() < give_up:
            time.sleep(0.05)
        assert redis_client.hget(keys.config(), "lease_ms") == b"4000"
    finally:
        worker.terminate()
        _, said = worker.communicate(timeout=60)
    assert worker.returncode == 0, said


def test_a_table_is_drawn_on_a_terminal_without_colour_where_none_is_wanted(
    penstock: Program, redis_client: redis.Redis
) -> None:
    Tenants(redis_client).set("blue", TenantPolicy(disabled=True))
    coloured = penstock.on_a_terminal("doctor")
    assert "\x1b[" in coloured
    plain = penstock.with_env(NO_COLOR="1").on_a_terminal("doctor")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", plain)
    assert "─" in plain
    assert "\x1b" not in penstock("doctor").stdout


def test_a_reader_that_has_seen_enough_is_no_fault(penstock: Program) -> None:
    piped = subprocess.run(
        ["bash", "-c", '"$@" | true', "-", *penstock.command("config")],
        env=penstock.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert piped.stderr == ""

"""The commands that use the store, run as processes: what they print, on which stream, and their exit codes."""

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import redis

from shared.accounts.api_keys import ApiKeys
from shared.accounts.key_record import digest_of
from shared.accounts.tenants import Tenants
from shared.audit.invariants import INVARIANTS
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.answer_cache import AnswerCache
from shared.store.store import Store
from tests.support.builders import a_job
from tests.support.program import Program, program


@pytest.fixture
def penstock(tmp_path: Path, store_url: str, redis_client: redis.Redis) -> Program:
    """The program on the session's store, which is empty."""
    return program(tmp_path, REDIS_URL=store_url)


def rows(text: str) -> list[dict[str, str]]:
    """Parse a piped table into one dict per row."""
    head, *lines = [line.split("\t") for line in text.splitlines()]
    return [dict(zip(head, line, strict=True)) for line in lines]


def test_help_and_version_work_without_a_store_and_with_invalid_settings(tmp_path: Path) -> None:
    broken = program(tmp_path, PENSTOCK_LEASE_MS="soon")
    helped = broken("--help")
    assert helped.returncode == 0
    assert "submit" in helped.stdout
    assert re.fullmatch(r"penstock (\d+\.\d+\.\d+|\(not installed\))( \(commit .+\))?\n", broken("--version").stdout)


def test_running_without_a_command_prints_the_help_and_exits_2(penstock: Program) -> None:
    bare = penstock()
    assert bare.returncode == 2
    assert "Usage" in bare.stdout
    assert bare.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["frobnicate"], "frobnicate"),
        (["submit", "--frobnicate", "x"], "--frobnicate"),
        (["submit"], "prompt"),
        (["submit", "x", "--max-tokens", "many"], "--max-tokens='many' is not a whole number of at least 1"),
        (["submit", "x", "--deadline", "20"], "deadline='20'"),
        (["jobs", "--status", "lost"], "--status='lost' is not one of queued, running, "),
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
        (["tenants", "set", "blue", "--max-queued", "4"], "--max-queued; did you mean --max-waiting?"),
        (["keys", "add", "blue", "--queue-limit", "4"], "--queue-limit; did you mean --max-waiting?"),
        (["up", "--folder", "/models"], "--folder; did you mean --models?"),
        (["usage", "--budgetz"], "--budgetz; did you mean --budgets?"),
        (["usage", "--zzz"], "No such option: --zzz (see"),
        (["usage", "--by"], "requires an argument"),
    ],
)
def test_a_usage_error_is_reported_in_one_line_that_quotes_the_value(
    penstock: Program, arguments: list[str], expected: str
) -> None:
    done = penstock(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"PENSTOCK_URL": "http://[::1"}, "PENSTOCK_URL='http://[::1'"),
        ({"PENSTOCK_URL": "http://127.0.0.1:eight"}, "PENSTOCK_URL='http://127.0.0.1:eight'"),
        ({"PENSTOCK_API_KEY": "psk_€"}, "PENSTOCK_API_KEY"),
        ({"PENSTOCK_LISTEN": "127.0.0.1:80000"}, "PENSTOCK_LISTEN='127.0.0.1:80000'"),
    ],
)
def test_an_invalid_setting_is_reported_before_any_request_is_sent(
    tmp_path: Path, environ: dict[str, str], expected: str
) -> None:
    done = program(tmp_path, **environ)("jobs")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert expected in done.stderr
    assert "psk_€" not in done.stderr


def test_a_prompt_that_is_not_utf8_is_reported_with_the_position_of_the_bad_byte(tmp_path: Path) -> None:
    penstock = program(tmp_path, PYTHONIOENCODING="utf-8")
    done = subprocess.run(
        penstock.command("submit", "-"), env=penstock.environ, input=b"so far \xff", capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"byte 7" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", [["tenants", "ls"], ["keys", "ls"], ["doctor"], ["redis", "PING"]])
def test_a_missing_store_is_reported_in_one_line_with_the_folder_that_was_searched(
    tmp_path: Path, command: list[str]
) -> None:
    done = program(tmp_path / "empty")(*command)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert str(tmp_path / "empty") in done.stderr


@pytest.mark.parametrize("command", [["tenants", "ls"], ["keys", "ls"], ["doctor"], ["redis", "PING"]])
def test_an_unreachable_store_is_reported_in_one_line(tmp_path: Path, command: list[str]) -> None:
    done = program(tmp_path, REDIS_URL="redis://127.0.0.1:1")(*command)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert "store" in done.stderr


def test_a_tenant_is_added_changed_listed_and_removed(penstock: Program, redis_client: redis.Redis) -> None:
    added = penstock("tenants", "add", "blue", "--weight", "2", "--models", "small,large", "--max-deadline", "30s")
    assert (added.returncode, added.stdout) == (0, "")
    changed = penstock("tenants", "set", "blue", "--weight", "default", "--rpm", "60", "--disabled", "--semantic-cache")
    assert changed.returncode == 0
    expected = TenantPolicy(
        rpm=60, models=("small", "large"), max_deadline_ms=30_000, disabled=True, semantic_cache=True
    )
    assert Tenants(redis_client).get("blue") == expected
    answers = AnswerCache(redis_client, ttl_s=300, max_entries=1, max_bytes=10_000, scope_bytes=1)
    assert answers.keep("blue", "digest", "an answer", b"s", b"v")

    (row,) = rows(penstock("tenants", "ls").stdout)
    assert (row["tenant"], row["rpm"], row["models"], row["disabled"]) == ("blue", "60", "small,large", "yes")
    (entry,) = json.loads(penstock("tenants", "ls", "--json").stdout)
    assert entry["policy"]["max_deadline_ms"] == 30_000

    assert penstock("tenants", "rm", "blue").returncode == 0
    assert Tenants(redis_client).get("blue") is None
    assert answers.read("blue", "digest") is None
    again = penstock("tenants", "rm", "blue")
    assert (again.returncode, len(again.stderr.splitlines())) == (1, 1)


def test_adding_a_tenant_does_not_overwrite_an_existing_one(penstock: Program, redis_client: redis.Redis) -> None:
    Tenants(redis_client).set("blue", TenantPolicy(weight=3))
    refused = penstock("tenants", "add", "blue", "--weight", "1")
    assert refused.returncode == 1
    assert "blue" in refused.stderr
    assert Tenants(redis_client).get("blue") == TenantPolicy(weight=3)


def test_a_new_api_key_is_printed_once_and_alone_on_stdout(penstock: Program, redis_client: redis.Redis) -> None:
    made = penstock("keys", "add", "blue", "--label", "ci", "--expires", "90d", "--act-as", "team-*")
    key = made.stdout.strip()
    assert made.stdout == f"{key}\n"
    assert key not in made.stderr
    facts = ApiKeys(redis_client).find(digest_of(key))
    assert facts is not None
    assert facts.expires_ms == facts.created_ms + 90 * 86_400_000

    listed = penstock("keys", "ls")
    assert key not in listed.stdout
    (row,) = rows(listed.stdout)
    assert (row["id"], row["tenant"], row["label"], row["act as"]) == (facts.id, "blue", "ci", "team-*")


def test_an_api_key_is_rotated_and_removed(penstock: Program, redis_client: redis.Redis) -> None:
    old = penstock("keys", "add", "blue", "--label", "ci").stdout.strip()
    new = json.loads(penstock("keys", "rotate", "ci", "--overlap", "1h", "--json").stdout)["key"]
    api_keys = ApiKeys(redis_client)
    assert api_keys.find(digest_of(old)) is not None
    assert api_keys.find(digest_of(new)) is not None
    assert penstock("keys", "rm", "ci", "--tenant", "green").returncode == 1
    assert penstock("keys", "rm", "ci").returncode == 0
    assert api_keys.find(digest_of(old)) is api_keys.find(digest_of(new)) is None
    assert penstock("keys", "rotate", "ci").returncode == 1


def test_doctor_lists_every_invariant_and_exits_0_if_all_hold(penstock: Program, store: Store) -> None:
    store.admit(a_job())
    done = penstock("doctor")
    assert done.returncode == 0
    table = rows(done.stdout)
    assert [row["no"] for row in table] == [str(number) for number in INVARIANTS]
    assert {row["verdict"] for row in table} <= {"holds", "not judged"}
    assert json.loads(penstock("doctor", "--json").stdout)["holds"] is True


def test_doctor_names_the_broken_invariant_and_the_job_that_breaks_it(
    penstock: Program, redis_client: redis.Redis
) -> None:
    redis_client.zadd(keys.inflight(), {"ghost": 1_790_000_000_000})
    done = penstock("doctor", "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["holds"] is False
    broken = {row["invariant"]: row["breaches"] for row in found["invariants"] if row["verdict"] == "BROKEN"}
    assert 2 in broken
    assert any("ghost" in breach for breach in broken[2])


def test_config_lists_every_setting_with_its_source_and_hides_secrets(tmp_path: Path) -> None:
    command = program(tmp_path, PENSTOCK_LEASE_MS="5000", PENSTOCK_API_KEY="psk_secret", REDIS_URL="redis://:pw@h:1/0")
    done = command("config", "--json")
    held = {row["name"]: row for row in json.loads(done.stdout)}
    assert (held["PENSTOCK_LEASE_MS"]["value"], held["PENSTOCK_LEASE_MS"]["from"]) == (5000, "environment")
    assert (held["PENSTOCK_MAX_INFLIGHT"]["value"], held["PENSTOCK_MAX_INFLIGHT"]["from"]) == ("auto", "default")
    told = command("config")
    assert "PENSTOCK_FAIRNESS\ttokens\tdefault" in told.stdout
    assert "Running processes keep" in told.stderr
    assert "psk_secret" not in done.stdout + told.stdout
    assert ":pw@" not in done.stdout + told.stdout


def test_an_unknown_or_out_of_range_setting_is_quoted(tmp_path: Path) -> None:
    for name, value in (("PENSTOCK_LEASES_MS", "5000"), ("PENSTOCK_LEASE_MS", "5")):
        done = program(tmp_path, **{name: value})("config", "--check")
        assert (done.returncode, done.stdout) == (2, "")
        assert name in done.stderr
        assert repr(value) in done.stderr


def test_config_check_reads_the_store_and_writes_nothing(
    penstock: Program, tmp_path: Path, redis_client: redis.Redis
) -> None:
    assert penstock("config", "--check").returncode == 0
    assert redis_client.keys() == []
    assert program(tmp_path / "empty")("config", "--check").returncode == 0
    assert program(tmp_path, REDIS_URL="redis://127.0.0.1:1")("config", "--check").returncode == 1


def test_config_check_reports_a_setting_that_differs_in_the_store(penstock: Program, store: Store) -> None:
    done = penstock.with_env(PENSTOCK_LEASE_MS="4000")("config", "--check")
    assert done.returncode == 2
    assert "lease_ms is '15000' in the store and '4000' here" in done.stderr


def test_a_worker_with_other_system_wide_settings_starts_only_with_take_over(
    penstock: Program, store: Store, redis_client: redis.Redis
) -> None:
    other = penstock.with_env(PENSTOCK_LEASE_MS="4000")
    refused = other("worker", "--engine", "sim")
    assert refused.returncode == 2
    assert "--take-over" in refused.stderr
    assert redis_client.hget(keys.config(), "lease_ms") == b"15000"
    worker = other.start("worker", "--engine", "sim", "--take-over")
    try:
        give_up_s = time.monotonic() + 60
        while not redis_client.zcard(keys.workers()) and time.monotonic() < give_up_s:
            time.sleep(0.05)
        assert redis_client.hget(keys.config(), "lease_ms") == b"4000"
    finally:
        worker.send_signal(signal.SIGTERM)
        _, stderr = worker.communicate(timeout=60)
    assert worker.returncode == 0, stderr


def test_a_weight_of_zero_is_printed_like_other_weights(penstock: Program) -> None:
    added = penstock("tenants", "add", "blue", "--prompt-weight", "0", "--answer-weight", "0.5")
    assert added.stderr == "tenant 'blue': prompt_weight=0, answer_weight=0.5\n"


def test_a_table_on_a_terminal_is_drawn_and_has_no_colour_if_no_color_is_set(
    penstock: Program, redis_client: redis.Redis
) -> None:
    Tenants(redis_client).set("blue", TenantPolicy(disabled=True))
    coloured = penstock.on_a_terminal("doctor")
    assert "\x1b[" in coloured
    plain = penstock.with_env(NO_COLOR="1").on_a_terminal("doctor")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", plain)
    assert "─" in plain
    assert "\x1b" not in penstock("doctor").stdout


def test_a_closed_output_pipe_is_not_an_error(penstock: Program) -> None:
    piped = subprocess.run(
        ["bash", "-c", '"$@" | true', "-", *penstock.command("config", "--json")],
        env=penstock.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert piped.stderr == ""

"""Tests that commands break no value on a terminal of 80 columns, so that each can be copied."""

import re
from pathlib import Path

import redis

from shared.accounts.admin_actions import Actor, record
from tests.support.program import Program, program

#: Longer than what an 80-column table has room for.
LONG = "/srv/models/" + "a-folder-of-some-length/" * 3 + "small-Q4_K_M.gguf"


def lines_on_80_columns(penstock: Program, *arguments: str) -> list[str]:
    shown = penstock.with_env(NO_COLOR="1").on_a_terminal(*arguments, columns=80)
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.splitlines()]


def test_config_has_a_line_for_each_setting_and_breaks_no_value(tmp_path: Path) -> None:
    lines = lines_on_80_columns(program(tmp_path, PENSTOCK_MODEL=LONG), "config")
    assert any(re.fullmatch(r"PENSTOCK_LEASE_MS +default +15000", line) for line in lines)
    place = next(number for number, line in enumerate(lines) if line.startswith("PENSTOCK_MODEL "))
    assert lines[place].split() == ["PENSTOCK_MODEL", "environment"]
    assert lines[place + 1].strip() == LONG
    assert all(len(line) <= 80 for line in lines if LONG not in line and str(tmp_path) not in line)


def test_audit_breaks_no_word(tmp_path: Path, store_url: str, redis_client: redis.Redis) -> None:
    record(
        redis_client, Actor("ada", "command line on gpu-host-17.lab.example"), "tenant.set", "tenant research-group-7"
    )
    lines = lines_on_80_columns(program(tmp_path, REDIS_URL=store_url), "audit")
    assert re.fullmatch(r"[-0-9]+ [:0-9]+Z ada tenant.set tenant research-group-7", lines[1])
    assert lines[2] == "  command line on gpu-host-17.lab.example"

"""A worker's start as a person meets it: its name, its model's name, and one sentence for each mistake."""

import os
import re
import subprocess
import sys

from workers.duties.heartbeat import new_worker_name
from workers.exit_codes import ExitCode


def start(*arguments: str, **environ: str) -> tuple[int, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    done = subprocess.run(
        [sys.executable, "-m", "workers", *arguments],
        env=plain | environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stderr.strip()


def test_a_workers_name_is_safe_in_keys_and_never_used_twice():
    names = {new_worker_name() for _ in range(100)}
    assert len(names) == 100
    assert all(re.fullmatch(rf"[A-Za-z0-9-]+-{os.getpid()}-[0-9a-f]{{6}}", name) for name in names)


def test_an_unknown_setting_ends_the_start_with_a_sentence():
    code, said = start(PENSTOCK_LEESE_MS="5")
    assert code == ExitCode.CONFIG
    assert said.startswith("penstock worker: unknown setting PENSTOCK_LEESE_MS='5'")


def test_a_start_without_any_store_says_how_to_get_one(tmp_path):
    code, said = start(PENSTOCK_STATE_DIR=str(tmp_path), REDIS_URL="")
    assert code == ExitCode.CONFIG
    assert "no store runs in" in said
    assert "REDIS_URL" in said


def test_a_place_that_is_not_among_the_workers_ends_the_start_with_a_sentence():
    code, said = start("--index=2", "--workers=2")
    assert code == ExitCode.CONFIG
    assert said.endswith("--index 2 is not one of --workers 2, counted from 0")

"""Tests of a worker's start: its generated name, and one clear error message for each configuration mistake."""

import os
import re
import subprocess
import sys

from workers.duties.heartbeat import new_worker_name
from workers.exit_codes import ExitCode


def start_worker(*arguments: str, **environ: str) -> tuple[int, str]:
    """Run a worker until it exits. Return its exit code and its stderr."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    completed = subprocess.run(
        [sys.executable, "-m", "workers", *arguments],
        env=inherited | environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return completed.returncode, completed.stderr.strip()


def test_a_workers_name_is_unique_and_safe_in_store_keys():
    names = {new_worker_name() for _ in range(100)}
    assert len(names) == 100
    assert all(re.fullmatch(rf"[A-Za-z0-9-]+-{os.getpid()}-[0-9a-f]{{6}}", name) for name in names)


def test_a_worker_with_an_unknown_setting_exits_with_an_error_that_names_it():
    code, message = start_worker(PENSTOCK_LEESE_MS="5")
    assert code == ExitCode.CONFIG
    assert message.startswith("penstock worker: unknown setting PENSTOCK_LEESE_MS='5'")


def test_a_worker_without_a_store_exits_with_an_error_that_names_redis_url(tmp_path):
    code, message = start_worker(PENSTOCK_STATE_DIR=str(tmp_path), REDIS_URL="")
    assert code == ExitCode.CONFIG
    assert "no store runs in" in message
    assert "REDIS_URL" in message


def test_a_worker_whose_index_is_not_below_the_number_of_workers_exits_with_an_error():
    code, message = start_worker("--index=2", "--workers=2")
    assert code == ExitCode.CONFIG
    assert message.endswith("--index 2 is not one of --workers 2, counted from 0")

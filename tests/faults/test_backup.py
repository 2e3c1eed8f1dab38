"""The drill of docs/deploy.md: a copy of a store under load becomes a new store, and nothing that it had is missing."""

import io
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.accounts.api_keys import ApiKeys
from shared.accounts.tenants import Tenants
from shared.audit.invariants import find_breaches
from shared.jobs.tenant_policy import TenantPolicy
from tests.chaos.usage import BUDGET, usage_flaws
from tests.support.ports import free_port
from tests.support.processes import ROOT, Stage, wait_for
from tests.support.program import program

pytestmark = [pytest.mark.timeout(600)]

SCRIPT = ROOT / "deploy" / "backup_store.sh"
SIM = {
    "PENSTOCK_ENGINE": "sim",
    "PENSTOCK_SIM_DECODE_TPS": "200",
    "PENSTOCK_SIM_PREFILL_TPS": "2000",
    "PENSTOCK_MAX_BATCH_SIZE": "2",
    "PENSTOCK_ADMISSION": "bounds",
    "PENSTOCK_MAX_INFLIGHT": "100000",
    "PENSTOCK_MAX_QUEUE_SIZE": "100000",
    "PENSTOCK_MAX_QUEUE_TOKENS": "100000000",
    "PENSTOCK_AUTH": "required",
    "PENSTOCK_WEB_WORKERS": "1",
}
TENANTS = ("blue", "red")
#: Longer than the whole drill on a slow machine, so that no job expires because the store was away.
DEADLINE_MS = 500_000


class Clients:
    """A client of each tenant, which submits up to twenty jobs a second until `stop`, and notes the ids it is given."""

    def __init__(self, door: str, keys: dict[str, str]) -> None:
        self.ids: dict[str, list[str]] = {tenant: [] for tenant in keys}
        self._door, self._stop = door, threading.Event()
        self._threads = [threading.Thread(target=self._submit, args=item) for item in keys.items()]
        for thread in self._threads:
            thread.start()

    def _submit(self, tenant: str, key: str) -> None:
        with httpx.Client(headers={"Authorization": f"Bearer {key}"}, timeout=60) as http:
            for number in itertools.count():
                if self._stop.wait(0.05):
                    return
                body = {"prompt": "tell me a story", "max_tokens": 2 + number % 9, "deadline_ms": DEADLINE_MS}
                answer = http.post(f"{self._door}/v1/jobs", json=body)
                # 200 if the job has ended already.
                if answer.status_code in {200, 202}:
                    self.ids[tenant].append(answer.json()["id"])
                else:
                    # The store may answer too late while its file is written to a busy disk.
                    assert answer.json().get("status") == "yield", answer.text

    def noted(self) -> dict[str, list[str]]:
        return {tenant: list(ids) for tenant, ids in self.ids.items()}

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)


@contextmanager
def running(folder: Path, **environ: str) -> Iterator[tuple[Stage, str]]:
    """Start a store on the folder's state, a worker and a door; yield the stage and the door's URL."""
    with Stage(folder, **SIM, **environ) as stage:
        stage.worker()
        stage.web(port := free_port())
        yield stage, f"http://127.0.0.1:{port}"


def copy_store(stage: Stage, folder: Path, copy: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = ["/bin/sh", SCRIPT, folder / "state" / "store", copy]
    return subprocess.run(
        command, env=stage.environ(**environ), capture_output=True, text=True, timeout=300, check=False
    )


def jobs_of(door: str, key: str) -> dict[str, dict[str, Any]]:
    """Return all jobs that a tenant can read, by id."""
    found: dict[str, dict[str, Any]] = {}
    query: dict[str, Any] = {"limit": 100}
    with httpx.Client(headers={"Authorization": f"Bearer {key}"}, timeout=60) as http:
        while True:
            page = http.get(f"{door}/v1/jobs", params=query).json()
            found |= {job["id"]: job for job in page["data"]}
            if not page["has_more"]:
                return found
            query["cursor"] = page["cursor"]


def usage_flaws_of_today(found: dict[str, dict[str, dict[str, Any]]], environ: dict[str, str]) -> list[str]:
    """Return in what the store's usage of this day and the budgets differ from the jobs that have ended on it."""
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    today = {
        tenant: [job for job in jobs.values() if job["ended_at"] >= midnight.timestamp()]
        for tenant, jobs in found.items()
    }
    return usage_flaws(today, environ, str(midnight.date()))


def upload(door: str, key: str) -> str:
    answer = httpx.post(
        f"{door}/v1/files",
        data={"purpose": "batch"},
        files={"file": ("lines.jsonl", io.BytesIO(b'{"a": 1}\n'))},
        headers={"Authorization": f"Bearer {key}"},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def test_a_store_that_is_started_on_a_copy_that_was_made_under_load_ends_every_job_of_the_copy(tmp_path):
    old, new, copy = tmp_path / "old", tmp_path / "new", tmp_path / "copy"
    files = tmp_path / "files"
    files.mkdir()
    with running(old, PENSTOCK_FILES_DIR=str(files)) as (stage, door):
        keys = {}
        for tenant in TENANTS:
            Tenants(stage.client).set(tenant, TenantPolicy(**BUDGET))
            keys[tenant] = ApiKeys(stage.client).create(tenant).key
        file_id = upload(door, keys["blue"])
        clients = Clients(door, keys)
        try:
            wait_for(lambda: min(map(len, clients.noted().values())) > 30, "jobs of both tenants", timeout_s=120)
            wait_for(lambda: stage.stat("ended|blue|sim|succeeded") > 3, "ended jobs", timeout_s=120)
            before = clients.noted()
            # With everysec, the server may hold back writes while the disk is busy.
            wait_for(
                lambda: stage.client.info("persistence")["aof_buffer_length"] == 0,
                "the jobs to reach the file",
                timeout_s=60,
            )
            done = copy_store(stage, old, copy)
            assert done.returncode == 0, done.stderr
        finally:
            clients.stop()
        # The folder of files is copied after the store, so that it has the content of every record in the copy.
        shutil.copytree(files, tmp_path / "files-copy")
    (new / "state").mkdir(parents=True, mode=0o700)
    shutil.copytree(copy, new / "state" / "store")
    with running(new, PENSTOCK_FILES_DIR=str(tmp_path / "files-copy")) as (stage, door):
        jobs = stage.ended(*(job_id for ids in before.values() for job_id in ids), timeout_s=300)
        assert Counter(job.state.value for job in jobs) == {"succeeded": len(jobs)}
        stage.assert_sound()
        found = {tenant: jobs_of(door, key) for tenant, key in keys.items()}
        assert all(set(ids) <= set(found[tenant]) for tenant, ids in before.items())
        # Repeated, because the day may end between the two commands that this runs.
        flaws = [usage_flaws_of_today(found, stage.environ()) for _ in range(2)]
        assert [] in flaws, flaws
        headers = {"Authorization": f"Bearer {keys['blue']}"}
        content = httpx.get(f"{door}/v1/files/{file_id}/content", headers=headers, timeout=60)
        assert (content.status_code, content.content) == (200, b'{"a": 1}\n')
        penstock = program(tmp_path, **{name: stage.environ()[name] for name in ("REDIS_URL", "PENSTOCK_STATE_DIR")})
        told = penstock.with_env(PENSTOCK_URL=door)("doctor", "--json")
        assert told.returncode == 0, told.stdout + told.stderr
        assert json.loads(told.stdout)["door_state"] == "is ready"


def test_a_copy_that_ends_in_the_middle_of_a_write_has_no_broken_invariant(tmp_path):
    old, copy = tmp_path / "old", tmp_path / "copy"
    with Stage(old, **SIM) as stage:
        stage.worker()
        stage.ended(*(stage.admit(max_tokens=2) for _ in range(3)))
        for _ in range(3):
            stage.admit(deadline_ms=DEADLINE_MS, max_tokens=100)
        assert copy_store(stage, old, copy).returncode == 0
    (written,) = (copy / "appendonlydir").glob("*.incr.aof")
    # The length of one script's writes, about: with these steps, some copies end within a script, and some between two.
    for cut_bytes in range(7, 3_000, 331):
        state = tmp_path / f"cut-{cut_bytes}" / "state"
        shutil.copytree(copy, state / "store")
        with (state / "store" / "appendonlydir" / written.name).open("r+b") as file:
            file.truncate(written.stat().st_size - cut_bytes)
        with Stage(state.parent) as stage:
            assert find_breaches(stage.client) == [], cut_bytes


def test_a_copy_is_refused_where_one_exists_and_from_a_folder_that_is_no_store(tmp_path):
    with Stage(tmp_path / "a") as stage:
        (tmp_path / "exists").mkdir()
        done = copy_store(stage, tmp_path / "a", tmp_path / "exists")
        assert (done.returncode, done.stderr) == (1, f"{tmp_path / 'exists'} exists already\n")
        done = copy_store(stage, tmp_path / "b", tmp_path / "copy")
        assert done.returncode == 1
        assert "has no appendonlydir" in done.stderr
        assert not (tmp_path / "copy").exists()


#: Lets the store rewrite its file, and waits for the end.
REWRITE = """
import os, time, redis
client = redis.Redis.from_url(os.environ["REDIS_URL"])
client.bgrewriteaof()
while any(client.info("persistence")[f"aof_rewrite_{state}"] for state in ("in_progress", "scheduled")):
    time.sleep(0.05)
"""


def cp_that_lets_the_store_rewrite_its_file(folder: Path, *, times: int) -> Path:
    """Write a program `cp` that lets the store rewrite its file after each of `times` copies; return its folder."""
    folder.mkdir()
    (folder / "rewrite.py").write_text(REWRITE)
    (folder / "cp").write_text(
        f"""#!/bin/sh
/bin/cp "$@" || exit 1
echo >> {folder}/calls
[ "$(wc -l < {folder}/calls)" -le {times} ] || exit 0
exec {sys.executable} {folder}/rewrite.py
"""
    )
    (folder / "cp").chmod(0o755)
    return folder


@pytest.mark.parametrize(("times", "succeeds"), [(1, True), (5, False)])
def test_a_copy_during_which_the_store_rewrites_its_file_is_made_again(tmp_path, times, succeeds):
    with Stage(tmp_path / "a") as stage:
        programs = cp_that_lets_the_store_rewrite_its_file(tmp_path / "bin", times=times)
        done = copy_store(stage, tmp_path / "a", tmp_path / "copy", PATH=f"{programs}:{os.environ['PATH']}")
        assert (done.returncode == 0, (tmp_path / "copy").exists()) == (succeeds, succeeds), done.stderr
        assert done.stderr.count("the store rewrote its file during the copy") == times
        assert not (tmp_path / "copy.part").exists()

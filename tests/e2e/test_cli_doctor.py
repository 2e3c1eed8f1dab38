"""Which store and which door `penstock doctor` judges."""

import json
import socket
from pathlib import Path

from shared.settings.secret_values import without_password
from shared.store.store import Store
from tests.support.builders import MODEL, advance_clock, heartbeat
from tests.support.program import program


def test_doctor_says_which_store_it_judges_and_whether_its_door_is_ready(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        penstock = program(tmp_path, REDIS_URL=store_url, PENSTOCK_URL=url)
        told = json.loads(penstock("doctor", "--json").stdout)
        notes = penstock("doctor").stderr
    assert told["store"] == without_password(store_url)
    assert told["door"] == url
    assert "does not answer" in told["door_state"]
    assert f"store: {told['store']}\ndoor: {url} is not ready" in notes


def test_doctor_fails_if_the_folder_for_files_cannot_be_used(store: Store, store_url: str, tmp_path: Path) -> None:
    penstock = program(tmp_path, REDIS_URL=store_url)
    assert penstock("doctor").returncode == 0
    files_dir = tmp_path / "files"
    done = penstock.with_env(PENSTOCK_FILES_DIR=str(files_dir))("doctor")
    assert done.returncode == 1
    assert f"PENSTOCK_FILES_DIR={str(files_dir)!r} cannot be used" in done.stderr
    files_dir.mkdir()
    assert penstock.with_env(PENSTOCK_FILES_DIR=str(files_dir))("doctor").returncode == 0


def test_doctor_fails_if_workers_end_by_faults_again_and_again(store: Store, store_url: str, tmp_path: Path) -> None:
    penstock = program(tmp_path, REDIS_URL=store_url)
    for worker in ("w1", "w2", "w3"):
        heartbeat(store, worker)
        advance_clock(store, 3_000)
        store.farewell(worker, MODEL, fault="the duty leases failed too often")
    done = penstock("doctor")
    assert done.returncode == 1
    assert f"workers of pool {MODEL} restart again and again: 3 have ended" in done.stderr
    assert "the duty leases failed too often" in done.stderr
    assert f"workers of pool {MODEL} have crashed 3 times" in done.stderr

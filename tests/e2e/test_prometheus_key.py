"""The script that makes Prometheus' key in compose.yaml, on a real store and a door that requires keys."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from shared.accounts.admin_keys import AdminKeys
from tests.support.ports import free_port
from tests.support.processes import ROOT, Stage, wait_for

pytestmark = pytest.mark.ways("direct", reason="the script has nothing to do with a proxy")


def make_key(stage: Stage, file: Path) -> None:
    folder = file.parent.parent / "bin"
    if not folder.exists():
        folder.mkdir()
        (folder / "penstock").write_text(f'#!/bin/sh\nexec {sys.executable} -m shared.cli "$@"\n')
        (folder / "penstock").chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    script = ROOT / "deploy" / "make_prometheus_key.sh"
    environ = stage.environ(PATH=path, PYTHONPATH=str(ROOT))
    done = subprocess.run(["/bin/sh", script, file], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_key_opens_the_metrics_of_the_fleet_and_stays_until_its_file_is_lost(tmp_path):
    (tmp_path / "key").mkdir()
    file = tmp_path / "key" / "admin-key"
    with Stage(tmp_path) as stage:
        make_key(stage, file)
        first = file.read_text().strip()
        make_key(stage, file)
        assert file.read_text().strip() == first
        # As after a start that was killed.
        file.write_text("")
        make_key(stage, file)
        second = file.read_text().strip()
        assert second != first
        assert [record.name for record in AdminKeys(stage.client).ls()[1]] == ["prometheus"]
        # Prometheus runs as another user.
        assert stat.S_IMODE(file.stat().st_mode) == 0o644
        url = f"http://127.0.0.1:{(port := free_port())}/metrics/fleet"
        stage.web(port, PENSTOCK_AUTH="required")
        assert httpx.get(url, headers={"Authorization": f"Bearer {second}"}, timeout=30).status_code == 200
        wait_for(
            lambda: httpx.get(url, headers={"Authorization": f"Bearer {first}"}, timeout=30).status_code == 401,
            "the lost key to be refused",
        )
        stage.assert_sound()

"""The programs of deploy/systemd with the environment of their units: they serve, and stop within the unit's time."""

import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.accounts.api_keys import ApiKeys
from tests.support.ports import free_port
from tests.support.processes import Process, Stage, wait_for
from tests.support.program import COMMAND
from tests.support.systemd import Unit

pytestmark = [
    pytest.mark.ways("direct", reason="the tests are about processes and not about a proxy"),
    pytest.mark.timeout(400),
]

WEB, GATE, WORKER = "penstock-web.service", "penstock-gate.service", "penstock-worker@.service"


def started(stage: Stage, unit: Unit, **env_file: str) -> Process:
    """Start a unit's program with the unit's variables, over which those of its file with settings win."""
    words = unit.one("ExecStart").removeprefix("/opt/penstock/bin/penstock ").split()
    variables: dict[str, Any] = {"REDIS_URL": ""} | unit.environ() | env_file
    return stage.start(words[0], [*COMMAND, *words], **variables)


def is_healthy(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_the_units_serve_together_and_a_stop_lets_the_running_job_end(tmp_path: Path) -> None:
    with Stage(tmp_path / "store") as stage:
        (tmp_path / "credentials").mkdir()
        (tmp_path / "credentials" / "redis-url").write_text(f"{stage.url}\n")
        units = [Unit(name, tmp_path) for name in (WEB, GATE, WORKER)]
        door, gate, probes, worker = (f"127.0.0.1:{free_port()}" for _ in range(4))
        files = (
            {"PENSTOCK_LISTEN": door, "PENSTOCK_WEB_WORKERS": "1"},
            {"PENSTOCK_GATE_LISTEN": gate, "PENSTOCK_GATE_METRICS_LISTEN": probes},
            {"PENSTOCK_WORKER_LISTEN": worker, "PENSTOCK_ENGINE": "sim", "PENSTOCK_SIM_DECODE_TPS": "20"},
        )
        processes = [started(stage, unit, **file) for unit, file in zip(units, files, strict=True)]
        for address in (door, probes, worker):
            wait_for(lambda address=address: is_healthy(address), f"{address} to answer", timeout_s=90)  # type: ignore[misc]
        url = f"http://{door}"
        wait_for(lambda: httpx.get(f"{url}/health/ready", timeout=30).status_code == 200, "a worker", timeout_s=90)
        headers = {"Authorization": f"Bearer {ApiKeys(stage.client).create('blue').key}"}
        body = {"prompt": "tell me a story", "max_tokens": 40}
        assert httpx.post(f"{url}/v1/jobs", json=body, timeout=30).status_code == 401
        answer = httpx.post(f"{url}/v1/jobs", json=body, headers=headers, timeout=30)
        assert answer.status_code == 202, answer.text
        stage.wait_until_computing(job_id := answer.json()["id"])
        for unit, process in reversed(list(zip(units, processes, strict=True))):
            process.terminate()
            assert process.exit_code(timeout_s=unit.seconds("TimeoutStopSec")) == 0
        assert (stage.job(job_id).state.value, stage.job(job_id).attempts) == ("succeeded", 1)
        assert os.listdir(tmp_path / "state" / "penstock") == ["admin.key"]  # noqa: PTH208 - all that a door keeps
        assert stage.breaches() == []

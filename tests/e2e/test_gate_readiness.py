"""A gate tells load balancers whether its jobs would be admitted."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support.gate import SLOW, a_gate, port_of
from tests.support.processes import Stage, wait_for


def readiness(url: str) -> tuple[int, str | None]:
    """Return the status and the reason that the gate answers."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, json.load(answer)["reason"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["reason"]


@pytest.mark.ways("direct", reason="the gate's own address for probes is not behind nginx")
def test_a_gate_is_ready_while_a_worker_is_live(tmp_path: Path) -> None:
    with Stage(tmp_path, **SLOW) as stage:
        gate, _ = a_gate(stage, PENSTOCK_GATE_METRICS_LISTEN="127.0.0.1:0")
        url = f"http://127.0.0.1:{port_of(gate, 'gate.exporter')}/health/ready"
        assert readiness(url) == (503, "no_worker")
        stage.worker()
        wait_for(lambda: readiness(url) == (200, None), "the gate to be ready")
        stage.assert_sound()

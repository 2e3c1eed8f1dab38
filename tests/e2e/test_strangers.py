"""Clients without a key cannot hold up the door: what their connections send does not delay anybody else."""

import time
import urllib.request
from collections.abc import Iterator
from statistics import median

import psutil
import pytest

from bench.attackers import SIX_BODIES, TWO_PIPELINES, attacking
from tests.support.processes import Stage, in_time, wait_for
from tests.support.served import Address, Served

pytestmark = pytest.mark.ways("direct", reason="a proxy reads the requests of its clients itself")


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    environ = {"PENSTOCK_AUTH": "required", "PENSTOCK_WEB_WORKERS": "2"}
    with Stage(tmp_path_factory.mktemp("strangers")) as stage, Served(stage, **environ) as served:
        yield served


def processes_of(served: Address) -> set[int]:
    return {child.pid for child in psutil.Process(served.process.pid).children()}


def probe_health(served: Address, seconds: float) -> list[float]:
    """Ask /health on a new connection again and again; return how long each answer took, in seconds."""
    took = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        with urllib.request.urlopen(f"{served.url}/health", timeout=20) as answer:
            assert answer.status == 200
        took.append(time.monotonic() - began)
        time.sleep(0.1)
    return took


@pytest.mark.parametrize(
    "kinds", [SIX_BODIES, TWO_PIPELINES, ("endless_head",) * 4], ids=["bodies", "pipelines", "heads"]
)
def test_health_is_answered_while_strangers_send_without_end(served: Address, kinds: tuple[str, ...]) -> None:
    # The door answers before both have started.
    before = wait_for(lambda: len(found := processes_of(served)) == 2 and found, "both processes")

    def attempt() -> list[tuple[float, float]]:
        took = probe_health(served, 2.5)
        # Without the bounds of a connection, the answers take tens of seconds or never come.
        return [(median(took), 1), (max(took), 5)]

    with attacking(served.port, kinds):
        in_time(attempt)
    assert processes_of(served) == before

"""The gate while its store is away, and after the store has lost a job."""

import sys
import time
from pathlib import Path

import pytest

from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.door import serve
from tests.support.gate import SLOW, GateClient, port_of, served, submit_frame
from tests.support.processes import Process, in_time
from tests.support.program import program

pytestmark = pytest.mark.ways("direct", reason="the gate does not speak HTTP")


def test_a_gate_without_a_store_answers_with_a_yield_within_a_second(tmp_path: Path) -> None:
    environ = dict(program(tmp_path, **SLOW, PENSTOCK_LOG_FORMAT="json").environ)
    environ |= {"REDIS_URL": f"unix://{tmp_path}/nowhere.sock", "PENSTOCK_GATE_LISTEN": "127.0.0.1:0"}
    gate = Process([sys.executable, "-m", "web.gate"], environ, tmp_path / "gate.log")
    try:
        with GateClient.at(port_of(gate, "gate.listens")) as client:

            def attempt() -> list[tuple[float, float]]:
                begin_s = time.monotonic()
                answer = client.ask(submit_frame())
                took_s = time.monotonic() - begin_s
                assert (answer["status"], answer["reason"]) == ("yield", "store_unavailable")
                return [(took_s, 1)]

            in_time(attempt)
    finally:
        gate.end()


def test_a_job_that_the_store_has_lost_ends_with_an_error_frame(store: Store, settings: Settings) -> None:
    serve(store)
    with served(store, settings) as gate:
        gate.client.submitted("a1")
        store.client.flushall()
        store.configure(settings)
        last = gate.client.read()
        assert (last["ref"], last["status"], last["code"]) == ("a1", "error", "job_not_found")

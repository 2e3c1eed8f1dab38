"""A gate that is stopped does not wait for jobs that nobody will start."""

import time
from pathlib import Path

import pytest

from shared.accounts.workers import Workers
from tests.support.gate import SLOW, GateClient, a_gate
from tests.support.processes import Stage, in_time, wait_for


@pytest.mark.ways("direct", reason="a gate is no HTTP server")
def test_a_terminated_gate_does_not_wait_for_jobs_that_no_worker_will_start(tmp_path: Path) -> None:
    with Stage(tmp_path, **SLOW) as stage:
        worker = stage.worker()
        workers = Workers(stage.client)

        def attempt() -> list[tuple[float, float]]:
            gate, port = a_gate(stage)
            with GateClient.at(port) as client:
                running, waiting = client.submitted("a1", max_tokens=2_000), client.submitted("a2", max_tokens=5)
                stage.wait_until_running(running, timeout_s=60)
                workers.drain_all()
                wait_for(lambda: stage.view(worker).draining, "the worker to drain", timeout_s=60)
                gate.terminate()
                stage.store.cancel(running)
                assert client.read()["status"] == "canceled"
                begin_s = time.monotonic()
                assert client.is_closed()
                took_s = time.monotonic() - begin_s
            assert gate.exit_code() == 0
            assert stage.job(waiting).state.value == "queued"
            workers.resume_all()
            stage.ended(waiting, timeout_s=60)
            return [(took_s, 15.0)]

        # It would wait for 30 s.
        in_time(attempt)
        stage.assert_sound()

"""The gate as a process: the demonstration, disconnects, stops, and many or slow clients."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.gate import SLOW, GateClient, a_gate, port_of, submit_frame
from tests.support.processes import ROOT, Process, Stage, in_time, wait_for
from tests.support.program import program
from tests.support.up import Up, is_gone
from web.gate.connection_table import GateBound

pytestmark = pytest.mark.ways("direct", reason="the gate does not speak HTTP")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path, **SLOW) as stage:
        yield stage
        stage.assert_sound()


@dataclass(frozen=True)
class SharedGate:
    """A stage with one worker and one gate."""

    stage: Stage
    worker: Process
    port: int


@pytest.fixture(scope="module")
def common_gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedGate]:
    with Stage(tmp_path_factory.mktemp("gate"), **SLOW) as stage:
        yield SharedGate(stage, stage.worker(), a_gate(stage)[1])


@pytest.fixture
def shared_gate(common_gate: SharedGate) -> Iterator[SharedGate]:
    """One worker and one gate for all tests that leave both as they were."""
    yield common_gate
    common_gate.stage.assert_sound()


def test_with_max_inflight_1_one_of_twenty_clients_is_admitted_and_nineteen_get_a_yield(tmp_path: Path) -> None:
    environ = program(tmp_path, PENSTOCK_LOG_FORMAT="json").environ
    demonstration = [sys.executable, ROOT / "examples" / "gate_twenty_clients.py"]
    done = subprocess.run(demonstration, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stdout.count("status=yield reason=inflight_full") == 19
    assert "1 executed, 19 yielded" in done.stdout
    assert "{'executed_total': 1, 'yielded_total': 19}, inflight 0" in done.stdout


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """A stack with a gate."""
    with Up(tmp_path / "state", "--port", "0", "--gate-port", "0", PENSTOCK_MAX_INFLIGHT="1") as up:
        yield up.serving()


def test_the_gate_and_http_share_the_same_bounds(up: Up) -> None:
    # It lasts for 35 s if nobody cancels it.
    job_id = up.submit(3_500)
    up.wait_until_running(job_id)
    with GateClient.at(gate_port(up)) as client:
        assert client.ask(submit_frame())["reason"] == "inflight_full"
        assert client.ask({"op": "metrics"}) == {"inflight": 1, "executed_total": 1, "yielded_total": 1}
        with urllib.request.urlopen(f"{up.url}/metrics/fleet", timeout=10) as answer:
            fleet = answer.read().decode()
        assert "\npenstock_yielded_total 1.0\n" in fleet
        assert up.ask("DELETE", f"/v1/jobs/{job_id}")[0] == 200
        assert up.job(job_id, wait_ms=20_000)["status"] == "canceled"
        other_id = client.submitted("a2", tenant="default", max_tokens=3_500)
        assert up.ask("GET", "/v1/queue")[1]["inflight"] == 1
        assert up.ask("DELETE", f"/v1/jobs/{other_id}")[0] == 200
        assert client.read()["status"] == "canceled"


def gate_port(up: Up) -> int:
    return int(up.out.partition("The TCP gate listens on 127.0.0.1:")[2].partition(".\n")[0])


def test_up_restarts_a_gate_that_died_and_stops_it_with_the_other_processes(up: Up) -> None:
    first = up.child("web.gate")
    first.kill()
    wait_for(lambda: is_answering(gate_port(up)), "the gate to be restarted")
    second = up.child("web.gate")
    assert second.pid != first.pid
    up.interrupt()
    assert up.exit_code() == 0
    assert is_gone(second)
    assert up.children() == []


def is_answering(port: int) -> bool:
    try:
        with GateClient.at(port) as client:
            return client.ask({"op": "ping"}) == {"status": "pong"}
    except OSError:
        return False


# Disconnects.

#: A client in its own process, so that it can be killed: it submits a job and prints the answers.
CLIENT = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.sendall(sys.argv[2].encode() + b"\\n")
for line in connection.makefile():
    print(line, end="", flush=True)
"""

#: For each phase, a body for which the job is in this phase when its client disconnects.
PHASES = {
    "queued": {"prompt": "hello", "max_tokens": 20},
    "prefill": {"prompt": "word " * 1_500, "max_tokens": 20},
    "decode": {"prompt": "hello", "max_tokens": 1_000},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_killing_a_client_cancels_its_job(shared_gate: SharedGate, phase: str, stream: bool) -> None:
    stage, port = shared_gate.stage, shared_gate.port

    def attempt() -> list[tuple[float, float]]:
        with ExitStack() as stack:
            if phase == "queued":
                # Another client's job occupies the slot.
                stage.wait_until_running(stack.enter_context(GateClient.at(port)).submitted("other", max_tokens=1_000))
            frame = json.dumps(submit_frame(**PHASES[phase]) | {"stream": stream})
            client = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", CLIENT, str(port), frame], stdout=subprocess.PIPE, text=True)
            )
            stack.callback(client.kill)
            assert client.stdout is not None
            job_id = json.loads(client.stdout.readline())["id"]
            if phase != "queued":
                stage.wait_until_running(job_id)
            if phase == "decode":
                stage.wait_for_text(job_id)
            client.kill()
            begin_s = time.monotonic()
            (view,) = stage.ended(job_id)
            took_s = time.monotonic() - begin_s
            assert view.state.value == "canceled"
            assert phase == "queued" or view.stage in {"", phase}
        wait_for(lambda: (view := stage.view(shared_gate.worker)) and view.slots_busy == 0, "the slot to be free")
        # Detected within 250 ms, in the engine within 50 ms, and ended two steps of 20 ms later.
        return [(took_s, 0.25 + (0 if phase == "queued" else 0.5))]

    in_time(attempt)


def test_a_terminated_gate_waits_for_its_running_job_and_cancels_nothing(stage: Stage) -> None:
    stage.worker()
    gate, port = a_gate(stage)
    with GateClient.at(port) as client, GateClient.at(port) as idle:
        job_id = client.submitted(max_tokens=50)
        idle.ask({"op": "ping"})
        gate.terminate()
        assert idle.is_closed()
        with pytest.raises(ConnectionRefusedError):
            GateClient.at(port)
        assert client.read()["status"] == "succeeded"
        assert client.is_closed()
    assert gate.exit_code() == 0
    assert stage.job(job_id).state.value == "succeeded"


@pytest.mark.parametrize("ending", ["terminated twice", "killed"])
def test_jobs_survive_the_abrupt_end_of_their_gate(stage: Stage, ending: str) -> None:
    stage.worker()
    gate, port = a_gate(stage)
    with GateClient.at(port) as client:
        running, waiting = client.submitted("a1", max_tokens=100), client.submitted("a2", max_tokens=5)
        stage.wait_until_running(running)
        if ending == "killed":
            gate.kill()
        else:
            gate.terminate()
            wait_for(lambda: refuses_connections(port), "the gate to stop listening")
            gate.terminate()
            assert gate.exit_code() == 0
        assert client.is_closed()
    assert {view.state.value for view in stage.ended(running, waiting)} == {"succeeded"}


def refuses_connections(port: int) -> bool:
    try:
        GateClient.at(port).close()
    except (ConnectionRefusedError, ConnectionResetError) as error:
        # A reset means that the connection was still in the backlog when the listener closed.
        return isinstance(error, ConnectionRefusedError)
    return False


def test_hundreds_of_idle_and_slow_connections_do_not_block_another_client(shared_gate: SharedGate) -> None:
    port = shared_gate.port
    with ExitStack() as stack:
        idle_clients = [stack.enter_context(GateClient.at(port)) for _ in range(400)]
        for client in idle_clients[:200]:
            client.send(b'{"op":')
        for client in idle_clients[200:250]:
            # Many requests from clients that never read the answers.
            client.send(b'{"op":"metrics"}\n' * 2_000)
        client = stack.enter_context(GateClient.at(port))
        # Each within the client's 20 s.
        client.submitted(max_tokens=5)
        assert client.read()["status"] == "succeeded"


def test_each_of_hundreds_of_simultaneous_frames_gets_its_answer(shared_gate: SharedGate) -> None:
    with GateClient.at(shared_gate.port) as client:
        client.send(*(submit_frame(number, tenant=f"t{number % 10}", max_tokens=1) for number in range(300)))
        first: dict[int, str] = {}
        last: dict[int, str] = {}
        while len(first) < 300 or len(last) < sum(status == "accepted" for status in first.values()):
            frame = client.read()
            (first if frame["ref"] not in first else last)[frame["ref"]] = frame["status"]
        assert set(first.values()) <= {"accepted", "yield"}
        assert set(last.values()) == {"succeeded"}


# The gate's start and its separate address.


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (
            {"PENSTOCK_GATE_LISTEN": "0.0.0.0:7070"},
            "loopback addresses only, and PENSTOCK_GATE_LISTEN='0.0.0.0:7070' is not one",
        ),
        ({"PENSTOCK_GATE_LISTEN": "here"}, "PENSTOCK_GATE_LISTEN='here'"),
        ({"PENSTOCK_GATE_MAX_FRAMES": "0"}, "PENSTOCK_GATE_MAX_FRAMES='0'"),
    ],
)
def test_an_invalid_setting_is_quoted_and_stops_the_start(stage: Stage, environ: dict[str, str], expected: str) -> None:
    gate = stage.start("gate", [sys.executable, "-m", "web.gate"], **environ)
    assert gate.exit_code() == 2
    log_text = gate.log.read_text()
    assert expected in log_text
    assert "Traceback" not in log_text


def test_an_address_that_is_in_use_is_named(stage: Stage, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        done = program(tmp_path, **SLOW, REDIS_URL=stage.url)("gate", "--listen", address)
    assert done.returncode == 2
    assert f"PENSTOCK_GATE_LISTEN: cannot listen on {address} " in done.stderr
    assert "Traceback" not in done.stderr


def test_the_gate_serves_its_health_and_metrics_on_a_separate_address(stage: Stage) -> None:
    stage.worker()
    gate, port = a_gate(stage, PENSTOCK_GATE_METRICS_LISTEN="127.0.0.1:0")
    metrics_url = f"http://127.0.0.1:{port_of(gate, 'gate.exporter')}"
    with GateClient.at(port) as client:
        job_id = client.submitted(max_tokens=50)
        client.fault(b"{\n", "invalid_json")
        with urllib.request.urlopen(f"{metrics_url}/health", timeout=10) as answer:
            assert json.load(answer)["status"] == "ok"
        with urllib.request.urlopen(f"{metrics_url}/metrics", timeout=10) as answer:
            metrics = answer.read().decode()
        assert "penstock_gate_connections 1.0" in metrics
        for bound in GateBound:
            assert f'penstock_gate_refused_connections_total{{bound="{bound.value}"}} 0.0' in metrics
        assert 'penstock_gate_frames_total{status="accepted"} 1.0' in metrics
        assert 'penstock_gate_frames_total{status="error"} 1.0' in metrics
        assert 'penstock_store_script_seconds_count{script="admit"} 1.0' in metrics
        with pytest.raises(urllib.error.HTTPError) as unknown:
            urllib.request.urlopen(f"{metrics_url}/elsewhere", timeout=10)
        assert unknown.value.code == 404
        unknown.value.close()
        os.kill(gate.pid, 15)
        with pytest.raises(urllib.error.HTTPError) as stopping:
            wait_for(lambda: urllib.request.urlopen(f"{metrics_url}/health", timeout=10).close(), "the gate to stop")
        assert stopping.value.code == 503
        stopping.value.close()
        assert client.read()["status"] == "succeeded"
    assert stage.job(job_id).state.value == "succeeded"

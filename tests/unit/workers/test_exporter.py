"""Tests of a worker's own HTTP listener: it serves /health and /metrics, and nothing else."""

import json
import socket
import struct
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress

import pytest

from shared.errors import ConfigError
from workers.exporter import Exporter


@pytest.fixture
def serve():
    running = []

    def start(status, metrics):
        exporter = Exporter("127.0.0.1", 0, status, metrics)
        exporter.start()
        running.append(exporter)
        host, port = exporter._server.server_address[:2]
        return f"http://{host}:{port}"

    yield start
    for exporter in running:
        exporter.stop()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as response:
        return response.read().decode()


def test_health_reports_the_current_status(serve):
    statuses = ["loading", "serving"]
    url = serve(lambda: statuses.pop(0), dict)
    assert json.loads(get(f"{url}/health")) == {"status": "loading"}
    assert json.loads(get(f"{url}/health")) == {"status": "serving"}


def test_a_worker_is_ready_while_it_claims_jobs(serve):
    statuses = ["loading", "serving", "draining"]
    url = serve(lambda: statuses.pop(0), dict)
    with pytest.raises(urllib.error.HTTPError, match="503"):
        get(f"{url}/health/ready")
    assert json.loads(get(f"{url}/health/ready")) == {"status": "serving"}
    with pytest.raises(urllib.error.HTTPError, match="503"):
        get(f"{url}/health/ready")


def test_metrics_are_read_anew_for_each_request(serve):
    steps = iter([7, 8])
    url = serve(lambda: "serving", lambda: {"penstock_worker_steps": ("counter", "Steps", next(steps))})
    assert "penstock_worker_steps_total 7.0" in get(f"{url}/metrics")
    text = get(f"{url}/metrics")
    assert "penstock_worker_steps_total 8.0" in text
    assert "# TYPE penstock_worker_steps_total counter" in text


def test_a_worker_that_is_still_loading_exports_no_metrics(serve):
    assert get(f"{serve(lambda: 'loading', dict)}/metrics") == ""


def test_other_paths_are_not_found(serve):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(f"{serve(lambda: 'serving', dict)}/v1/jobs")


def test_the_error_for_an_address_in_use_names_the_address(serve):
    port = serve(lambda: "serving", dict).rpartition(":")[2]
    with pytest.raises(ConfigError, match=f"PENSTOCK_WORKER_LISTEN: cannot listen on 127.0.0.1:{port} "):
        Exporter("127.0.0.1", int(port), lambda: "serving", dict)


def test_each_connection_has_a_total_time(serve, monkeypatch):
    monkeypatch.setattr("workers.exporter._CONNECTION_S", 1.0)
    address = _address(serve(lambda: "serving", dict))
    began = time.monotonic()
    with socket.create_connection(address, timeout=10) as held, suppress(OSError):
        # A byte now and then does not prolong the time that a connection may take.
        held.settimeout(0.05)
        while time.monotonic() - began < 10:
            held.sendall(b"x")
            with suppress(TimeoutError):
                if held.recv(100) == b"":
                    break
    assert 0.5 < time.monotonic() - began < 10


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /health HTTP/1.1\r\nX-Slow: ", b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"],
    ids=["silent", "trickling", "reading nothing"],
)
@pytest.mark.parametrize("count", [1, 10], ids=["one address", "ten addresses"])
def test_probes_are_answered_at_once_while_others_hold_all_connections(serve, sent, count):
    long = {f"penstock_worker_{index}": ("gauge", "x" * 100_000, index) for index in range(100)}
    address = _address(serve(lambda: "serving", lambda: long))
    with ExitStack() as stack:
        for index in range(20):
            source = (f"127.0.0.{2 + index % count}", 0)
            held = stack.enter_context(socket.create_connection(address, timeout=10, source_address=source))
            with suppress(OSError):
                held.sendall(sent)
        for source in ("127.0.0.1", "127.0.0.2"):
            began = time.monotonic()
            with socket.create_connection(address, timeout=10, source_address=(source, 0)) as probe:
                probe.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                assert b"".join(iter(lambda: probe.recv(65_536), b"")).endswith(b'{"status": "serving"}\n')
            # The connections could be held for 10 s each.
            assert time.monotonic() - began < 4


def test_connections_that_are_reset_print_nothing_and_a_fault_is_logged(serve, capfd):
    def fail() -> dict[str, tuple[str, str, float]]:
        raise ValueError("spoiled")

    url = serve(lambda: "serving", fail)
    for sent in (b"GET /health HTTP/1.1\r\nX-Half: ", b"\x16\x03\x01\r\n\r\n"):
        for _ in range(5):
            with socket.create_connection(_address(url), timeout=10) as held:
                held.sendall(sent)
                held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert _answers(url)
    before = capfd.readouterr()
    assert "Traceback" not in before.err + before.out
    with pytest.raises(urllib.error.HTTPError, match="500"):
        get(f"{url}/metrics")
    after = capfd.readouterr()
    assert "worker.exporter_fault" in after.err + after.out


def _address(url: str) -> tuple[str, int]:
    return "127.0.0.1", int(url.rpartition(":")[2])


def _answers(url: str) -> bool:
    try:
        return json.loads(get(f"{url}/health")) == {"status": "serving"}
    except OSError:
        return False

"""Tests of a worker's own HTTP listener: it serves /health and /metrics, and nothing else."""

import json
import socket
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress

import pytest

from shared.errors import ConfigError
from tests.support.processes import wait_for
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


def test_connections_are_bounded_and_each_has_a_total_time(serve, monkeypatch):
    monkeypatch.setattr("workers.exporter._MAX_CONNECTIONS", 3)
    monkeypatch.setattr("workers.exporter._CONNECTION_S", 1.0)
    url = serve(lambda: "serving", dict)
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(3)]
        began = time.monotonic()
        with socket.create_connection(address, timeout=10) as refused, suppress(ConnectionResetError):
            assert refused.recv(100) == b""
        # A byte now and then does not prolong the time that a connection may take.
        for connection in held:
            connection.settimeout(0.05)
        while time.monotonic() - began < 10:
            try:
                held[0].sendall(b"x")
                if held[0].recv(100) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        assert 0.5 < time.monotonic() - began < 10
        wait_for(lambda: _answers(url), "room for a scrape")


def _answers(url: str) -> bool:
    try:
        return json.loads(get(f"{url}/health")) == {"status": "serving"}
    except OSError:
        return False

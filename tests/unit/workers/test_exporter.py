"""The worker's own address: its state before and after loading, its figures, and nothing else."""

import json
import urllib.error
import urllib.request

import pytest

from shared.errors import ConfigError
from workers.exporter import Exporter


@pytest.fixture
def serve():
    running = []

    def start(state, figures):
        exporter = Exporter("127.0.0.1", 0, state, figures)
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


def test_health_says_how_it_stands_at_that_moment(serve):
    words = ["loading", "serving"]
    url = serve(lambda: words.pop(0), dict)
    assert json.loads(get(f"{url}/health")) == {"status": "loading"}
    assert json.loads(get(f"{url}/health")) == {"status": "serving"}


def test_metrics_are_read_when_they_are_asked_for(serve):
    steps = iter([7, 8])
    url = serve(lambda: "serving", lambda: {"penstock_worker_steps": ("counter", "Steps", next(steps))})
    assert "penstock_worker_steps_total 7.0" in get(f"{url}/metrics")
    text = get(f"{url}/metrics")
    assert "penstock_worker_steps_total 8.0" in text
    assert "# TYPE penstock_worker_steps_total counter" in text


def test_a_worker_that_is_loading_has_no_figures_yet(serve):
    assert get(f"{serve(lambda: 'loading', dict)}/metrics") == ""


def test_other_paths_are_not_there(serve):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(f"{serve(lambda: 'serving', dict)}/v1/jobs")


def test_an_address_that_is_taken_is_named(serve):
    port = serve(lambda: "serving", dict).rpartition(":")[2]
    with pytest.raises(ConfigError, match=f"PENSTOCK_WORKER_LISTEN=127.0.0.1:{port} cannot be listened on"):
        Exporter("127.0.0.1", int(port), lambda: "serving", dict)

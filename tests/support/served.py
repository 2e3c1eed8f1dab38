"""An ingress of real processes on a stage, and how to ask it."""

import socket
from typing import Any, Self

import httpx

from tests.support.processes import Process, Stage


def free_port() -> int:
    """A port that nobody has had a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Served:
    """A stage with an ingress, and how to ask it."""

    def __init__(self, stage: Stage, **environ: str) -> None:
        self.stage, self.port = stage, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: Process = stage.web(self.port, **({"PENSTOCK_AUTH": "open"} | environ))
        self.http = httpx.Client(base_url=self.url, timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def submit(self, tenant: str = "default", **body: Any) -> httpx.Response:
        asked = {"prompt": "tell me a story", "max_tokens": 20} | body
        return self.http.post("/v1/jobs", json=asked, headers={"X-Tenant": tenant})

    def figure(self, name: str) -> float:
        lines = self.http.get("/metrics/fleet").text.splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))

"""Real processes of an ingress on a stage, and clients that reach it directly or through nginx."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import httpx

from tests.support.nginx import Nginx
from tests.support.ports import free_port
from tests.support.processes import Process, Stage
from workers.demo.random_gguf import write_random_model


class Address:
    """The address of an ingress, with a client for it."""

    def __init__(self, stage: Stage, process: Process, port: int) -> None:
        self.stage, self.process, self.port = stage, process, port
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=30)

    def submit(self, tenant: str = "default", **body: Any) -> httpx.Response:
        request = {"prompt": "tell me a story", "max_tokens": 20} | body
        return self.http.post("/v1/jobs", json=request, headers={"X-Tenant": tenant})

    def figure(self, name: str) -> float:
        lines = self.http.get("/metrics/fleet").text.splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


class Served(Address):
    """An ingress at its own address; leaving the context ends the nginx in front of it."""

    def __init__(self, stage: Stage, **environ: str) -> None:
        port = free_port()
        super().__init__(stage, stage.web(port, **({"PENSTOCK_AUTH": "open"} | environ)), port)
        self._exit_stack = ExitStack()
        self._exit_stack.callback(self.http.close)
        self._behind_nginx: Address | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()

    def by(self, way: str) -> Address:
        """Return the address for a way of tests/e2e/conftest.py; nginx is started when it is first needed."""
        if way == "direct":
            return self
        if self._behind_nginx is None:
            nginx = self._exit_stack.enter_context(Nginx(self.stage.folder("nginx"), self.port))
            self._behind_nginx = Address(self.stage, self.process, nginx.port)
            self._exit_stack.callback(self._behind_nginx.http.close)
        return self._behind_nginx


#: 200 words a second in each slot, and admission by bounds alone: some tests let a deadline pass, and full
#: admission would refuse such jobs.
SIM = {
    "PENSTOCK_ENGINE": "sim",
    "PENSTOCK_SIM_DECODE_TPS": "200",
    "PENSTOCK_SIM_PREFILL_TPS": "100000",
    "PENSTOCK_ADMISSION": "bounds",
}


@contextmanager
def sim_served(folder: Path, *, auth: str = "open", cors_origins: str = "", **environ: str) -> Iterator[Served]:
    """Run a stage with one sim worker and one ingress. `environ` holds settings of both in addition to SIM."""
    with Stage(folder, **(SIM | environ)) as stage:
        stage.worker()
        with Served(stage, PENSTOCK_AUTH=auth, PENSTOCK_CORS_ORIGINS=cors_origins) as served:
            yield served


@contextmanager
def random_model_served(folder: Path, **environ: str) -> Iterator[Served]:
    """Run a stage with one worker for a tiny model with random weights, and one ingress with the settings `environ`."""
    model = folder / "m.gguf"
    write_random_model(model)
    # Of full admission, the model's measured speed would decide which jobs are refused.
    with Stage(folder, PENSTOCK_ENGINE="llama", PENSTOCK_ADMISSION="bounds") as stage:
        stage.worker(PENSTOCK_MODEL=str(model))
        with Served(stage, **environ) as served:
            yield served


@contextmanager
def upstream_door(folder: Path, upstream_url: str, *, door: dict[str, str], **environ: str) -> Iterator[Served]:
    """Run a worker that passes jobs on to an upstream, and a door; `door` has what only the door's process gets."""
    environ = {
        "PENSTOCK_ENGINE": "upstream",
        "PENSTOCK_UPSTREAM_URL": upstream_url,
        "PENSTOCK_UPSTREAM_MODEL": "m",
        "PENSTOCK_ADMISSION": "bounds",
    } | environ
    with Stage(folder, **environ) as stage:
        stage.worker()
        with Served(stage, **door) as served:
            yield served
        stage.assert_sound()

"""An ingress of real processes on a stage, and how to ask it: directly, or through nginx."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import httpx

from tests.support.nginx import Nginx
from tests.support.ports import free_port
from tests.support.processes import Process, Stage


class Address:
    """Where an ingress is asked, and how."""

    def __init__(self, stage: Stage, process: Process, port: int) -> None:
        self.stage, self.process, self.port = stage, process, port
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=30)

    def submit(self, tenant: str = "default", **body: Any) -> httpx.Response:
        asked = {"prompt": "tell me a story", "max_tokens": 20} | body
        return self.http.post("/v1/jobs", json=asked, headers={"X-Tenant": tenant})

    def figure(self, name: str) -> float:
        lines = self.http.get("/metrics/fleet").text.splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


class Served(Address):
    """A stage with an ingress, at its own address; the context ends what stands before it."""

    def __init__(self, stage: Stage, **environ: str) -> None:
        port = free_port()
        super().__init__(stage, stage.web(port, **({"PENSTOCK_AUTH": "open"} | environ)), port)
        self._around = ExitStack()
        self._around.callback(self.http.close)
        self._behind_nginx: Address | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._around.close()

    def by(self, way: str) -> Address:
        """This ingress as one of the ways of tests/e2e/conftest.py reaches it; nginx starts when it is first needed."""
        if way == "direct":
            return self
        if self._behind_nginx is None:
            nginx = self._around.enter_context(Nginx(self.stage.folder("nginx"), self.port))
            self._behind_nginx = Address(self.stage, self.process, nginx.port)
            self._around.callback(self._behind_nginx.http.close)
        return self._behind_nginx


#: 200 words a second and slot, and admission by bounds alone: some deadlines in tests are meant to pass, and full
#: admission would foresee it.
SIM = {
    "PENSTOCK_ENGINE": "sim",
    "PENSTOCK_SIM_DECODE_TPS": "200",
    "PENSTOCK_SIM_PREFILL_TPS": "100000",
    "PENSTOCK_ADMISSION": "bounds",
}


@contextmanager
def sim_served(folder: Path, *, auth: str = "open", cors_origins: str = "", **environ: str) -> Iterator[Served]:
    """A stage of its own with one sim worker and one ingress. `environ`: settings of both beside those of SIM."""
    with Stage(folder, **(SIM | environ)) as stage:
        stage.worker()
        with Served(stage, PENSTOCK_AUTH=auth, PENSTOCK_CORS_ORIGINS=cors_origins) as served:
            yield served

"""(b) and (c): a store, a worker and an ingress as real processes, asked over the store and over HTTP."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from itertools import islice
from pathlib import Path

import psutil

from shared.jobs.job import NewJob, new_job_id
from shared.store.connection import OPERATOR, open_client
from shared.store.embedded import EmbeddedStore
from shared.store.store import Store

ROOT = Path(__file__).parents[1]
_PATIENCE_S = 600


def free_port() -> int:
    """A port that nobody had a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Stack:
    """One store with `workers` workers and an ingress. `environ`: settings of all of them."""

    def __init__(self, folder: Path, environ: dict[str, str], *, workers: int = 1) -> None:
        self.folder, self.port = folder, free_port()
        self.embedded = EmbeddedStore.start(folder / "state")
        self.client = open_client(self.embedded.url, name="penstock-bench", timeouts=OPERATOR)
        self.store = Store(self.client)
        plain = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        ours = {
            "REDIS_URL": self.embedded.url,
            "PENSTOCK_STATE_DIR": str(folder / "state"),
            "PENSTOCK_AUTH": "open",
            "PENSTOCK_LISTEN": f"127.0.0.1:{self.port}",
            "PENSTOCK_ADMISSION": "bounds",
            "PENSTOCK_LOG_LEVEL": "warning",
            "PENSTOCK_MODEL_NAME": "bench",
        }
        self._environ = plain | ours | environ
        self.processes: dict[str, psutil.Process] = {"store": psutil.Process(self.embedded.pid)}
        for index in range(workers):
            self._start(f"worker{index or ''}", ["-m", "workers"])
        self._start("ingress", ["-m", "gunicorn", "-c", "python:web.gunicorn_conf", "web.wsgi:app"])
        self._await(lambda: sum(worker.live for worker in self.store.snapshot().workers) == workers, "workers")
        self._await(self._ready, "the ingress")

    def _start(self, name: str, arguments: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, *arguments]
            process = subprocess.Popen(command, cwd=ROOT, env=self._environ, stdout=log, stderr=log)
        self.processes[name] = psutil.Process(process.pid)

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + 120
        while not condition():
            if time.monotonic() > until:
                logs = "".join(log.read_text(errors="replace")[-2000:] for log in self.folder.glob("*.log"))
                raise RuntimeError(f"waited in vain for {what}:\n{logs}")
            time.sleep(0.05)

    def _ready(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/health/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def fact(self, name: str) -> float:
        """The sum of one fact over the live workers, as their last beats (at most a second ago) said."""
        workers = [worker for worker in self.store.snapshot().workers if worker.live]
        return sum(float(worker.facts[name]) for worker in workers)

    def admit(self, prompt: str, prompt_tokens: int, max_tokens: int, tenant: str = "default") -> str:
        """Admit a greedy job as the ingress would; its id."""
        payload = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        job = NewJob(new_job_id(), tenant, "bench", payload, prompt_tokens, max_tokens, _PATIENCE_S * 1000)
        answer = self.store.admit(job)
        return str(answer.id)  # type: ignore[union-attr]  # a benchmark that is refused ends here

    def run(self, prompts: list[str], clients: int, prompt_tokens: int, max_tokens: int | list[int]) -> float:
        """Seconds until all prompts are answered, `clients` of them at a time, over the store alone."""
        lengths = [max_tokens] * len(prompts) if isinstance(max_tokens, int) else max_tokens
        todo = iter(zip(prompts, lengths, strict=True))
        began = time.perf_counter()
        following = {self.admit(prompt, prompt_tokens, length): "0" for prompt, length in islice(todo, clients)}
        while following:
            for job_id, events in self.store.read_events(following, block_ms=4000).items():
                following[job_id] = events[-1][0]
                last = events[-1][1]
                if last["type"] == "ended":
                    if last["outcome"] != "succeeded":
                        raise RuntimeError(f"a job ended {last}")
                    del following[job_id]
                    for prompt, length in islice(todo, 1):
                        following[self.admit(prompt, prompt_tokens, length)] = "0"
        return time.perf_counter() - began

    def close(self) -> None:
        """Stop everything that was started."""
        for name, process in self.processes.items():
            if name != "store":
                process.terminate()
        psutil.wait_procs([process for name, process in self.processes.items() if name != "store"], timeout=20)
        for process in self.processes.values():
            if process.is_running() and process.pid != self.embedded.pid:
                process.kill()
        self.client.close()
        self.embedded.stop()


class Cpu:
    """CPU time of processes and their children between two looks, in s."""

    def __init__(self, processes: dict[str, psutil.Process]) -> None:
        self._processes = processes
        self._before = self._look()

    def _look(self) -> dict[str, float]:
        return {name: _cpu_s(process) for name, process in self._processes.items()}

    def since(self) -> dict[str, float]:
        """Seconds of each since the last look."""
        now = self._look()
        passed = {name: now[name] - self._before[name] for name in now}
        self._before = now
        return passed


def _cpu_s(process: psutil.Process) -> float:
    """CPU time of a process and of the children that it has now."""
    family = [process, *process.children(recursive=True)]
    return sum(times.user + times.system for times in (one.cpu_times() for one in family))


@contextmanager
def running(folder: Path, environ: dict[str, str], *, workers: int = 1) -> Iterator[Stack]:
    """A stack for the length of a block."""
    stack = Stack(folder, environ, workers=workers)
    try:
        yield stack
    finally:
        stack.close()

"""(b) and (c): a store, workers and an ingress as real processes, with load through the store or over HTTP."""

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

from bench.engine_http import sampling_fields
from shared.jobs.job import NewJob, new_job_id
from shared.store.connection import OPERATOR, open_client
from shared.store.embedded import EmbeddedStore
from shared.store.store import Store

ROOT = Path(__file__).parents[1]
_DEADLINE_S = 600


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Stack:
    """One store with `workers` workers and an ingress. `environ` holds the settings of all processes."""

    def __init__(self, folder: Path, environ: dict[str, str], *, workers: int = 1) -> None:
        self.folder, self.port = folder, free_port()
        self.embedded = EmbeddedStore.start(folder / "state")
        self.client = open_client(self.embedded.url, name="penstock-bench", timeouts=OPERATOR)
        self.store = Store(self.client)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        settings = {
            "REDIS_URL": self.embedded.url,
            "PENSTOCK_STATE_DIR": str(folder / "state"),
            "PENSTOCK_AUTH": "open",
            "PENSTOCK_LISTEN": f"127.0.0.1:{self.port}",
            "PENSTOCK_ADMISSION": "bounds",
            "PENSTOCK_LOG_LEVEL": "warning",
            "PENSTOCK_MODEL_NAME": "bench",
        }
        self._environ = inherited | settings | environ
        self.processes: dict[str, psutil.Process] = {"store": psutil.Process(self.embedded.pid)}
        for index in range(workers):
            self._start(f"worker{index or ''}", ["-m", "workers"])
        self._start("ingress", ["-m", "gunicorn", "-c", "python:web.gunicorn_conf", "web.wsgi:app"])
        self._wait_for(lambda: sum(worker.live for worker in self.store.snapshot().workers) == workers, "the workers")
        self._wait_for(self._ready, "the ingress")

    def _start(self, name: str, arguments: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, *arguments]
            process = subprocess.Popen(command, cwd=ROOT, env=self._environ, stdout=log, stderr=log)
        self.processes[name] = psutil.Process(process.pid)

    def _wait_for(self, condition: Callable[[], bool], name: str) -> None:
        until = time.monotonic() + 120
        while not condition():
            if time.monotonic() > until:
                logs = "".join(log.read_text(errors="replace")[-2000:] for log in self.folder.glob("*.log"))
                raise RuntimeError(f"timed out waiting for {name}:\n{logs}")
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
        """Return the sum of one fact over the live workers, from their last heartbeats (at most a second old)."""
        workers = [worker for worker in self.store.snapshot().workers if worker.live]
        return sum(float(worker.facts[name]) for worker in workers)

    def admit(
        self, prompt: str, prompt_tokens: int, max_tokens: int, tenant: str = "default", *, sampled: bool = False
    ) -> str:
        """Admit a job as the ingress would, and return its id. It is greedy unless it is `sampled`."""
        payload = {"prompt": prompt, "max_tokens": max_tokens} | sampling_fields(sampled=sampled)
        job = NewJob(new_job_id(), tenant, "bench", payload, prompt_tokens, max_tokens, _DEADLINE_S * 1000)
        answer = self.store.admit(job)
        return str(answer.id)  # type: ignore[union-attr]  # if the job is refused, the benchmark fails here

    def run(
        self,
        prompts: list[str],
        clients: int,
        prompt_tokens: int,
        max_tokens: int | list[int],
        *,
        sampled: bool = False,
    ) -> float:
        """Return the seconds until all prompts are answered, `clients` at a time, through the store without HTTP."""
        lengths = [max_tokens] * len(prompts) if isinstance(max_tokens, int) else max_tokens
        remaining = iter(zip(prompts, lengths, strict=True))
        began = time.perf_counter()
        following = {
            self.admit(prompt, prompt_tokens, length, sampled=sampled): "0"
            for prompt, length in islice(remaining, clients)
        }
        while following:
            for job_id, events in self.store.read_events(following, block_ms=4000).items():
                following[job_id] = events[-1][0]
                last = events[-1][1]
                if last["type"] == "ended":
                    if last["outcome"] != "succeeded":
                        raise RuntimeError(f"job {job_id} did not succeed: {last}")
                    del following[job_id]
                    for prompt, length in islice(remaining, 1):
                        following[self.admit(prompt, prompt_tokens, length, sampled=sampled)] = "0"
        return time.perf_counter() - began

    def close(self) -> None:
        """Stop all processes that were started."""
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
    """Measures the CPU time of processes and their children, in s, between two calls of `since`."""

    def __init__(self, processes: dict[str, psutil.Process]) -> None:
        self._processes = processes
        self._before = self._read()

    def _read(self) -> dict[str, float]:
        return {name: _cpu_s(process) for name, process in self._processes.items()}

    def since(self) -> dict[str, float]:
        """Return each process's CPU seconds since the last call, or since construction."""
        now = self._read()
        passed = {name: now[name] - self._before[name] for name in now}
        self._before = now
        return passed


def _cpu_s(process: psutil.Process) -> float:
    """Return the CPU time of a process and of its current children."""
    family = [process, *process.children(recursive=True)]
    return sum(times.user + times.system for times in (one.cpu_times() for one in family))


@contextmanager
def running(folder: Path, environ: dict[str, str], *, workers: int = 1) -> Iterator[Stack]:
    """Run a stack for the length of a block."""
    stack = Stack(folder, environ, workers=workers)
    try:
        yield stack
    finally:
        stack.close()

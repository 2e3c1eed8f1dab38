"""Runs `penstock up` as a process that a test can interrupt and kill, and collects its output."""

import json
import os
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from tests.support.processes import wait_for
from tests.support.program import COMMAND, ROOT, Running, program

#: A lease of one second and 100 words a second, so that lost and long jobs end within a test.
FAST = {
    "PENSTOCK_ENGINE": "sim",
    "PENSTOCK_LEASE_MS": "1000",
    "PENSTOCK_SIM_DECODE_TPS": "100",
    "PENSTOCK_MAX_BATCH_SIZE": "2",
    "PENSTOCK_WEB_WORKERS": "1",
    "PENSTOCK_LOG_FORMAT": "json",
}


@dataclass(frozen=True)
class Installation:
    """The installation of the program that runs, its environment and its working folder."""

    command: Sequence[str]
    environ: Mapping[str, str]
    cwd: Path


class Up:
    """One run of `penstock up` in a state folder; leaving the context kills it and all its processes."""

    def __init__(self, state: Path, *arguments: str, place: Installation | None = None, **environ: str) -> None:
        self.state = state
        settings = FAST | environ
        if place is None:
            # It does not run in the project's folder, because a developer's .env there must not affect tests.
            place = Installation(COMMAND, dict(program(state).environ) | {"PYTHONPATH": str(ROOT)}, state.parent)
        self.environ = {**place.environ, "PENSTOCK_STATE_DIR": str(state), **settings}
        command = [*place.command, "up", *(arguments or ("--port", "0"))]
        running = Running(command, self.environ, place.cwd)
        self.process, self._pipes = running.process, [running.stdout, running.stderr]
        self._lines: dict[str, list[str]] = {"out": [], "err": []}
        self._readers = [
            threading.Thread(target=self._read, args=(name, pipe), daemon=True)
            for name, pipe in zip(("out", "err"), self._pipes, strict=True)
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for process in self.children():
            process.kill()
        for reader in self._readers:
            reader.join(10)
        for pipe in self._pipes:
            pipe.close()
        print("--- stdout", self.out, "--- stderr", self.err, sep="\n")

    @property
    def out(self) -> str:
        return "".join(self._lines["out"])

    @property
    def err(self) -> str:
        return "".join(self._lines["err"])

    def serving(self) -> Self:
        """Wait until the program has printed that it serves."""
        wait_for(lambda: "Ctrl-C stops it" in self.out or self.process.poll() is not None, "up to serve", timeout_s=240)
        assert self.process.poll() is None, self.err
        return self

    @property
    def url(self) -> str:
        found = re.search(r"(?:is|are) served at (\S+)", self.out)
        assert found, self.out
        return found[1]

    def interrupt(self) -> None:
        """Send Ctrl-C to the process that the shell waits for."""
        os.kill(self.process.pid, signal.SIGINT)

    def exit_code(self, *, timeout_s: float = 30) -> int:
        return self.process.wait(timeout_s)

    def children(self) -> list[psutil.Process]:
        """Return every live process of this state folder: those that `up` started and their children, without `up`."""
        found = []
        for process in psutil.process_iter():
            try:
                # The store's server overwrites its environment with its title, and that of the database has none of
                # ours; they are known by their working folders.
                is_ours = process.environ().get("PENSTOCK_STATE_DIR") == str(self.state)
                is_ours = is_ours or process.cwd() in {str(self.state / "store"), str(self.state / "database" / "data")}
                if is_ours and process.pid != self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def child(self, word: str) -> psutil.Process:
        """Return the oldest child process that runs this module or program."""
        found = [
            process
            for process in self.children()
            if any(word in (part, Path(part.split(" ")[0]).name) for part in process.cmdline())
        ]
        assert found, f"no {word} among {self.children()}"
        return min(found, key=psutil.Process.create_time)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Call the door; return the status and the JSON body."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=40) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, json.load(refused)

    def submit(self, words: int, **fields: Any) -> str:
        """Submit a job of `words` words that must be admitted; return its id."""
        status, job = self.ask("POST", "/v1/jobs", {"prompt": "once", "max_tokens": words, **fields})
        assert status == 202, job
        return str(job["id"])

    def job(self, job_id: str, *, wait_ms: int = 0) -> dict[str, Any]:
        status, job = self.ask("GET", f"/v1/jobs/{job_id}?wait_ms={wait_ms}")
        assert status == 200, job
        return job

    def counts(self) -> tuple[int, int]:
        """Return how many jobs of the default tenant are queued and running."""
        states = [job["status"] for job in self.ask("GET", "/v1/jobs")[1]["data"]]
        return states.count("queued"), states.count("running")

    def wait_until_running(self, job_id: str) -> None:
        wait_for(lambda: self.job(job_id)["status"] == "running", f"{job_id} to run")

    def _read(self, name: str, pipe: Any) -> None:
        for line in pipe:
            self._lines[name].append(line)


def is_gone(process: psutil.Process) -> bool:
    """Wait up to 10 s; return whether the process has ended."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False

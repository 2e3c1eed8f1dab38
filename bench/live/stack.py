"""Starts and stops the measured system: `penstock up` with the chosen engine, or baseline B4."""

import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.engine_stack import free_port
from workers.demo import demo_model_path


@dataclass(frozen=True)
class Scale:
    """The size of the live fleet, and the divisors that fit the trace's lengths and deadlines to it."""

    engine: str = "sim"
    workers: int = 2
    slots: int = 8
    prefill_tps: float = 2_000.0
    decode_tps: float = 20.0
    prompts_by: float = 10.0
    answers_by: float = 4.0
    deadlines_by: float = 1.0
    #: `max_tokens` of every job. 0: the planned answer length, which the sim engine generates in full.
    max_tokens: int = 0

    @property
    def all_slots(self) -> int:
        """The number of slots of all workers."""
        return self.workers * self.slots


@contextmanager
def running(name: str, scale: Scale) -> Iterator[int]:
    """Run the system `ours` or `B4` for the length of a block, and yield its port once it is ready."""
    environ = {
        "PENSTOCK_MAX_BATCH_SIZE": str(scale.slots),
        "PENSTOCK_SIM_PREFILL_TPS": str(scale.prefill_tps),
        "PENSTOCK_SIM_DECODE_TPS": str(scale.decode_tps),
        # B4 has the same bound. The automatic value would be at least 64.
        "PENSTOCK_MAX_INFLIGHT": str(4 * scale.all_slots),
    }
    port = free_port()
    if name == "B4":
        machine = [str(scale.prefill_tps), str(scale.decode_tps)] if scale.engine == "sim" else [str(demo_model_path())]
        bounds = [str(scale.all_slots), str(4 * scale.all_slots)]
        command = ["bench.live.fifo", str(port), *bounds, scale.engine, *machine]
        with served_process(command, environ, port):
            yield port
    else:
        with penstock_up(environ, port, scale.engine, scale.workers):
            yield port


@contextmanager
def penstock_up(
    environ: dict[str, str], port: int, engine: str = "llama", workers: int = 1, checkout: Path | None = None
) -> Iterator[str]:
    """Run `penstock up` on this port for the length of a block, which begins when the system is ready.

    `environ` holds the settings. Those of this process's own environment are not used. Yields the state folder.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = ["--engine", engine, "--workers", str(workers), "--port", str(port), "--state-dir", f"{folder}/state"]
        with served_process(["shared.cli", "up", *options], environ, port, checkout=checkout):
            yield f"{folder}/state"


@contextmanager
def served_process(
    arguments: list[str],
    environ: dict[str, str],
    port: int,
    ready: str = "/health/ready",
    checkout: Path | None = None,
    log: Path | None = None,
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a Python module with its arguments for the length of a block, which begins when `ready` answers.

    The module is that of the folder `checkout`, if one is given, and otherwise the installed one. Its output is written
    to the file `log`, if one is given.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    # The checkout comes before the installed package, which is that of another commit.
    inherited |= {"PYTHONPATH": str(checkout)} if checkout else {}
    with tempfile.TemporaryDirectory() as folder:
        log = log or Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                env=inherited | environ | {"PENSTOCK_LOG_FORMAT": "json"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=checkout,
            )
        try:
            _wait(port, ready, process, log)
            yield process
        finally:
            process.terminate()
            process.wait()


def _wait(port: int, path: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + 90
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(
                    f"the system did not become ready: {log.read_text(errors='replace')[-2_000:]}"
                ) from None
            time.sleep(0.1)

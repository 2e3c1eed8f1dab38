"""Starts and stops the measured system: `penstock up` with the chosen engine, or baseline B4."""

import os
import socket
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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                _command(name, scale, port, folder),
                env=_environ(scale),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            _wait(port, "/health/ready", process, log)
            yield port
        finally:
            process.terminate()
            process.wait()


def _command(name: str, scale: Scale, port: int, folder: str) -> list[str]:
    python = [sys.executable, "-m"]
    if name == "B4":
        machine = [str(scale.prefill_tps), str(scale.decode_tps)] if scale.engine == "sim" else [str(demo_model_path())]
        bounds = [str(scale.all_slots), str(4 * scale.all_slots)]
        return [*python, "bench.live.fifo", str(port), *bounds, scale.engine, *machine]
    return [
        *python,
        "shared.cli",
        "up",
        "--engine",
        scale.engine,
        "--workers",
        str(scale.workers),
        "--port",
        str(port),
        "--state-dir",
        f"{folder}/state",
    ]


def _environ(scale: Scale) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return inherited | {
        "PENSTOCK_MAX_BATCH_SIZE": str(scale.slots),
        "PENSTOCK_SIM_PREFILL_TPS": str(scale.prefill_tps),
        "PENSTOCK_SIM_DECODE_TPS": str(scale.decode_tps),
        # B4 has the same bound. The automatic value would be at least 64.
        "PENSTOCK_MAX_INFLIGHT": str(4 * scale.all_slots),
        "PENSTOCK_LOG_FORMAT": "json",
    }


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

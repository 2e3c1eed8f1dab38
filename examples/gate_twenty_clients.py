"""Sends twenty jobs at once to a gate that admits one: one job is executed, nineteen clients get a retry hint.

    python examples/gate_twenty_clients.py                  starts a system of its own, without a model
    python examples/gate_twenty_clients.py 127.0.0.1:7070   uses your gate, started with PENSTOCK_MAX_INFLIGHT=1

The exit code is 0 if the answers are as expected and the gate's metrics confirm them.
"""

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

CLIENTS = 20
ROOT = Path(__file__).resolve().parents[1]
#: One inflight job and 20 words a second: the admitted job takes 5 s, and all other jobs are offered in that time.
SETTINGS = {"PENSTOCK_MAX_INFLIGHT": "1", "PENSTOCK_MAX_BATCH_SIZE": "1", "PENSTOCK_SIM_DECODE_TPS": "20"}
WORDS = 100


class Client:
    """One connection to the gate, which sends and reads frames."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout=60)
        self._lines = self._socket.makefile("rb")

    def call(self, **frame: object) -> dict[str, object]:
        """Send a frame and return the next frame from the gate."""
        self._socket.sendall(json.dumps(frame).encode() + b"\n")
        return self.read()

    def read(self) -> dict[str, object]:
        """Return the next frame from the gate."""
        answer: dict[str, object] = json.loads(self._lines.readline())
        return answer

    def submit(self, tenant: str) -> dict[str, object]:
        """Submit a job and return the gate's answer."""
        body = json.dumps({"prompt": "Once upon a time", "max_tokens": WORDS})
        digest = hashlib.sha256(body.encode()).hexdigest()
        return self.call(op="submit", ref=tenant, tenant=tenant, body=body, sha256=digest)

    def metrics(self) -> dict[str, int]:
        """Return the gate's three figures of the whole system."""
        return {name: int(str(figure)) for name, figure in self.call(op="metrics").items()}


def demonstrate(address: str) -> bool:
    """Submit twenty jobs at once. Return whether one was executed, nineteen were refused, and the metrics agree."""
    observer = Client(address)
    before = observer.metrics()
    clients = [Client(address) for _ in range(CLIENTS)]
    barrier = threading.Barrier(CLIENTS)

    def submit_together(number: int) -> dict[str, object]:
        barrier.wait()
        return clients[number].submit(f"tenant-{number}")

    with ThreadPoolExecutor(CLIENTS) as threads:
        answers = list(threads.map(submit_together, range(CLIENTS)))
    printed = ("ref", "status", "reason", "retry_hint_ms")
    for answer in answers:
        print(" ".join(f"{name}={answer[name]}" for name in printed if name in answer))
    accepted = [number for number, answer in enumerate(answers) if answer["status"] == "accepted"]
    yielded = [answer for answer in answers if answer["status"] == "yield"]
    ends = [clients[number].read() for number in accepted]
    for end in ends:
        print(f"ref={end['ref']} status={end['status']} usage={end['usage']}")
    after = observer.metrics()
    counted = {name: after[name] - before[name] for name in ("executed_total", "yielded_total")}
    print(f"{len(accepted)} executed, {len(yielded)} yielded; the metrics say {counted}, inflight {after['inflight']}")
    as_expected = [end["status"] for end in ends] == ["succeeded"] and len(yielded) == CLIENTS - 1
    return as_expected and counted == {"executed_total": 1, "yielded_total": CLIENTS - 1} and after["inflight"] == 0


@contextmanager
def own_system() -> Iterator[str]:
    """Run store, worker, door and gate for the length of a block, and yield the gate's address."""
    with tempfile.TemporaryDirectory() as folder:
        state, log = Path(folder) / "state", Path(folder) / "log"
        command = [sys.executable, "-m", "shared.cli", "up", "--engine", "sim", "--port", "0", "--gate-port", "0"]
        environ = os.environ | SETTINGS | {"PENSTOCK_STATE_DIR": str(state), "PYTHONPATH": str(ROOT)}
        with log.open("wb") as output:
            up = subprocess.Popen([*command], cwd=folder, env=environ, stdout=output, start_new_session=True)
        try:
            while not (found := re.search(r"The TCP gate listens on (\S+)\.\n", log.read_text())):
                if up.poll() is not None:
                    sys.exit("the system did not start")
                time.sleep(0.05)
            yield found[1]
        finally:
            up.send_signal(signal.SIGINT)
            up.wait()


def main() -> int:
    """Run the demonstration on the gate named on the command line, or on one that is started for it."""
    if len(sys.argv) > 1:
        return 0 if demonstrate(sys.argv[1]) else 1
    with own_system() as address:
        return 0 if demonstrate(address) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Twenty clients at a gate with one place: one is executed, nineteen are told when to come back.

    python examples/gate_twenty_clients.py                  starts a system of its own, without a model
    python examples/gate_twenty_clients.py 127.0.0.1:7070   asks a gate of yours, started with PENSTOCK_MAX_INFLIGHT=1

Exit code 0 when the answers are as they should be and the gate's metrics say the same.
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
#: One place, and 20 words a second: the one job takes 5 s, all others ask within that.
SETTINGS = {"PENSTOCK_MAX_INFLIGHT": "1", "PENSTOCK_MAX_BATCH_SIZE": "1", "PENSTOCK_SIM_DECODE_TPS": "20"}
WORDS = 100


class Client:
    """One connection: sends frames, reads frames."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout=60)
        self._lines = self._socket.makefile("rb")

    def ask(self, **frame: object) -> dict[str, object]:
        """Send a frame and read the next."""
        self._socket.sendall(json.dumps(frame).encode() + b"\n")
        return self.read()

    def read(self) -> dict[str, object]:
        """The next frame."""
        answer: dict[str, object] = json.loads(self._lines.readline())
        return answer

    def submit(self, tenant: str) -> dict[str, object]:
        """Offer a job."""
        body = json.dumps({"prompt": "Once upon a time", "max_tokens": WORDS})
        digest = hashlib.sha256(body.encode()).hexdigest()
        return self.ask(op="submit", ref=tenant, tenant=tenant, body=body, sha256=digest)

    def metrics(self) -> dict[str, int]:
        """The whole system in three figures."""
        return {name: int(str(figure)) for name, figure in self.ask(op="metrics").items()}


def demonstrate(address: str) -> bool:
    """Send twenty clients to the gate at once; whether one was executed and nineteen yielded."""
    watcher = Client(address)
    before = watcher.metrics()
    clients = [Client(address) for _ in range(CLIENTS)]
    together = threading.Barrier(CLIENTS)

    def arrive(number: int) -> dict[str, object]:
        together.wait()
        return clients[number].submit(f"tenant-{number}")

    with ThreadPoolExecutor(CLIENTS) as threads:
        answers = list(threads.map(arrive, range(CLIENTS)))
    shown = ("ref", "status", "reason", "retry_hint_ms")
    for answer in answers:
        print(" ".join(f"{name}={answer[name]}" for name in shown if name in answer))
    taken = [number for number, answer in enumerate(answers) if answer["status"] == "accepted"]
    yielded = [answer for answer in answers if answer["status"] == "yield"]
    ends = [clients[number].read() for number in taken]
    for end in ends:
        print(f"ref={end['ref']} status={end['status']} usage={end['usage']}")
    after = watcher.metrics()
    counted = {name: after[name] - before[name] for name in ("executed_total", "yielded_total")}
    print(f"{len(taken)} executed, {len(yielded)} yielded; the metrics say {counted}, inflight {after['inflight']}")
    well = [end["status"] for end in ends] == ["succeeded"] and len(yielded) == CLIENTS - 1
    return well and counted == {"executed_total": 1, "yielded_total": CLIENTS - 1} and after["inflight"] == 0


@contextmanager
def a_system() -> Iterator[str]:
    """Store, worker, door and gate of our own; the gate's address."""
    with tempfile.TemporaryDirectory() as folder:
        state, said = Path(folder) / "state", Path(folder) / "said"
        command = [sys.executable, "-m", "shared.cli", "up", "--engine", "sim", "--port", "0", "--gate-port", "0"]
        environ = os.environ | SETTINGS | {"PENSTOCK_STATE_DIR": str(state), "PYTHONPATH": str(ROOT)}
        with said.open("wb") as output:
            up = subprocess.Popen([*command], cwd=folder, env=environ, stdout=output, start_new_session=True)
        try:
            while not (found := re.search(r"The TCP gate listens on (\S+)\.\n", said.read_text())):
                if up.poll() is not None:
                    sys.exit("the system did not start")
                time.sleep(0.05)
            yield found[1]
        finally:
            up.send_signal(signal.SIGINT)
            up.wait()


def main() -> int:
    """The demonstration on the gate that was named, or on one of our own."""
    if len(sys.argv) > 1:
        return 0 if demonstrate(sys.argv[1]) else 1
    with a_system() as address:
        return 0 if demonstrate(address) else 1


if __name__ == "__main__":
    sys.exit(main())

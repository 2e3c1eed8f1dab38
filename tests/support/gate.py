"""A client of the TCP gate, and one connection of the gate served in this process over a real store."""

import hashlib
import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

from shared.clock import RealClock
from shared.jobs.states import JobState
from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.builders import view_of
from tests.support.processes import Process, Stage, wait_for
from web.gate.connection import Bounds, Connection
from web.gate.stranger_budget import StrangerBudget
from web.runtime.context import DoorContext

Frame = dict[str, Any]

#: The settings of a worker with one slot that generates 50 words a second: a step takes 20 ms.
SLOW = {
    "PENSTOCK_ENGINE": "sim",
    "PENSTOCK_AUTH": "open",
    "PENSTOCK_ADMISSION": "bounds",
    "PENSTOCK_LEASE_MS": "1000",
    "PENSTOCK_MAX_BATCH_SIZE": "1",
    "PENSTOCK_SIM_DECODE_TPS": "50",
    "PENSTOCK_SIM_PREFILL_TPS": "300",
    "PENSTOCK_PREFILL_CHUNK": "40",
}

#: Bounds so high that no test reaches one without setting it.
BOUNDS = Bounds(frame_bytes=1 << 20, frame_s=20, idle_s=60, jobs=256, stranger_frame_s=20, stranger_idle_s=60)


def submit_frame(ref: str | int | None = "a1", *, tenant: str = "blue", **body: Any) -> Frame:
    """Return a frame that submits a small job; the fields in `body` replace its own."""
    text = json.dumps({"prompt": "hello", "max_tokens": 20} | body)
    frame = {"op": "submit", "tenant": tenant, "body": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return frame if ref is None else frame | {"ref": ref}


class GateClient:
    """One connection to a gate."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.socket.settimeout(20)
        self._lines = sock.makefile("rb")

    @classmethod
    def at(cls, port: int) -> "GateClient":
        return cls(socket.create_connection(("127.0.0.1", port), timeout=20))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._lines.close()
        self.socket.close()

    def send(self, *frames: Frame | bytes) -> None:
        """Send frames as JSON lines, and bytes unchanged."""
        self.socket.sendall(
            b"".join(frame if isinstance(frame, bytes) else json.dumps(frame).encode() + b"\n" for frame in frames)
        )

    def read(self) -> Frame:
        """Return the next frame; there must be one."""
        frame = self.read_or_end()
        assert frame is not None
        return frame

    def read_or_end(self) -> Frame | None:
        """Return the next frame, or None if the gate has ended the connection."""
        line = self._lines.readline()
        if not line:
            return None
        assert line.endswith(b"\n"), line
        frame: Frame = json.loads(line)
        return frame

    def read_by_ref(self, count: int) -> dict[Any, Frame]:
        """Read the next `count` frames; return them by their `ref`."""
        return {frame.get("ref"): frame for frame in (self.read() for _ in range(count))}

    def ask(self, frame: Frame | bytes) -> Frame:
        self.send(frame)
        return self.read()

    def submitted(self, ref: str | int = "a1", **body: Any) -> str:
        """Submit a job that must be admitted; return its id."""
        answer = self.ask(submit_frame(ref, **body))
        assert answer["status"] == "accepted", answer
        return str(answer["id"])

    def fault(self, frame: Frame | bytes, code: str, param: str | None = None) -> Frame:
        """Send a frame that must be answered with this error; return the answer."""
        answer = self.ask(frame)
        assert (answer["status"], answer["code"], answer["error"]["param"]) == ("error", code, param), answer
        return answer

    def is_closed(self) -> bool:
        """Return whether the gate has closed the connection without another frame."""
        try:
            return self._lines.readline() == b""
        except ConnectionResetError:
            return True


class Served:
    """A connection that the gate serves on a thread, and the client at its other end."""

    def __init__(self, context: DoorContext, bounds: Bounds, budget: StrangerBudget | None = None) -> None:
        self.context = context
        gate_end, client_end = socket.socketpair()
        self.client = GateClient(client_end)
        self.counted: Counter[str] = Counter()
        self.connection = Connection(
            context,
            gate_end,
            bounds,
            lambda status: self.counted.update([status]),
            client="127.0.0.1",
            budget=budget or StrangerBudget(1 << 24),
        )
        self._thread = threading.Thread(target=self.connection.serve, daemon=True)
        self._thread.start()

    def ended(self, *, timeout_s: float = 20) -> bool:
        """Return whether the gate's side ends within `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


@contextmanager
def served(
    store: Store,
    settings: Settings,
    *,
    auth: str = "open",
    settings_of_test: dict[str, Any] | None = None,
    budget: StrangerBudget | None = None,
    **bounds: Any,
) -> Iterator[Served]:
    """Serve one connection on this store; bounds are high and auth is open unless set."""
    settings = replace(settings, **({"auth": auth} | (settings_of_test or {})))
    context = DoorContext(settings, store, RealClock())
    serving = Served(context, replace(BOUNDS, **bounds), budget)
    try:
        yield serving
    finally:
        serving.client.close()
        assert serving.ended()
        # A job that is still followed would make the hub read the store, and log its absence, during later tests.
        wait_for(lambda: not context.event_hub.followed, "the gate to stop following its jobs")


def a_gate(stage: Stage, **environ: str) -> tuple[Process, int]:
    """Start a gate on a free port; return the process and the port."""
    process = stage.start("gate", [sys.executable, "-m", "web.gate"], PENSTOCK_GATE_LISTEN="127.0.0.1:0", **environ)
    return process, port_of(process, "gate.listens")


def port_of(process: Process, event: str) -> int:
    line = wait_for(lambda: process.log_lines(event) or not process.alive, f"the log event {event}", timeout_s=60)
    assert process.alive, process.log.read_text()
    return int(json.loads(line[0])["address"].rpartition(":")[2])  # type: ignore[index]  # alive: lines


def wait_for_cancel(store: Store, job_id: str) -> float:
    """Wait until the job's cancel is requested or done; return how long that took, in seconds."""
    begin_s = time.monotonic()
    wait_for(lambda: (view := view_of(store, job_id)).cancel_requested or view.state is JobState.CANCELED, "the cancel")
    return time.monotonic() - begin_s

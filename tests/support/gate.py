"""A client of the TCP gate, and a connection of the gate served in this process over a real store."""

import hashlib
import json
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

from shared.clock import RealClock
from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.processes import Process, Stage, wait_for
from web.gate.connection import Bounds, Connection
from web.runtime.context import DoorContext, make_door_context

Frame = dict[str, Any]

#: One slot that makes 50 words a second: a step takes 20 ms.
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

#: Wide enough that no test meets one unless it spells it.
BOUNDS = Bounds(frame_bytes=1 << 20, frame_s=20, idle_s=60, jobs=256)


def submit_frame(ref: str | int | None = "a1", *, tenant: str = "blue", **body: Any) -> Frame:
    """A frame that submits a small job; `body` fields replace its own."""
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
        """Send frames, and bytes as they are."""
        self.socket.sendall(
            b"".join(frame if isinstance(frame, bytes) else json.dumps(frame).encode() + b"\n" for frame in frames)
        )

    def read(self) -> Frame:
        """The next frame; there must be one."""
        line = self._lines.readline()
        assert line.endswith(b"\n"), line
        frame: Frame = json.loads(line)
        return frame

    def reads(self, count: int) -> dict[Any, Frame]:
        """The next frames by their tags."""
        return {frame.get("ref"): frame for frame in (self.read() for _ in range(count))}

    def ask(self, frame: Frame | bytes) -> Frame:
        self.send(frame)
        return self.read()

    def submitted(self, ref: str | int = "a1", **spelled: Any) -> str:
        """Submit a job that must be taken; its id."""
        answer = self.ask(submit_frame(ref, **spelled))
        assert answer["status"] == "accepted", answer
        return str(answer["id"])

    def fault(self, frame: Frame | bytes, code: str, param: str | None = None) -> Frame:
        """Send what must be answered by this error; the answer."""
        answer = self.ask(frame)
        assert (answer["status"], answer["code"], answer["error"]["param"]) == ("error", code, param), answer
        return answer

    def at_end(self) -> bool:
        """Whether the gate has closed, with nothing more to say."""
        try:
            return self._lines.readline() == b""
        except ConnectionResetError:
            return True


class Served:
    """A connection of the gate and its client's end."""

    def __init__(self, here: DoorContext, bounds: Bounds) -> None:
        self.here = here
        ours, theirs = socket.socketpair()
        self.client = GateClient(theirs)
        self.counted: Counter[str] = Counter()
        self.connection = Connection(here, ours, bounds, lambda status: self.counted.update([status]))
        self._thread = threading.Thread(target=self.connection.serve, daemon=True)
        self._thread.start()

    def ended(self, *, timeout_s: float = 20) -> bool:
        """Whether the gate's side has ended, within a time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


@contextmanager
def served(store: Store, settings: Settings, *, auth: str = "open", **bounds: Any) -> Iterator[Served]:
    """A connection to a gate on this store; bounds are wide and auth is open unless spelled."""
    here = make_door_context(replace(settings, auth=auth), store, RealClock())
    serving = Served(here, replace(BOUNDS, **bounds))
    try:
        yield serving
    finally:
        serving.client.close()
        assert serving.ended()


def a_gate(stage: Stage, **environ: str) -> tuple[Process, int]:
    """A gate on any free port, and the port."""
    process = stage.start("gate", [sys.executable, "-m", "web.gate"], PENSTOCK_GATE_LISTEN="127.0.0.1:0", **environ)
    return process, port_of(process, "gate.listens")


def port_of(process: Process, event: str) -> int:
    line = wait_for(lambda: process.said(event) or not process.alive, f"{event} to be said")
    assert process.alive, process.log.read_text()
    return int(json.loads(line[0])["address"].rpartition(":")[2])  # type: ignore[index]  # alive: lines

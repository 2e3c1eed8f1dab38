"""What this worker says of itself: its name, its state, and the figures of beats and of /metrics."""

import os
import re
import secrets
import socket
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

from shared.store.replies import Beat
from workers.duties.claimed_jobs import ClaimedJobs
from workers.duties.throughput import Throughput
from workers.engine.loop import Engine

#: Whose versions explain a difference between two workers.
_PACKAGES = ("penstock", "llama-cpp-python", "rq", "redis")


def new_worker_name() -> str:
    """`<hostname>-<pid>-<random>`: readable, never used twice, safe in keys."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40]
    return f"{host}-{os.getpid()}-{secrets.token_hex(3)}"


class Heartbeat:
    """Makes the beats of one worker; called by the leases' thread. `names`: the served name, then its aliases."""

    def __init__(
        self,
        worker: str,
        names: Sequence[str],
        engine: Engine,
        claimed_jobs: ClaimedJobs,
        throughput: Throughput,
        idle_slot_steps: Callable[[], int],
    ) -> None:
        self.worker = worker
        self.model = names[0]
        self._engine = engine
        self._claimed_jobs = claimed_jobs
        self.throughput = throughput
        self._fixed = _fixed_facts(engine) | ({"aliases": ",".join(names[1:])} if names[1:] else {})
        #: Whether the worker claims no more; written by the supervisor.
        self.draining = False
        #: Steps run with a free slot while a job waited for one.
        self.idle_slot_steps = idle_slot_steps

    @property
    def _busy(self) -> int:
        """Slots in use: jobs in hand have none yet."""
        return min(len(self._claimed_jobs), self._engine.backend.slots)

    def beat(self) -> Beat:
        """The worker as it is now."""
        room, stats = self._engine.room(), self._engine.stats
        busy = self._busy
        moving: dict[str, str | int | float] = {
            "steps": stats.steps,
            "computed_prompt_tokens": stats.prompt_tokens,
            "cached_prompt_tokens": stats.cached_tokens,
            "completion_tokens": stats.completion_tokens,
            "dead_tokens": stats.dead_tokens,
            "decode_s": round(stats.decode_s, 3),
            "idle_slot_steps": self.idle_slot_steps(),
            "rq_state": "busy" if busy else "idle",
        }
        if self._engine.backend.lockstep:
            call_ms, row_ms, token_ms, look_ms = self._engine.step_times_ms()
            moving |= {
                "fit_call_ms": round(call_ms, 3),
                "fit_row_ms": round(row_ms, 4),
                "fit_prompt_token_ms": round(token_ms, 5),
                "fit_look_ns": round(look_ms * 1e6, 3),
            }
        throughput = self.throughput.figures(full=busy >= self._engine.backend.slots)
        return Beat(
            worker=self.worker,
            model=self.model,
            slots=self._engine.backend.slots,
            slots_busy=busy,
            cells=self._engine.backend.cells,
            cells_free=room.cells,
            facts=self._fixed | moving | throughput,
            draining=self.draining,
        )

    def figures(self) -> dict[str, tuple[str, str, float]]:
        """What /metrics shows: name → (counter or gauge, help, value)."""
        backend, stats = self._engine.backend, self._engine.stats
        used = 1 - self._engine.room().cells / backend.cells
        return {
            "penstock_worker_slots": ("gauge", "Jobs that this worker can run at once", backend.slots),
            "penstock_worker_slots_busy": ("gauge", "Slots that are held for jobs", self._busy),
            "penstock_worker_kv_used_ratio": ("gauge", "Share of the KV cells that is promised to jobs", used),
            "penstock_worker_steps": ("counter", "Steps of the engine", stats.steps),
            "penstock_worker_idle_slot_steps": (
                "counter",
                "Steps with a free slot while a job waited for one",
                self.idle_slot_steps(),
            ),
            "penstock_worker_prompt_tokens": ("counter", "Prompt tokens computed", stats.prompt_tokens),
            "penstock_worker_cached_tokens": (
                "counter",
                "Prompt tokens that were not computed again",
                stats.cached_tokens,
            ),
            "penstock_worker_completion_tokens": ("counter", "Tokens generated", stats.completion_tokens),
            "penstock_worker_dead_tokens": (
                "counter",
                "Tokens computed after a cancel or a deadline",
                stats.dead_tokens,
            ),
            "penstock_worker_decode_seconds": ("counter", "Time inside the model", stats.decode_s),
        }


class WorkerStatus:
    """What the outside may ask at any time, also while the model is loading. Written by the main thread."""

    def __init__(self) -> None:
        self.heartbeat: Heartbeat | None = None

    def word(self) -> str:
        """`loading`, `serving` or `draining`."""
        if self.heartbeat is None:
            return "loading"
        return "draining" if self.heartbeat.draining else "serving"

    def figures(self) -> dict[str, tuple[str, str, float]]:
        """The worker's figures; none while it is loading."""
        return {} if self.heartbeat is None else self.heartbeat.figures()


def _fixed_facts(engine: Engine) -> dict[str, str | int | float]:
    facts = dict(engine.backend.facts.as_dict())
    for name in ("model", "slots", "cells"):
        del facts[name]  # the beat has fields for them
    facts |= {"host": socket.gethostname(), "pid": os.getpid()}
    for package in _PACKAGES:
        try:
            facts[f"version_{package}"] = version(package)
        except PackageNotFoundError:
            continue
    return facts

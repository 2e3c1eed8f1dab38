"""Builds the reports of this worker: its name, its state, its heartbeats, and the values of its own /metrics."""

import os
import re
import secrets
import socket
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

from shared.log import LimitedEvent
from shared.store.replies import HeartbeatReport
from workers.duties.claimed_jobs import ClaimedJobs
from workers.duties.endings import encodable
from workers.duties.slot_shares import PoolShare
from workers.duties.throughput import Throughput
from workers.engine.stats import EngineStats
from workers.job_engine import JobEngine

_UNMEASURED = LimitedEvent("heartbeat.unmeasured", interval_s=60.0)

#: Packages whose versions are reported, because they may explain why two workers behave differently.
_PACKAGES = ("penstock", "llama-cpp-python", "rq", "redis")

_IDLE_SLOT_STEPS = "Steps that ran with a free slot while a job waited for one"

#: The metrics that are named as the engine's statistics are, and their help texts.
_COUNTED = {
    "steps": "Steps that the engine has run",
    "prompt_tokens": "Prompt tokens computed",
    "cached_tokens": "Prompt tokens that were reused from earlier computations",
    "completion_tokens": "Tokens generated",
    "drafts_accepted": "Drafted tokens that were the ones that were then sampled",
    "drafts_rejected": "Drafted tokens that were not sampled",
    "recomputed_tokens": "Tokens computed again after a pause, or because an earlier attempt had computed them",
    "dead_tokens": "Tokens computed for jobs that were already canceled, late or lost",
}


def new_worker_name() -> str:
    """Return `<hostname>-<pid>-<random>`, which is readable, unique, and valid in store keys."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40]
    return f"{host}-{os.getpid()}-{secrets.token_hex(3)}"


class Heartbeat:
    """Creates one worker's heartbeat reports, on the leases' thread, and its metrics, on the exporter's threads."""

    def __init__(
        self,
        worker: str,
        names: Sequence[str],
        engine: JobEngine,
        claimed_jobs: ClaimedJobs,
        throughput: Throughput,
        idle_slot_steps: Callable[[], int],
        share: PoolShare | None = None,
        base: str = "",
        stats: Callable[[], EngineStats] | None = None,
    ) -> None:
        """Create the heartbeat of a worker. `names` contains the name of the served model, and then its aliases.

        `idle_slot_steps` returns the number of steps that ran with a free slot while a job waited for one. `share` is
        the pool's part of an engine that serves several, `base` is the model whose adapter the pool serves, or "", and
        `stats` returns the counters of such a pool.
        """
        self.worker = worker
        self.model = names[0]
        self._engine = engine
        self._claimed_jobs = claimed_jobs
        self.throughput = throughput
        self._share, self._stats = share, stats or (lambda: engine.stats)
        self._fixed = _fixed_facts(engine) | ({"aliases": ",".join(names[1:])} if names[1:] else {})
        self._fixed |= {"base": base} if base else {}
        #: Whether the worker has stopped claiming jobs. The supervisor sets it.
        self.draining = False
        self.idle_slot_steps = idle_slot_steps

    @property
    def _busy(self) -> int:
        """Return the number of slots in use. Jobs beyond the number of slots are prefetched and have no slot yet."""
        return min(self._claimed_jobs.computing(), self._engine.slots)

    def report(self) -> HeartbeatReport:
        free, stats = self._engine.free_capacity(), self._stats()
        busy, slots, is_full = self._busy, self._engine.slots, self._busy >= self._engine.slots
        part = 1.0
        if self._share is not None:
            is_full = not self._share.shares.free()
            slots, part = self._share.reported()
        changing: dict[str, str | int | float] = {
            "steps": stats.steps,
            "computed_prompt_tokens": stats.prompt_tokens,
            "cached_prompt_tokens": stats.cached_tokens,
            "completion_tokens": stats.completion_tokens,
            "dead_tokens": stats.dead_tokens,
            "decode_s": round(stats.decode_s, 3),
            "recomputed_tokens": stats.recomputed_tokens,
            "paused": self._claimed_jobs.paused,
            **{f"pauses_{way}": ended for way, ended in stats.ways.items()},
            "drafts_accepted": stats.drafts_accepted,
            "drafts_rejected": stats.drafts_rejected,
            "idle_slot_steps": self.idle_slot_steps(),
            "rq_state": "busy" if busy else "idle",
        }
        return HeartbeatReport(
            worker=self.worker,
            model=self.model,
            # While an upstream is away, the worker has only the slots of the jobs that still run there.
            slots=slots if free.live else busy,
            slots_busy=busy,
            cells=self._engine.facts.cells,
            cells_free=free.cells,
            facts=self._fixed | changing | self._measured(part, full=is_full),
            draining=self.draining,
        )

    def _measured(self, part: float, *, full: bool) -> dict[str, str | int | float]:
        """Return the pool's part of the measured rates; nothing if measuring fails.

        The store then keeps those of earlier heartbeats.
        """
        try:
            rates = self.throughput.rates(full=full)
            if part != 1.0:
                rates |= {name: float(rates[name]) * part for name in ("mu_wtps", "generated_tps")}
            return {**rates, **self._engine.figures()}
        except Exception as fault:  # noqa: BLE001 - a heartbeat also renews leases, for which no rates are needed
            _UNMEASURED.log("error", exc_info=fault)
            return {}

    def metrics(self) -> dict[str, tuple[str, str, float]]:
        """Return the worker's metrics as {name: (counter or gauge, help text, value)}."""
        engine_facts, stats = self._engine.facts, self._engine.stats
        used = self._engine.free_capacity().kv_used(engine_facts.cells)
        own: dict[str, tuple[str, str, float]] = {
            "slots": ("gauge", "Number of jobs that this worker can run at the same time", self._engine.slots),
            "slots_busy": (
                "gauge",
                "Number of slots in use",
                self._busy if self._share is None else self._share.shares.held,
            ),
            "paused_jobs": ("gauge", "Number of jobs that wait for a slot again", self._claimed_jobs.paused),
            "kv_used_ratio": ("gauge", "Share of the KV cells that is reserved for jobs, 0 to 1", used),
            "idle_slot_steps": ("counter", _IDLE_SLOT_STEPS, self.idle_slot_steps()),
            "decode_seconds": ("counter", "Seconds spent in calls of the model", stats.decode_s),
        }
        counted = {name: ("counter", text, getattr(stats, name)) for name, text in _COUNTED.items()}
        return {f"penstock_worker_{name}": metric for name, metric in (own | counted).items()}


class WorkerStatus:
    """The worker's state and metrics, which are available even while the model is loading."""

    def __init__(self) -> None:
        #: None while the model is loading. The main thread sets it when the model is loaded.
        self.heartbeat: Heartbeat | None = None

    def state(self) -> str:
        if self.heartbeat is None:
            return "loading"
        return "draining" if self.heartbeat.draining else "serving"

    def metrics(self) -> dict[str, tuple[str, str, float]]:
        """Return the worker's metrics, or an empty dict while the model is loading."""
        return {} if self.heartbeat is None else self.heartbeat.metrics()


def _fixed_facts(engine: JobEngine) -> dict[str, str | int | float]:
    facts = dict(engine.facts.as_dict())
    for name in ("model", "slots", "cells"):
        del facts[name]  # HeartbeatReport has fields of its own for these
    facts |= {"host": socket.gethostname(), "pid": os.getpid(), "can_pause": int(engine.can_pause)}
    # The names of hosts, devices and files can have bytes that are not UTF-8.
    facts = {name: encodable(fact) if isinstance(fact, str) else fact for name, fact in facts.items()}
    for package in _PACKAGES:
        try:
            facts[f"version_{package}"] = version(package)
        except PackageNotFoundError:
            continue
    return facts

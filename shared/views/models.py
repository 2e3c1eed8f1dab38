"""Computes a line for each model: its pool's workers, jobs and price, and why it is not served, for operators."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from shared.store.replies import PoolReason, PoolView, Snapshot

if TYPE_CHECKING:
    # It imports the client of Redis, which `penstock --help` does not need.
    from shared.accounts.routes import StoredRoute

#: A pool without live workers and without jobs has a line for this long after the last heartbeat, in ms.
RECENT_MS = 3_600_000

RoutesByPool = Mapping[str, Sequence[str]]


class WorkerRate(Protocol):
    """The part of a worker's line that the line of its model adds up."""

    @property
    def model(self) -> str:
        """The name of the worker's model."""

    @property
    def state(self) -> str:
        """`silent` if the worker's heartbeats have stopped, `loadable` if it does not hold the model."""

    @property
    def tokens_per_s(self) -> float | None:
        """Generated tokens a second; None if the rate is not known."""


@dataclass(frozen=True)
class ModelLine:
    """One model. `reason` is None while a live worker claims its jobs."""

    model: str
    reason: PoolReason | None
    #: Time since the last heartbeat of any worker, in ms; None if it is not known that the model was ever served.
    heartbeat_age_ms: int | None
    live_workers: int
    slots: int
    waiting: int
    running: int
    #: The age of the oldest queued job that is not a batch job, among the tenants of the snapshot.
    oldest_ms: int | None
    #: Generated tokens a second of the listed workers; None if the rate of none is known.
    tokens_per_s: float | None
    #: The prices of 1,000 prompt tokens and of 1,000 answer tokens.
    prompt_price_micro: int
    answer_price_micro: int
    #: The routes that have the pool as a step, sorted.
    routes: tuple[str, ...]
    #: Whether a worker holds the model; else one loads it for the jobs that are queued for it.
    is_loaded: bool = True
    #: How often in a row loading has failed, in how many ms it is tried again, and why it failed.
    load_failures: int = 0
    load_retry_in_ms: int = 0
    load_error: str = ""

    @property
    def state(self) -> str:
        """The state in two words at most."""
        if self.reason is not None:
            return _STATES[self.reason]
        return "serving" if self.is_loaded else "loadable"

    @property
    def why(self) -> str:
        """Why the model is not served, as a part of a sentence; "" if it is served."""
        if self.reason is None:
            return ""
        if self.reason is PoolReason.NO_WORKER and self.heartbeat_age_ms is None:
            return "no worker has served it"
        if self.reason is PoolReason.LOAD_FAILED:
            times = "once" if self.load_failures == 1 else f"{self.load_failures} times in a row"
            again = f"it is tried again in {-(-self.load_retry_in_ms // 1000)} s"
            return f"{_WHY[self.reason]} {times} ({self.load_error}); {again}"
        return _WHY[self.reason]


_STATES = {
    PoolReason.NO_WORKER: "no worker",
    PoolReason.DRAINING: "draining",
    PoolReason.WORKERS_RESTART: "restarting",
    PoolReason.LOAD_FAILED: "load fails",
}
_WHY = {
    PoolReason.NO_WORKER: "no worker is live",
    PoolReason.DRAINING: "all its live workers drain",
    PoolReason.WORKERS_RESTART: "its workers restart again and again",
    PoolReason.LOAD_FAILED: "it could not be loaded",
}


def routes_by_pool(routes: "Mapping[str, StoredRoute]") -> dict[str, list[str]]:
    """Return the names of the routes that use each pool, sorted."""
    found: dict[str, list[str]] = {}
    for name in sorted(routes):
        for step in routes[name].route.steps:
            found.setdefault(step.pool, []).append(name)
    return found


def model_lines(snapshot: Snapshot, workers: Iterable[WorkerRate], routes: RoutesByPool) -> list[ModelLine]:
    """Return a line for each pool that has workers or jobs, had a worker in the last hour, or is a step of a route.

    Models that are not served come first, then names decide.
    """
    rates: dict[str, list[float]] = {}
    states: dict[str, set[str]] = {}
    for worker in workers:
        states.setdefault(worker.model, set()).add(worker.state)
        if worker.state != "silent" and worker.tokens_per_s is not None:
            rates.setdefault(worker.model, []).append(worker.tokens_per_s)
    known = [pool for pool in snapshot.pools.values() if pool.model in routes or _is_listed(pool)]
    # A pool of a route that the snapshot does not have has not been served for long, if ever.
    names = {pool.model for pool in known}
    absent = [PoolView(name, 0, 0, PoolReason.NO_WORKER, 0, 0, 0, None) for name in routes if name not in names]
    lines = [_line(pool, pool.heartbeat_age_ms, rates, routes) for pool in known]
    lines += [_line(pool, None, rates, routes) for pool in absent]
    lines = [replace(line, is_loaded=states.get(line.model, set()) - {"silent"} != {"loadable"}) for line in lines]
    return sorted(lines, key=lambda line: (line.reason is None, line.model))


def _is_listed(pool: PoolView) -> bool:
    return pool.live_workers > 0 or pool.waiting > 0 or pool.running > 0 or pool.heartbeat_age_ms <= RECENT_MS


def _line(
    pool: PoolView, heartbeat_age_ms: int | None, rates: Mapping[str, list[float]], routes: RoutesByPool
) -> ModelLine:
    return ModelLine(
        model=pool.model,
        reason=pool.reason,
        heartbeat_age_ms=heartbeat_age_ms,
        live_workers=pool.live_workers,
        slots=pool.slots,
        waiting=pool.waiting,
        running=pool.running,
        oldest_ms=pool.oldest_age_ms,
        tokens_per_s=sum(rates[pool.model]) if pool.model in rates else None,
        prompt_price_micro=pool.prompt_price_micro,
        answer_price_micro=pool.answer_price_micro,
        routes=tuple(routes.get(pool.model, ())),
        load_failures=pool.load_failures,
        load_retry_in_ms=pool.load_retry_in_ms,
        load_error=pool.load_error,
    )

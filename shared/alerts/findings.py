"""Finds the conditions that hold now. `penstock doctor` and the alerts call the same functions."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from shared.accounts.budgets import Budgets
from shared.accounts.routes import Routes
from shared.alerts.conditions import (
    AHEAD_MS,
    DISK_FREE_RATIO,
    FEWEST_PROMISES,
    FEWEST_REQUESTS,
    MEMORY_RATIO,
    PROMISES_KEPT,
    WEBHOOK_AGE_MS,
    Condition,
    Finding,
    finding,
)
from shared.errors import SchemaConflict, StoreUnavailable, StoreUnfit
from shared.history.points import merged
from shared.history.stored import StoredHistory
from shared.log import LimitedEvent
from shared.settings.settings import Settings
from shared.store.crashes import find_restart_loops
from shared.store.preflight import check_fitness, check_format, find_write_fault
from shared.store.redis_errors import store_faults
from shared.store.replies import Snapshot
from shared.store.store import Store
from shared.store.webhooks import Webhooks
from shared.store_fault import StoreFault
from shared.views.models import ModelLine, model_lines, routes_by_pool

_FAILED = LimitedEvent("alerts.check_failed", interval_s=60)
#: The span whose refusals are judged, and how long a point of the history in it is.
_REFUSALS_MS, _POINT_S = 600_000, 10
#: The span whose promises are judged, and the time between two samples of their counters, in ms.
PROMISES_MS, _SAMPLE_MS = 900_000, 60_000
#: A call of all budgets reads the record of each tenant.
_BUDGETS_EVERY_S = 60.0


def unserved(client: redis.Redis, snapshot: Snapshot) -> list[ModelLine]:
    """Return the line of each model that had workers, has jobs or is used by a route, and is not served."""
    lines = model_lines(snapshot, (), routes_by_pool(Routes(client).read()[0]))
    return [line for line in lines if line.reason is not None]


def unserved_sentence(line: ModelLine) -> str:
    jobs = f"; {line.waiting} jobs wait for it" if line.waiting else ""
    routes = f"; used by the routes {', '.join(line.routes)}" if line.routes else ""
    return f"model {line.model} is not served: {line.why}{jobs}{routes}"


def unfitness(client: redis.Redis) -> tuple[str, list[str]]:
    """Return why the store's own settings could lose jobs silently, or "", and the warnings about the store."""
    try:
        check_format(client)
        return "", check_fitness(client)
    except (StoreUnfit, SchemaConflict) as error:
        return str(error), []


def undelivered_sentence(tenant: str, count: int, age_ms: int) -> str:
    return f"{count} webhooks of tenant {tenant!r} are not told yet, the oldest for {age_ms / 1000:.0f} s"


def clock_sentence(ahead_ms: int) -> str:
    return (
        f"the queue's time is {ahead_ms / 1000:.1f} s ahead of the clock of the store's machine, because "
        "that clock was set back: created_at and expiry times are wrong by as much, deadlines and leases are not "
        "(docs/runbook.md)"
    )


def store_sentence(fault: StoreFault) -> str:
    return f"the store {fault.says}. {fault.advice}."


def measured(client: redis.Redis, settings: Settings) -> list[Finding]:
    """Return the findings that need only the store's present figures: memory, disk, refusals and budgets."""
    return [*memory(client), *disk(settings), *refusals(client, settings), *budgets(client)]


def memory(client: redis.Redis) -> Iterator[Finding]:
    with store_faults(client):
        info: Any = client.info("memory")
    used, most = int(info.get("used_memory") or 0), int(info.get("maxmemory") or 0)
    if most and used > MEMORY_RATIO * most:
        yield finding(
            Condition.STORE_MEMORY,
            "",
            f"the store uses {used / most:.0%} of its maxmemory of {most / 2**20:.0f} MiB; at 100 % it admits no job",
        )


def disk(settings: Settings) -> Iterator[Finding]:
    """Judge the disk of an embedded store. That of any other store is on a machine that is not known."""
    if settings.redis_url:
        return
    try:
        space = shutil.disk_usage(settings.state_path)
    except OSError:
        return
    if space.free < DISK_FREE_RATIO * space.total:
        yield finding(
            Condition.DISK,
            "",
            f"{space.free / space.total:.1%} of the disk with the state folder is free ({space.free / 2**20:.0f} MiB); "
            "the store refuses writes when it is full",
        )


def refusals(client: redis.Redis, settings: Settings) -> Iterator[Finding]:
    history = StoredHistory(client)
    now_ms = history.now_ms()
    whole = merged(history.read(_POINT_S, now_ms - _REFUSALS_MS, now_ms))
    if whole is None:
        return
    refused = whole.total.refused
    requests = whole.total["admitted"] + sum(refused.values())
    percent = 100 * sum(refused.values()) / max(1, requests)
    if requests >= FEWEST_REQUESTS and percent > settings.alert_refusals_percent:
        reason = max(refused, key=lambda name: refused[name])
        yield finding(
            Condition.REFUSALS,
            "",
            f"{percent:.0f} % of the {requests} requests of the last ten minutes were refused, most with {reason}",
        )


def budgets(client: redis.Redis) -> Iterator[Finding]:
    for budget in Budgets(client).read_all():
        # Each cell knows of all that is used.
        if budget.used_tokens >= budget.max_tokens and budget.has_most:
            yield finding(
                Condition.BUDGET,
                f"{budget.kind} {budget.name}, {budget.period}",
                f"the {budget.kind} {budget.name} has used its {budget.max_tokens} tokens of the {budget.period}, "
                f"which begins anew at {budget.resets_at}",
            )


def promises(samples: list[tuple[int, int, int]], stats: dict[str, int], now_ms: int) -> Iterator[Finding]:
    """Judge the promises of the last 15 minutes, and add a sample of their counters to `samples`."""
    counts = {"kept": 0, "broken": 0}
    for name, value in stats.items():
        if name.startswith("promises|") and (result := name.rpartition("|")[2]) in counts:
            counts[result] += value
    kept, broken = counts["kept"], counts["broken"]
    # The counters begin anew when another store takes the place of this one.
    samples[:] = [s for s in samples if now_ms - PROMISES_MS <= s[0] <= now_ms and s[1] <= kept and s[2] <= broken]
    if not samples or now_ms - samples[-1][0] >= _SAMPLE_MS:
        samples.append((now_ms, kept, broken))
    of_these, broken_ones = kept - samples[0][1] + broken - samples[0][2], broken - samples[0][2]
    if of_these >= FEWEST_PROMISES and broken_ones > (1 - PROMISES_KEPT) * of_these:
        yield finding(
            Condition.PROMISES,
            "",
            f"{broken_ones} of {of_these} answers of the last quarter of an hour were not complete by their deadline; "
            f"{PROMISES_KEPT:.0%} should be",
        )


@dataclass(frozen=True)
class Found:
    """The conditions that hold now, and those that could not be judged now."""

    findings: list[Finding]
    unknown: frozenset[Condition]


class Finder:
    """Finds all conditions for the alerts. A check that fails leaves its condition unknown, and stops no other."""

    def __init__(self, store: Store, settings: Settings, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._store, self._settings, self._monotonic_s = store, settings, monotonic_s
        self._next_budgets_s = 0.0

    def find(self, samples: list[tuple[int, int, int]], now_ms: int) -> Found:
        """Return what holds now. Raises StoreUnavailable."""
        client, settings = self._store.client, self._settings
        snapshot = self._store.snapshot(stats=True)
        checks: dict[Condition, Callable[[], Iterator[Finding]]] = {
            Condition.STORE_REFUSES_WRITES: lambda: _writes(client),
            Condition.STORE_UNFIT: lambda: _unfit(client),
            Condition.STORE_MEMORY: lambda: memory(client),
            Condition.DISK: lambda: disk(settings),
            Condition.MODEL_NOT_SERVED: lambda: _not_served(client, snapshot),
            Condition.WORKERS_RESTART: lambda: _restarts(client),
            Condition.REFUSALS: lambda: refusals(client, settings),
            Condition.PROMISES: lambda: promises(samples, snapshot.stats, now_ms),
            Condition.WEBHOOKS_LATE: lambda: _late(client),
            Condition.CLOCK_AHEAD: lambda: _ahead(snapshot),
        }
        if self._monotonic_s() >= self._next_budgets_s:
            self._next_budgets_s = self._monotonic_s() + _BUDGETS_EVERY_S
            checks[Condition.BUDGET] = lambda: budgets(client)
        # Only doors find out whether the store answers, each for its machine.
        unknown = set(Condition) - checks.keys() - {Condition.STORE_AWAY}
        findings: list[Finding] = []
        for condition, check in checks.items():
            try:
                findings += check()
            except StoreUnavailable:
                raise
            except Exception:  # noqa: BLE001 - it is logged, but not each time
                unknown.add(condition)
                _FAILED.log("error", condition=condition.value, exc_info=True)
        return Found(findings, frozenset(unknown))


def _writes(client: redis.Redis) -> Iterator[Finding]:
    fault = find_write_fault(client)
    if fault is not None:
        yield finding(Condition.STORE_REFUSES_WRITES, "", store_sentence(fault))


def _unfit(client: redis.Redis) -> Iterator[Finding]:
    reason, _ = unfitness(client)
    if reason:
        yield finding(Condition.STORE_UNFIT, "", reason)


def _not_served(client: redis.Redis, snapshot: Snapshot) -> Iterator[Finding]:
    for line in unserved(client, snapshot):
        if line.waiting:
            yield finding(Condition.MODEL_NOT_SERVED, line.model, unserved_sentence(line))


def _restarts(client: redis.Redis) -> Iterator[Finding]:
    for loop in find_restart_loops(client):
        if loop.has_fault:
            yield finding(Condition.WORKERS_RESTART, loop.model, loop.sentence())


def _late(client: redis.Redis) -> Iterator[Finding]:
    late: Sequence[tuple[str, int, int]] = Webhooks(client).undelivered()
    for tenant, count, age_ms in late:
        if age_ms > WEBHOOK_AGE_MS:
            yield finding(Condition.WEBHOOKS_LATE, tenant, undelivered_sentence(tenant, count, age_ms))


def _ahead(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.ahead_ms > AHEAD_MS:
        yield finding(Condition.CLOCK_AHEAD, "", clock_sentence(snapshot.ahead_ms))

"""Two doors, a gate and a worker that Prometheus scrapes, and the load whose figures it shows."""

import json
import math
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from shared.accounts.api_keys import ApiKeys
from shared.accounts.budgets import Budgets
from shared.accounts.tenants import Tenants
from shared.jobs.job import new_job_id
from shared.jobs.outcomes import Outcome
from shared.jobs.tenant_policy import TenantPolicy
from tests.support.boards.expected import TOLERANCE, Expected, of, with_range
from tests.support.boards.of_load import MONTHLY_TOKENS, TENANTS, Loaded
from tests.support.builders import a_job, admitted, an_ending, heartbeat
from tests.support.gate import a_gate, port_of
from tests.support.metered_load import Ledger, Load
from tests.support.ports import free_port
from tests.support.processes import Process, Stage, wait_for
from tests.support.prometheus import Labels, Prometheus
from tests.support.scrapes import scrape

#: Four slots, 200 words a second each, and four more jobs that may be paused or queued, so that some of the clients are
#: refused. Each job may be as long as a test takes.
SIM = {
    "PENSTOCK_ENGINE": "sim",
    "PENSTOCK_SIM_DECODE_TPS": "200",
    "PENSTOCK_SIM_PREFILL_TPS": "1000",
    "PENSTOCK_GENERATED_WEIGHT": "4",
    "PENSTOCK_ADMISSION": "bounds",
    "PENSTOCK_MAX_BATCH_SIZE": "4",
    "PENSTOCK_N_CTX": "100000",
    "PENSTOCK_KV_CELLS": "1000000",
    "PENSTOCK_MAX_INFLIGHT": "8",
    "PENSTOCK_FAILED_KEYS_PER_MINUTE": "1",
    # A tenant may have this many requests open at each of the two processes of a door. Half of a head may take long.
    "PENSTOCK_MAX_TENANT_REQUESTS": "12",
    "PENSTOCK_REQUEST_HEAD_MS": "600000",
}
SLOTS, MAX_INFLIGHT = 4, 8
#: How long the load lasts, in seconds.
LEAST_S = 40
#: By how much figures may be wrong at most, as a part of them, however late a busy machine scrapes.
MOST_TOLERANCE = 0.25
#: How long Prometheus may take to store a scrape after its time, in seconds.
SCRAPED_S = 2.0
#: The worker's own counters that it also writes to the store.
COUNTED = (
    "steps",
    "idle_slot_steps",
    "computed_prompt_tokens",
    "cached_prompt_tokens",
    "completion_tokens",
    "recomputed_tokens",
    "dead_tokens",
    "decode_s",
)


@dataclass
class Scene:
    """Two doors, a gate and a worker that Prometheus scrapes."""

    stage: Stage
    doors: list[str]
    worker: Process
    #: The address of the worker's metrics.
    worker_address: str
    prometheus: Prometheus
    gate_address: str
    keys: dict[str, str]
    admin_key: str
    #: When the job that failed at the beginning ended, its tenant, and its tokens.
    failed: tuple[float, str, int]
    #: How many requests clients know to have been turned away.
    turned_away: int = 0

    def load(self) -> Load:
        return Load(self.doors, self.keys, clients=8, canceling="red")

    def wait_until_scraped(self) -> float:
        """Wait until Prometheus has read the doors' present counters from both doors; return the time."""
        for door in self.doors:
            truth = scrape(f"{door}/metrics").total("penstock_http_requests_total", route="/v1/jobs")
            of_door = f'job="penstock-door", instance="{address_of(door)}", route="/v1/jobs"'
            query = f"sum(penstock_http_requests_total{{{of_door}}})"
            wait_for(lambda query=query, truth=truth: self.value(query) == truth, "a scrape of a door", timeout_s=60)  # type: ignore[misc]
        snapshot = self.stage.store.snapshot(stats=True)
        ended = sum(value for name, value in snapshot.stats.items() if re.fullmatch(r"ended\|\w+\|sim\|\w+", name))
        for door in self.doors:
            query = f'sum(penstock_jobs_total{{job="penstock-fleet", instance="{address_of(door)}"}})'
            wait_for(lambda query=query: self.value(query) == ended, "a scrape of the fleet", timeout_s=60)  # type: ignore[misc]
        # Every target is scraped once more with the same values, so that a rate over the time before has a flat end.
        seen_s = time.time()
        all_seen = f"count(timestamp(up) > {seen_s} and up == 1) == count(up)"
        wait_for(lambda: self.value(all_seen), "another scrape of all", timeout_s=60)
        return time.time()

    def wait_until_budgets_are_scraped(self) -> float:
        """Wait until Prometheus has read the used tokens that the store counts now from both doors; return the time.

        A door reads the budgets every 15 s, so its other figures are newer.
        """
        counted = {
            of(kind=one.kind, owner=one.name, period=one.period): one.used_tokens
            for one in Budgets(self.stage.client).read_all()
        }
        query = "{extreme} by (kind, owner, period) (penstock_budget_used_tokens)"

        def seen_s() -> float | None:
            # All earlier scrapes are in the database now, so a later query for this time has the same result.
            at_s = time.time() - SCRAPED_S
            shown = [self.figures(query.format(extreme=extreme), at_s) for extreme in ("min", "max")]
            return at_s if shown == [counted, counted] else None

        return wait_for(seen_s, "a scrape of the budgets", timeout_s=120)  # type: ignore[return-value]  # is true

    def value(self, query: str) -> float | None:
        result = self.prometheus.query(query)
        return next(iter(result.values()), None)

    def reported(self) -> dict[str, float]:
        """Return what the idle worker has written to the store about itself, in a heartbeat that began after now."""
        since_ms = self.stage.store.snapshot().now_ms

        def newest() -> dict[str, float]:
            now_ms, view = self.stage.store.snapshot().now_ms, self.stage.view(self.worker)
            is_new = view is not None and now_ms - view.heartbeat_age_ms > since_ms + 100
            return {name: float(view.facts[name]) for name in (*COUNTED, "mu_wtps")} if view and is_new else {}

        return wait_for(newest, "a heartbeat", timeout_s=60)

    def shown(self, query: str, expected: Expected, from_s: float, to_s: float) -> dict[Labels, float]:
        """Return what a query shows at a time; of a rate, by how much its counters grew since another time."""
        interval_s = math.ceil(to_s - from_s)
        factor = interval_s if expected.grows else 1
        found = self.figures(with_range(query, interval_s), to_s)
        return {labels: number * factor for labels, number in found.items()}

    def tolerance(self, from_s: float, to_s: float) -> float:
        """Return by how much figures about a time may be wrong, as a part of them.

        `rate` extrapolates from the first and last scrape of a target to the ends of the time. A busy machine scrapes
        late, so how much that adds follows from when each target was scraped. It is at most MOST_TOLERANCE.
        """
        scrapes = self.prometheus.samples("up", from_s, to_s).values()
        covered_s = (max(times) - min(times) for one in scrapes if (times := [at_s for at_s, up in one if up]))
        missed = math.ceil(to_s - from_s) / max(1.0, min(covered_s)) - 1
        return min(max(TOLERANCE, missed + TOLERANCE / 4), MOST_TOLERANCE)

    def figures(self, query: str, at_s: float | None = None) -> dict[Labels, float]:
        """Return what a query shows now, or at a time, without the labels that say only what was asked for."""
        return {plain(labels): number for labels, number in self.prometheus.query(query, at_s).items()}

    def show_all_processes(self) -> None:
        """Let all processes of the doors read the store: a process knows what tenants were served since it did."""
        headers = {"Authorization": f"Bearer {self.admin_key}", "Connection": "close"}
        urls = [f"{door}/metrics/fleet" for door in self.doors for _ in range(32)]
        with httpx.Client(headers=headers, timeout=60) as http, ThreadPoolExecutor(16) as pool:
            assert {answer.status_code for answer in pool.map(http.get, urls)} == {200}

    def measure(self) -> Loaded:
        """Let the load act for a while, and return what is known of it."""
        self.show_all_processes()
        warm = self.load()
        with warm:
            # A series begins with its first count, which no rate shows.
            wait_for_everything(warm.ledger)
        self.show_all_processes()
        from_s, before = self.wait_until_scraped(), self.reported()
        load = self.load()
        with load:
            # Not a wait: the load lasts for so long.
            time.sleep(LEAST_S)
        to_s, after = self.wait_until_scraped(), self.reported()
        assert set(load.ledger.offers) <= set(warm.ledger.offers)
        assert set(load.ledger.ended) <= set(warm.ledger.ended)
        doors = f'{{job=~"penstock-(door|fleet)"}}[{math.ceil(to_s - from_s)}s]'
        scrapes = self.prometheus.query(f"sum(count_over_time(up{doors}))", to_s)[()]
        longest_s = self.prometheus.query(f"max(max_over_time(scrape_duration_seconds{doors}))", to_s)[()]
        return Loaded(
            ledger=load.ledger,
            served=warm.ledger.served + load.ledger.served,
            budgeted=[self.failed, *warm.ledger.budgeted, *load.ledger.budgeted],
            budgets_s=self.wait_until_budgets_are_scraped(),
            from_s=from_s,
            to_s=to_s,
            tolerance=self.tolerance(from_s, to_s),
            reported={name: after[name] - before[name] for name in COUNTED},
            rates={"mu_wtps": after["mu_wtps"]},
            # This test has scraped each door too.
            scrapes=scrapes + len(self.doors),
            longest_scrape_s=longest_s,
            worker=self.worker_address,
            doors_and_gate=(*map(address_of, self.doors), self.gate_address),
        )


def plain(labels: Labels) -> Labels:
    """Return the labels without those that say only what was asked for, and bounds of buckets in one form."""
    kept = (pair for pair in labels if pair[0] not in {"__name__", "job"})
    return tuple((name, repr(float(text)) if name == "le" else text) for name, text in kept)


def address_of(url: str) -> str:
    return url.removeprefix("http://")


def wait_for_everything(ledger: Ledger) -> None:
    """Wait until the ledger has an offer, an outcome and a return of each kind."""
    offers = {(tenant, verdict) for tenant in TENANTS for verdict in ("admitted", "inflight_full")}
    ended = {("blue", "succeeded"), *(("red", one) for one in ("succeeded", "canceled", "expired", "failed"))}
    returns = {(tenant, result) for tenant in TENANTS for result in ("admitted", "refused")}
    missing: list[tuple[str, str]] = []

    def has_everything() -> bool:
        with ledger.lock:
            missing[:] = [*offers - set(ledger.offers), *ended - set(ledger.ended), *returns - set(ledger.returns)]
        return not missing

    try:
        wait_for(has_everything, "each kind of offer, outcome and return", timeout_s=240)
    except AssertionError:
        assert missing == [], ledger


@contextmanager
def a_scene(folder: Path) -> Iterator[Scene]:
    """Start everything, and let one job fail and one be refused because no worker is live."""
    with Stage(folder, **SIM) as stage:
        ports = [free_port(), free_port()]
        for port in ports:
            stage.web(port, PENSTOCK_AUTH="required", PENSTOCK_WEB_WORKERS="2", PENSTOCK_LOG_LEVEL="warning")
        doors = [f"http://127.0.0.1:{port}" for port in ports]
        Tenants(stage.client).set("blue", TenantPolicy(tokens_per_month=MONTHLY_TOKENS))
        keys = {tenant: ApiKeys(stage.client).create(tenant).key for tenant in TENANTS}
        failed = fail_one(stage)
        refuse_without_worker(doors[0], keys["blue"])
        worker = stage.worker(PENSTOCK_WORKER_LISTEN="127.0.0.1:0")
        line = wait_for(lambda: worker.log_lines("worker.exporter"), "the worker's address", timeout_s=60)[0]
        address = json.loads(line)["address"]
        gate, _ = a_gate(stage, PENSTOCK_GATE_METRICS_LISTEN="127.0.0.1:0", PENSTOCK_AUTH="required")
        gate_address = f"127.0.0.1:{port_of(gate, 'gate.exporter')}"
        admin_key = (folder / "state" / "admin.key").read_text().strip()
        prometheus = Prometheus(
            stage,
            gates=[gate_address],
            doors=[address_of(door) for door in doors],
            workers=[address],
            admin_key=admin_key,
        )
        yield Scene(stage, doors, worker, address, prometheus, gate_address, keys, admin_key, failed)
        stage.assert_sound()


def refuse_without_worker(door: str, key: str) -> None:
    """Have a job refused because no worker is live."""
    body = {"prompt": "hello", "max_tokens": 5, "model": "sim"}
    answer = httpx.post(f"{door}/v1/jobs", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=30)
    assert answer.json()["reason"] == "no_worker", answer.text


def fail_one(stage: Stage) -> tuple[float, str, int]:
    """Act as a worker whose job fails, and which then ends. Return the job's end, its tenant and its tokens."""
    heartbeat(stage.store, "w0", model="sim")
    admitted(stage.store, a_job(model="sim"))
    (claimed,) = stage.store.claim("w0", new_job_id(), "sim", room=1, cells_free=4_096)
    ending = an_ending(claimed.held, Outcome.FAILED, code="engine_error")
    stage.store.settle(ending, "w0")
    stage.store.farewell("w0", "sim")
    return time.time(), "blue", ending.usage.prompt_tokens + ending.usage.completion_tokens

"""A door, a gate and a worker whose alerts a real Prometheus evaluates, and what is known when all is well."""

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from shared.accounts.api_keys import ApiKeys
from shared.accounts.tenants import Tenants
from shared.accounts.webhook_secrets import WebhookSecrets
from shared.jobs.tenant_policy import TenantPolicy
from tests.support.gate import a_gate, port_of
from tests.support.ports import free_port
from tests.support.processes import Process, Stage, wait_for
from tests.support.prometheus import Prometheus
from tests.support.receiver import SECRET

#: How long what an alert looks at must last, in place of the minutes in its `for`, in seconds.
LASTS_S = 3
#: How long a scrape may take. A busy machine needs longer for a scrape than one that only runs this test.
SCRAPE_MS = 1_000
#: How long all is well at first, in seconds, and how many jobs end well meanwhile, at least: more than the alerts about
#: parts of all jobs require.
CALM_S, CALM_JOBS = 4 * LASTS_S, 60
SLOTS = 8
SIM = {
    "PENSTOCK_ENGINE": "sim",
    "PENSTOCK_SIM_DECODE_TPS": "200",
    "PENSTOCK_SIM_PREFILL_TPS": "10000",
    "PENSTOCK_ADMISSION": "bounds",
    "PENSTOCK_MAX_BATCH_SIZE": str(SLOTS),
    "PENSTOCK_MAX_INFLIGHT": "64",
    "PENSTOCK_N_CTX": "100000",
    "PENSTOCK_KV_CELLS": "1000000",
    "PENSTOCK_LEASE_MS": "8000",
    "PENSTOCK_FAILED_KEYS_PER_MINUTE": "1",
    "PENSTOCK_MAX_TENANT_REQUESTS": "8",
    "PENSTOCK_WEBHOOK_HOSTS": "127.0.0.1",
}
#: The tenants: two that behave, one that may send a request a minute, and one with a budget.
POLICIES = {
    "blue": TenantPolicy(),
    "red": TenantPolicy(),
    "limited": TenantPolicy(rpm=1),
    "green": TenantPolicy(tokens_per_day=1_000),
}

#: The alerts about targets that do not answer, and the targets.
_BY_JOB = (
    ("PenstockDoorDown", "penstock-door"),
    ("PenstockDoorDown", "penstock-gate"),
    ("PenstockWorkerDown", "penstock-worker"),
    ("PenstockFleetUnknown", "penstock-fleet"),
)
_LONGEST_SCRAPES = "max by (job) (max_over_time(scrape_duration_seconds[1h]))"
#: The time for which one offer of a hundred waits when PenstockStoreSlow fires, in seconds.
SLOW_STORE_S = 0.1


@dataclass
class Watched:
    """A door, a gate and a worker that Prometheus watches."""

    stage: Stage
    door: str
    worker: Process
    gate: Process
    prometheus: Prometheus
    http: httpx.Client
    keys: dict[str, str]
    #: When all was well for the first time: all had been scraped, and no alert fired.
    began_s: float = 0.0
    #: How long the slowest offer took while all was well, in seconds.
    longest_offer_s: float = 0.0

    def headers(self, tenant: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[tenant]}"}

    def offer(self, tenant: str, **fields: Any) -> dict[str, Any]:
        """Offer a job, which takes 25 ms unless `fields` say otherwise; return the answer."""
        body = {"prompt": "tell me a story", "max_tokens": 5} | fields
        answer: dict[str, Any] = self.http.post(f"{self.door}/v1/jobs", json=body, headers=self.headers(tenant)).json()
        return answer

    def told_of_this_machine(self) -> set[str]:
        """Return the alerts that are right already because this machine is too busy.

        A scrape took too long, or an offer longer than the alert about a slow store allows.
        """
        slow = {dict(labels)["job"] for labels in self.prometheus.query(f"{_LONGEST_SCRAPES} >= {SCRAPE_MS / 1000}")}
        alerts = {alert for alert, job in _BY_JOB if job in slow}
        return alerts | ({"PenstockStoreSlow"} if self.longest_offer_s > SLOW_STORE_S else set())

    def fired(self) -> set[str]:
        """Return the names of all alerts that have fired since the beginning."""
        since_s = math.ceil(time.time() - self.began_s)
        firing = f'count_over_time(ALERTS{{alertstate="firing"}}[{since_s}s])'
        found = self.prometheus.query(f"count by (alertname) ({firing})")
        return {dict(labels)["alertname"] for labels in found}

    def be_calm(self) -> None:
        """Let all be well for a while."""
        # Until it has been scraped for the first time, the fleet is unknown.
        all_scraped = "count(up == 1) == 4 unless on () count(ALERTS)"
        wait_for(lambda: self.prometheus.query(all_scraped), "a scrape of each target", timeout_s=120)
        self.began_s = time.time() + 1
        until_s = time.monotonic() + CALM_S
        done = 0
        while done < CALM_JOBS or time.monotonic() < until_s:
            began_s = time.monotonic()
            ended = self.offer(("blue", "red")[done % 2])
            self.longest_offer_s = max(self.longest_offer_s, time.monotonic() - began_s)
            wait_for(lambda ended=ended: self.stage.job(ended["id"]).ended_ms is not None, "a job", timeout_s=60)  # type: ignore[misc]
            done += 1


@contextmanager
def watched(folder: Path) -> Iterator[Watched]:
    """Start a door, a gate, a worker and a Prometheus whose alerts fire soon."""
    with Stage(folder, **SIM) as stage, httpx.Client(timeout=60) as http:
        port = free_port()
        stage.web(port, PENSTOCK_AUTH="required", PENSTOCK_WEB_WORKERS="1", PENSTOCK_LOG_LEVEL="warning")
        for tenant, policy in POLICIES.items():
            Tenants(stage.client).set(tenant, policy)
        WebhookSecrets(stage.client).change("blue", SECRET)
        worker = stage.worker(PENSTOCK_WORKER_LISTEN="127.0.0.1:0")
        line = wait_for(lambda: worker.log_lines("worker.exporter"), "the worker's address", timeout_s=60)[0]
        gate, _ = a_gate(stage, PENSTOCK_GATE_METRICS_LISTEN="127.0.0.1:0", PENSTOCK_AUTH="required")
        prometheus = Prometheus(
            stage,
            gates=[f"127.0.0.1:{port_of(gate, 'gate.exporter')}"],
            doors=[f"127.0.0.1:{port}"],
            workers=[json.loads(line)["address"]],
            admin_key=(folder / "state" / "admin.key").read_text().strip(),
            scrape_ms=SCRAPE_MS,
            alerts_after_s=LASTS_S,
        )
        secrets = {tenant: ApiKeys(stage.client).create(tenant).key for tenant in POLICIES}
        yield Watched(stage, f"http://127.0.0.1:{port}", worker, gate, prometheus, http, secrets)

"""The expected values of gauge panels while jobs stand still, derived from the clients, the store and the processes."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from shared.store import keys
from tests.support.boards.expected import ALL, Comparisons, Expected, of, value
from tests.support.boards.of_load import TENANTS
from tests.support.boards.scene import MAX_INFLIGHT, SLOTS, Scene, address_of
from tests.support.processes import wait_for

#: The values of /metrics/fleet are up to two seconds old (docs/metrics.md), and Prometheus scrapes twice a second.
OLDEST_S = 3.0
#: The jobs are so long that none of them ends by itself.
LONG_TOKENS = 60_000
PROMPT = "tell me a story"


@dataclass
class Still:
    """Long jobs, the connections that are open and the jobs that are followed; all of it is the clients' own."""

    scene: Scene
    #: The URL of each job at its door, and its tenant.
    jobs: list[tuple[str, str]] = field(default_factory=list)
    #: How many connections this client has to each door, and how many jobs it follows there.
    connections: dict[str, int] = field(default_factory=dict)
    followed: dict[str, int] = field(default_factory=dict)
    #: Of a board of one tenant: that tenant.
    tenant: str = "blue"
    #: The time of the query.
    at_s: float = 0.0
    #: Its connections end with each answer, so that they are not among those that are open.
    http: httpx.Client = field(default_factory=lambda: httpx.Client(headers={"Connection": "close"}, timeout=30))

    def submit(self, tenant: str, number: int, **fields: object) -> None:
        """Submit long jobs, at each door in turn."""
        for _ in range(number):
            door = self.scene.doors[len(self.jobs) % 2]
            body = {
                "prompt": PROMPT,
                "max_tokens": LONG_TOKENS,
                "deadline_ms": 600_000,
                "seed": len(self.jobs),
            } | fields
            answer = self.http.post(f"{door}/v1/jobs", json=body, headers=self.headers(tenant))
            assert answer.status_code == 202, answer.text
            self.jobs.append((f"{door}/v1/jobs/{answer.json()['id']}", tenant))

    def cancel_all(self) -> None:
        for url, tenant in self.jobs:
            self.http.delete(url, headers=self.headers(tenant))

    def headers(self, tenant: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.scene.keys[tenant]}"}

    def views(self, *tenants: str) -> list[dict[str, Any]]:
        """Return the jobs of the tenants that have not ended, as their clients read them."""
        door, found = self.scene.doors[0], []
        for tenant in tenants or TENANTS:
            for status in ("queued", "running"):
                page = self.http.get(f"{door}/v1/jobs", params={"status": status}, headers=self.headers(tenant)).json()
                found += page["data"]
        return found

    def count(self, status: str, *tenants: str) -> int:
        return sum(job["status"] == status for job in self.views(*tenants))

    def paused(self) -> int:
        """Return how many jobs the store's records call paused."""
        ids = [url.rpartition("/")[2] for url, _ in self.jobs]
        return sum(bool(self.scene.stage.client.hget(keys.rq_job(one), "penstock_paused_since_ms")) for one in ids)

    def oldest_age_s(self, tenant: str) -> float | None:
        """Return how long the tenant's oldest queued job had waited at the time of the query; None without any."""
        queued = [job["created_at"] for job in self.views(tenant) if job["status"] == "queued"]
        return self.at_s - min(queued) if queued else None


@contextmanager
def a_still(scene: Scene, *, is_crowded: bool) -> Iterator[Still]:
    """Let long jobs stand still while clients have connections and follow some of them; cancel them at the end.

    If it is crowded, the jobs of blue have all slots before those of red come, so that some are paused and some queued.
    """
    it = Still(scene)
    with ExitStack() as stack:
        stack.callback(it.cancel_all)
        it.submit("blue", 6 if is_crowded else 1)
        wait_for(lambda: it.count("running") == (SLOTS if is_crowded else 1), "running jobs", timeout_s=60)
        if is_crowded:
            it.submit("red", 2)
            wait_for(lambda: it.paused() == 2, "paused jobs", timeout_s=60)
        for door, connections in zip(scene.doors, (5, 3), strict=True):
            for _ in range(connections):
                stack.enter_context(connect(door)).sendall(b"GET /health HTTP/1.1\r\n")
            it.connections[door] = connections
        for url, tenant in it.jobs[:3] if is_crowded else it.jobs[:1]:
            stream = httpx.stream("GET", f"{url}/events", headers=it.headers(tenant), timeout=60)
            stack.enter_context(stream)
            door = url.partition("/v1/")[0]
            for counted in (it.connections, it.followed):
                counted[door] = counted.get(door, 0) + 1
        yield it


def connect(door: str) -> socket.socket:
    """Return a new connection to a door."""
    host, _, port = address_of(door).partition(":")
    return socket.create_connection((host, int(port)), timeout=60)


GAUGES = Comparisons[Still]()


@GAUGES.of("overview: Workers")
def _workers(it: Still) -> list[Expected]:
    return [value(float(it.scene.worker.alive))]


@GAUGES.of("overview: Inflight")
def _inflight(it: Still) -> list[Expected]:
    return [value(len(it.views()))]


@GAUGES.of("overview: Inflight jobs")
def _inflight_jobs(it: Still) -> list[Expected]:
    return [value(len(it.views())), value(MAX_INFLIGHT), value(SLOTS)]


@GAUGES.of("overview: Paused")
def _paused(it: Still) -> list[Expected]:
    return [value(it.paused())]


@GAUGES.of("overview: Queued jobs")
def _queued(it: Still) -> list[Expected]:
    return [Expected({of(tenant=tenant): it.count("queued", tenant) for tenant in it.scene.keys})]


@GAUGES.of("tenant: Queued and running jobs")
def _queued_and_running(it: Still) -> list[Expected]:
    return [value(it.count(status, it.tenant)) for status in ("queued", "running")]


@GAUGES.of("overview: Oldest queued job")
def _oldest(it: Still) -> list[Expected]:
    ages = {of(tenant=tenant): it.oldest_age_s(tenant) for tenant in it.scene.keys}
    return [Expected({labels: (age_s - OLDEST_S, age_s) for labels, age_s in ages.items() if age_s is not None})]


@GAUGES.of("tenant: Oldest queued job")
def _oldest_of_tenant(it: Still) -> list[Expected]:
    age_s = it.oldest_age_s(it.tenant)
    return [Expected({} if age_s is None else {ALL: (age_s - OLDEST_S, age_s)})]


@GAUGES.of("overview: Backlog")
def _backlog(it: Still) -> list[Expected]:
    """The work of a queued job is what its record says: answers are expected to be as long as those before them."""
    records = [keys.rq_job(job["id"]) for job in it.views() if job["status"] == "queued"]
    weighted = [int(it.scene.stage.client.hget(key, "penstock_cost_mwt") or 0) / 1000 for key in records]
    return [Expected({of(model_name="sim"): sum(weighted) / it.scene.reported()["mu_wtps"]})]


@GAUGES.of("overview: Busy slots")
def _busy(it: Still) -> list[Expected]:
    return [Expected({of(model_name="sim"): min(1.0, it.count("running") / SLOTS)})]


@GAUGES.of("overview: Connections")
def _connections(it: Still) -> list[Expected]:
    """Prometheus has two connections to each door: one for each of the two pages that it scrapes."""
    return [
        Expected({of(instance=address_of(door)): it.connections.get(door, 0) + 2 for door in it.scene.doors}),
        Expected({of(instance=address_of(door)): it.followed.get(door, 0) for door in it.scene.doors}),
    ]


@GAUGES.of("worker: Slots")
def _slots(it: Still) -> list[Expected]:
    paused = it.paused()
    figures = (it.count("running") - paused, SLOTS, paused)
    return [Expected({of(instance=it.scene.worker_address): figure}) for figure in figures]


@GAUGES.of("worker: KV cells")
def _cells(it: Still) -> list[Expected]:
    view = it.scene.stage.view(it.scene.worker)
    assert view is not None
    return [Expected({of(instance=it.scene.worker_address): 1 - view.cells_free / view.cells})]


@GAUGES.of("worker: Is it up")
def _is_up(it: Still) -> list[Expected]:
    return [Expected({of(instance=it.scene.worker_address): float(it.scene.worker.alive)})]

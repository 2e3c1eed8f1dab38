"""The boards and rules on a real Prometheus that scrapes two doors, a gate and a worker: right figures, none twice."""

import json
import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import yaml

from shared.accounts.api_keys import ApiKeys
from shared.accounts.tenants import Tenants
from shared.jobs.job import new_job_id
from shared.jobs.outcomes import Outcome
from shared.jobs.tenant_policy import TenantPolicy
from tests.support.builders import a_job, admitted, an_ending, heartbeat
from tests.support.gate import a_gate, port_of
from tests.support.metered_load import Ledger, Load
from tests.support.ports import free_port
from tests.support.processes import ROOT, Stage, wait_for
from tests.support.prometheus import Labels, Prometheus, needs_prometheus
from tests.support.scrapes import scrape

pytestmark = [
    needs_prometheus,
    # The load lasts for most of a minute, and a busy machine needs several times as long for all around it.
    pytest.mark.timeout(600),
    pytest.mark.ways("direct", reason="the tests are about what Prometheus reads from the doors"),
]

#: Four slots, 200 words a second each, and two more jobs that may wait, so that some of the clients are refused.
SIM = {
    "PENSTOCK_ENGINE": "sim",
    "PENSTOCK_SIM_DECODE_TPS": "200",
    "PENSTOCK_SIM_PREFILL_TPS": "1000",
    "PENSTOCK_ADMISSION": "bounds",
    "PENSTOCK_MAX_BATCH_SIZE": "4",
    "PENSTOCK_MAX_INFLIGHT": "6",
    "PENSTOCK_FAILED_KEYS_PER_MINUTE": "1",
}
#: By how much a figure may differ from the ledger. `rate` extrapolates to the ends of its time, so with two scrapes a
#: second a time of 40 s is 1.25 % too long.
TOLERANCE, LEAST_S = 0.02, 40


#: The ledger of a load, and the times between which Prometheus saw all of it and nothing else.
Measured = tuple[Ledger, float, float]


@dataclass
class Scene:
    """Two doors, a gate and a worker that Prometheus scrapes."""

    stage: Stage
    doors: list[str]
    worker: str
    prometheus: Prometheus
    keys: dict[str, str]

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
        wait_for(lambda: (self.value("min(timestamp(up))") or 0) > seen_s, "another scrape", timeout_s=60)
        return time.time()

    def value(self, query: str) -> float | None:
        result = self.prometheus.query(query)
        return next(iter(result.values()), None)


def address_of(url: str) -> str:
    return url.removeprefix("http://")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("prometheus")
    with Stage(folder, **SIM) as stage:
        ports = [free_port(), free_port()]
        for port in ports:
            stage.web(port, PENSTOCK_AUTH="required", PENSTOCK_WEB_WORKERS="2", PENSTOCK_LOG_LEVEL="warning")
        doors = [f"http://127.0.0.1:{port}" for port in ports]
        Tenants(stage.client).set("blue", TenantPolicy(tokens_per_day=10**9))
        keys = {tenant: ApiKeys(stage.client).create(tenant).key for tenant in ("blue", "red")}
        fail_one(stage)
        refuse_without_worker(doors[0], keys["blue"])
        worker = stage.worker(PENSTOCK_WORKER_LISTEN="127.0.0.1:0")
        line = wait_for(lambda: worker.log_lines("worker.exporter"), "the worker's address")[0]
        gate, _ = a_gate(stage, PENSTOCK_GATE_METRICS_LISTEN="127.0.0.1:0", PENSTOCK_AUTH="required")
        prometheus = Prometheus(
            stage,
            gates=[f"127.0.0.1:{port_of(gate, 'gate.exporter')}"],
            doors=[address_of(door) for door in doors],
            workers=[json.loads(line)["address"]],
            admin_key=(folder / "state" / "admin.key").read_text().strip(),
        )
        yield Scene(stage, doors, json.loads(line)["address"], prometheus, keys)
        stage.assert_sound()


def refuse_without_worker(door: str, key: str) -> None:
    """Have a job refused because no worker is live."""
    body = {"prompt": "hello", "max_tokens": 5, "model": "sim"}
    answer = httpx.post(f"{door}/v1/jobs", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=30)
    assert answer.json()["reason"] == "no_worker", answer.text


def fail_one(stage: Stage) -> None:
    """Act as a worker whose job fails, and which then ends."""
    heartbeat(stage.store, "w0", model="sim")
    admitted(stage.store, a_job(model="sim"))
    (claimed,) = stage.store.claim("w0", new_job_id(), "sim", room=1, cells_free=4_096)
    stage.store.settle(an_ending(claimed.held, Outcome.FAILED, code="engine_error"), "w0")
    stage.store.farewell("w0", "sim")


@pytest.fixture(scope="module")
def measured(scene: Scene) -> Measured:
    """What the clients of a load have counted, and between which times Prometheus saw all of it and nothing else."""
    warm = scene.load()
    with warm:
        # A series begins with its first count, which no rate shows.
        wait_for(lambda: has_everything(warm.ledger), "each kind of offer and outcome", timeout_s=120)
    from_s = scene.wait_until_scraped()
    load = scene.load()
    with load:
        # Not a wait: the load lasts for so long.
        time.sleep(LEAST_S)
    to_s = scene.wait_until_scraped()
    assert set(load.ledger.offers) <= set(warm.ledger.offers)
    assert set(load.ledger.ended) <= set(warm.ledger.ended)
    return load.ledger, from_s, to_s


def has_everything(ledger: Ledger) -> bool:
    with ledger.lock:
        offers = {(tenant, verdict) for tenant in ("blue", "red") for verdict in ("admitted", "inflight_full")}
        ended = {("blue", "succeeded"), ("red", "succeeded"), ("red", "canceled"), ("red", "expired")}
        return offers <= set(ledger.offers) and ended <= set(ledger.ended)


def panels(board: str) -> dict[str, list[str]]:
    """Return the expressions of a board's panels, by title."""
    content = json.loads((ROOT / "deploy" / "grafana" / "boards" / f"{board}.json").read_text(encoding="utf-8"))
    return {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in content["panels"]}


def filled(expression: str, *, interval_s: int = 60, tenant: str = "red", instance: str = "") -> str:
    """Return an expression with Grafana's variables replaced."""
    for name, value in {"__rate_interval": f"{interval_s}s", "tenant": tenant, "instance": instance}.items():
        expression = expression.replace(f"${name}", value)
    assert "$" not in expression
    return expression


def growth(scene: Scene, measured: Measured, expression: str, tenant: str = "") -> dict[Labels, float]:
    """Return by how much the figures of a panel grew in the measured time, without those that did not."""
    _, from_s, to_s = measured
    interval_s = math.ceil(to_s - from_s)
    rates = scene.prometheus.query(filled(expression, interval_s=interval_s, tenant=tenant), to_s)
    return {labels: value * interval_s for labels, value in rates.items() if value}


def about(count: float) -> Any:
    return pytest.approx(count, rel=TOLERANCE)


def test_offers_and_outcomes_are_those_of_the_clients_and_none_counts_twice(scene: Scene, measured: Measured) -> None:
    ledger = measured[0]
    admitted, refused = panels("overview")["Admitted and refused"]
    assert growth(scene, measured, admitted) == {(): about(sum(ledger.offers[t, "admitted"] for t in ("blue", "red")))}
    assert growth(scene, measured, refused) == {
        (("reason", "inflight_full"),): about(sum(ledger.offers[t, "inflight_full"] for t in ("blue", "red")))
    }
    (ended,) = panels("overview")["Ended jobs"]
    assert growth(scene, measured, ended) == {
        (("outcome", outcome),): about(sum(ledger.ended[t, outcome] for t in ("blue", "red")))
        for outcome in ("succeeded", "canceled", "expired")
    }
    (statuses,) = panels("overview")["HTTP requests"]
    by_status = growth(scene, measured, statuses)
    # The scrapes themselves are answered with 200.
    assert {status: by_status[(("status", status),)] for status in ("202", "503")} == {
        status: about(ledger.statuses[status]) for status in ("202", "503")
    }


def test_the_figures_of_one_tenant_are_those_of_its_clients(scene: Scene, measured: Measured) -> None:
    ledger, board = measured[0], panels("tenant")
    for tenant in ("blue", "red"):
        admitted, refused = board["Admitted and refused"]
        assert growth(scene, measured, admitted, tenant) == {(): about(ledger.offers[tenant, "admitted"])}
        assert growth(scene, measured, refused, tenant) == {
            (("reason", "inflight_full"),): about(ledger.offers[tenant, "inflight_full"])
        }
        ended = growth(scene, measured, board["Ended jobs"][0], tenant)
        assert ended == {(("outcome", o),): about(n) for (t, o), n in ledger.ended.items() if t == tenant}
    tokens = growth(scene, measured, board["Tokens"][0], "blue")
    assert {kind: tokens[(("kind", kind),)] for kind in ("prompt", "completion")} == {
        kind: about(ledger.tokens["blue", kind]) for kind in ("prompt", "completion")
    }
    promises = growth(scene, measured, board["Promises"][0], "blue")
    assert promises[(("result", "kept"),)] == about(ledger.ended["blue", "succeeded"])


def test_the_quantiles_of_the_time_to_the_first_token_are_those_that_clients_were_told(
    scene: Scene, measured: Measured
) -> None:
    ledger, from_s, to_s = measured
    for part, expression in zip((0.5, 0.99), panels("tenant")["Time to the first token"], strict=True):
        query = filled(expression, interval_s=math.ceil(to_s - from_s), tenant="blue")
        assert scene.prometheus.query(query, to_s) == {
            (("model_name", "sim"),): about(ledger.ttft_quantile_s("blue", part))
        }


def test_inflight_jobs_are_counted_once_although_two_doors_tell_them(scene: Scene) -> None:
    (inflight,) = panels("overview")["Inflight"]
    urls = []
    with httpx.Client(headers={"Authorization": f"Bearer {scene.keys['blue']}"}, timeout=30) as http:
        for number in range(5):
            door = scene.doors[number % 2]
            answer = http.post(f"{door}/v1/jobs", json={"prompt": "tell me a story", "max_tokens": 8_000})
            assert answer.status_code == 202, answer.text
            urls.append(f"{door}/v1/jobs/{answer.json()['id']}")
        wait_for(lambda: scene.value(inflight) == 5, "the five jobs to be seen")
        for url in urls:
            http.delete(url)
    wait_for(lambda: scene.value(inflight) == 0, "the five jobs to have ended", timeout_s=60)


def selectors(expression: str) -> set[str]:
    """Return the selectors of series in an expression, without the times of ranges."""
    return {match[0] for match in re.finditer(r"\b(?:penstock[\w:]*|up)(?:\{[^}]*\})?(?=[\s)\[/]|$)", expression)}


def test_every_panel_and_every_rule_has_a_result_under_load(scene: Scene) -> None:
    expressions = {
        f"{board}: {title}, {number}": filled(expression, instance=scene.worker)
        for board in ("overview", "tenant", "worker")
        for title, of_panel in panels(board).items()
        for number, expression in enumerate(of_panel)
    }
    for file in ("recording.yml", "alerts.yml"):
        for group in yaml.safe_load((ROOT / "deploy" / "prometheus" / file).read_text())["groups"]:
            for rule in group["rules"]:
                # An alert has a result only when it fires, so what it looks at must have one.
                found = selectors(rule["expr"])
                assert found, rule
                expressions |= {f"{rule.get('alert', rule.get('record'))}: {one}": one for one in found}
    with scene.load():
        for door in scene.doors:
            for number in range(3):
                httpx.get(f"{door}/v1/queue", headers={"Authorization": f"Bearer psk_wrong{number}"}, timeout=30)
        without: set[str] = set(expressions)

        def each_had_a_result() -> bool:
            without.difference_update(name for name in list(without) if scene.prometheus.query(expressions[name]))
            return not without

        try:
            wait_for(each_had_a_result, "a result for each expression", timeout_s=90)
        except AssertionError:
            assert without == set()
    assert [rule for rule in scene.prometheus.rules() if rule["health"] != "ok" or rule.get("lastError")] == []


def test_the_figures_by_which_pools_are_scaled_show_a_busy_pool_with_queued_work_and_an_idle_one(scene: Scene) -> None:
    busy = 'max(penstock_pool_busy_ratio{model_name="sim"})'
    backlog_s = 'max(penstock_pool_backlog_seconds{model_name="sim"})'
    with scene.load():
        wait_for(lambda: scene.value(busy) == 1, "all slots to be busy", timeout_s=90)
        wait_for(lambda: (scene.value(backlog_s) or 0) > 0, "queued work", timeout_s=90)
    wait_for(lambda: (scene.value(busy), scene.value(backlog_s)) == (0, 0), "the pool to be idle", timeout_s=90)

"""The boards and rules on a real Prometheus that scrapes two doors, a gate and a worker: right figures, none twice."""

import re
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import httpx
import pytest
import yaml

from tests.support.boards.expected import filled, growth, of, panels
from tests.support.boards.of_load import RATES, TENANTS, Loaded
from tests.support.boards.of_rules import RULES, WITHOUT_LEDGER, figure, rules
from tests.support.boards.of_state import GAUGES, Still, a_still, connect
from tests.support.boards.scene import Scene, a_scene
from tests.support.processes import ROOT, wait_for
from tests.support.prometheus import needs_prometheus
from tests.support.scrapes import scrape

pytestmark = [
    needs_prometheus,
    # The load lasts for most of a minute, and a busy machine needs several times as long for all around it.
    pytest.mark.timeout(600),
    pytest.mark.ways("direct", reason="the tests are about what Prometheus reads from the doors"),
]


#: Longer than all these tests take, in seconds.
LONGEST_S = 3_600
#: Panels with a test of their own.
OTHERS = {"overview: Turned away": "test_requests_that_are_turned_away_are_counted_as_their_client_counts_them"}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with a_scene(tmp_path_factory.mktemp("prometheus")) as scene:
        yield scene


@pytest.fixture(scope="module")
def loaded(scene: Scene) -> Loaded:
    """A load and its ledger, and the times between which Prometheus saw all of it and nothing else.

    No other fixture or test may send jobs before: what tenants were served counts from the start of the doors on.
    """
    return scene.measure()


def test_every_panel_is_compared_with_what_others_know() -> None:
    compared = {*RATES.by_panel, *GAUGES.by_panel, *OTHERS}
    assert compared == set(panels()), "each panel needs a function in tests/support/boards, and no other has one"
    assert len(compared) == len(RATES.by_panel) + len(GAUGES.by_panel) + len(OTHERS)
    assert [test for test in OTHERS.values() if test not in globals()] == []


@pytest.mark.parametrize("panel", RATES.by_panel)
def test_a_panel_shows_what_the_clients_of_a_load_counted(scene: Scene, loaded: Loaded, panel: str) -> None:
    for tenant in TENANTS if panel.startswith("tenant") else ("",):
        it = replace(loaded, tenants=(tenant,)) if tenant else loaded
        expected = RATES.by_panel[panel](it)
        queries = [
            filled(query, interval_s=60, tenant=tenant, instance=scene.worker_address) for query in panels()[panel]
        ]
        for query, one in zip(queries, expected, strict=True):
            shown = scene.shown(query, one, loaded.from_s, loaded.to_s)
            assert one.differences(shown, loaded.tolerance) == {}, (tenant, query)


def test_every_rule_is_compared_with_what_others_know() -> None:
    named = {*rules("recording.yml"), *rules("alerts.yml")}
    assert {*RULES.by_panel, *WITHOUT_LEDGER} == named, "each rule needs a function in tests/support/boards/of_rules.py"
    assert RULES.by_panel.keys() & WITHOUT_LEDGER.keys() == set()


@pytest.mark.parametrize("rule", RULES.by_panel)
def test_a_rule_records_or_looks_at_what_the_clients_of_a_load_counted(scene: Scene, loaded: Loaded, rule: str) -> None:
    (expected,) = RULES.by_panel[rule](loaded)
    to_s = loaded.budgets_s if "penstock_budget" in figure(rule) else loaded.to_s
    shown = scene.shown(figure(rule), expected, loaded.from_s, to_s)
    assert expected.differences(shown, loaded.tolerance) == {}


def selectors(expression: str) -> set[str]:
    """Return the selectors of series in an expression, without the times of ranges."""
    return {match[0] for match in re.finditer(r"\b(?:penstock[\w:]*|up)(?:\{[^}]*\})?(?=[\s)\[/]|$)", expression)}


def test_what_every_rule_looks_at_has_a_result_under_load(scene: Scene, loaded: Loaded) -> None:
    expressions = {}
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
        # Only doors over several cells have this metric.
        without = {name for name in expressions if not name.startswith("PenstockCellAway: ")}

        def each_had_a_result() -> bool:
            without.difference_update(name for name in list(without) if scene.prometheus.query(expressions[name]))
            return not without

        try:
            wait_for(each_had_a_result, "a result for each expression", timeout_s=90)
        except AssertionError:
            assert without == set()
    assert [rule for rule in scene.prometheus.rules() if rule["health"] != "ok" or rule.get("lastError")] == []


@pytest.fixture(scope="module", params=["crowded", "nearly idle"])
def still(scene: Scene, loaded: Loaded, request: pytest.FixtureRequest) -> Iterator[Still]:
    """Long jobs that stand still: with paused and queued ones, or few enough for all of them to run."""
    with a_still(scene, is_crowded=request.param == "crowded") as it:
        yield it


@pytest.mark.parametrize("panel", GAUGES.by_panel)
def test_a_panel_shows_how_things_stand(scene: Scene, still: Still, panel: str) -> None:
    for tenant in TENANTS if panel.startswith("tenant") else ("",):
        it = replace(still, tenant=tenant)
        queries = [filled(query, tenant=tenant, instance=scene.worker_address) for query in panels()[panel]]
        found: list[object] = []

        def agrees(it: Still = it, queries: list[str] = queries, found: list[object] = found) -> bool:
            it.at_s = time.time()
            shown = [scene.figures(query, it.at_s) for query in queries]
            pairs = zip(queries, GAUGES.by_panel[panel](it), shown, strict=True)
            found[:] = [(query, wrong) for query, one, figures in pairs if (wrong := one.differences(figures))]
            return not found

        try:
            # The store changes until the jobs stand still, and the panel follows it.
            wait_for(agrees, f"{panel} to show how things stand", timeout_s=60)
        except AssertionError:
            assert found == []


def test_requests_that_are_turned_away_are_counted_as_their_client_counts_them(scene: Scene, still: Still) -> None:
    (query,) = map(filled, panels()["overview: Turned away"])
    url, tenant = still.jobs[0]
    door, path = url[: url.index("/v1/")], url[url.index("/v1/") :]
    lines = [f"GET {path}?wait_ms=60000 HTTP/1.1", "Host: localhost", f"Authorization: Bearer {scene.keys[tenant]}"]
    request = "".join(f"{line}\r\n" for line in (*lines, "")).encode()
    # Each of the door's two processes lets twelve requests of a tenant wait.
    number, least = 100, 100 - 2 * 12
    with ExitStack() as stack:
        waiting = [stack.enter_context(connect(door)) for _ in range(number)]
        for one in waiting:
            one.sendall(request)
        turned_away: list[socket.socket] = []

        def agrees() -> bool:
            turned_away[:] = select.select(waiting, [], [], 0)[0]
            expected = growth({of(bound="tenant_requests_full"): scene.turned_away + len(turned_away)})
            # These series exist from the door's start on, so that no growth is missing.
            shown = scene.shown(query, expected, time.time() - LONGEST_S, time.time())
            return len(turned_away) >= least and expected.differences(shown) == {}

        wait_for(agrees, "the requests that are turned away", timeout_s=60)
        scene.turned_away += len(turned_away)
        assert all(b"tenant_requests_full" in one.recv(4096) for one in turned_away)

    def is_free() -> bool:
        """Prometheus and this scrape have three connections at most."""
        return scrape(f"{door}/metrics").total("penstock_http_connections") <= still.connections[door] + 3

    # Until the door has seen that the clients are gone, it turns away the tenant's requests of the next test.
    wait_for(is_free, "the connections to end", timeout_s=90)

"""The configuration and the rules for Prometheus: valid, fire when they must, and name what exists."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.exported import RECORDINGS, ROOT, exported_by_doors, names_in
from tests.support.prometheus import PROMTOOL, needs_prometheus
from tools.boards.grafana import Board
from tools.boards.overview import OVERVIEW
from tools.boards.tenant import TENANT
from web.gate.connection_table import GateBound
from web.http.connection_bounds import DoorBound

FOLDER = ROOT / "deploy" / "prometheus"
TESTS = [Path(__file__).parent / name for name in ("alerts.yml", "disk.yml")]


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def rules_of(name: str) -> list[dict[str, Any]]:
    return [rule for group in load(FOLDER / name)["groups"] for rule in group["rules"]]


ALERTS = rules_of("alerts.yml") + rules_of("disk.yml")


def promtool(*arguments: str) -> None:
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
def test_the_configuration_and_the_rules_are_valid(tmp_path: Path) -> None:
    for file in FOLDER.glob("*.yml"):
        (tmp_path / file.name).write_text(file.read_text())
    (tmp_path / "admin-key").write_text("key")
    promtool("check", "config", str(tmp_path / "prometheus.yml"))


@needs_prometheus
def test_each_alert_fires_in_its_situation_and_in_no_other() -> None:
    promtool("test", "rules", *map(str, TESTS))


@pytest.mark.parametrize("alert", [alert["alert"] for alert in ALERTS])
def test_each_alert_has_a_situation_in_which_it_fires(alert: str) -> None:
    expected = [
        sample["labels"]
        for file in TESTS
        for test in load(file)["tests"]
        for query in test.get("promql_expr_test", [])
        for sample in query["exp_samples"]
    ]
    assert any(f'alertname="{alert}"' in labels for labels in expected)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_each_alert_says_how_urgent_it_is_and_links_to_its_heading_in_the_runbook(alert: dict[str, Any]) -> None:
    assert alert["labels"] in ({"severity": "page"}, {"severity": "ticket"})
    # A link without a host would lead to Alertmanager's own.
    base, _, target = alert["annotations"]["runbook_url"].partition(" }}/")
    page, _, anchor = target.partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert base == "{{ $externalLabels.penstock_docs"
    assert anchor == alert["alert"].lower()
    assert alert["alert"] in headings


def test_the_example_of_alertmanager_routes_every_alert_and_names_only_alerts_that_exist() -> None:
    example = load(FOLDER / "alertmanager.yml")
    receivers = {receiver["name"] for receiver in example["receivers"]}
    used = [example["route"], *example["route"]["routes"]]
    assert {route["receiver"] for route in used} == receivers
    assert {matcher for route in used for matcher in route.get("matchers", [])} == {'severity="page"'}
    known = {alert["alert"] for alert in ALERTS}
    for rule in example["inhibit_rules"]:
        for matcher in rule["source_matchers"] + rule["target_matchers"]:
            name, names = re.split(r"=~?", matcher, maxsplit=1)
            assert name == "alertname"
            assert set(names.strip('"').split("|")) <= known


def test_the_configuration_names_where_the_docs_are() -> None:
    external = load(FOLDER / "prometheus.yml")["global"]["external_labels"]
    assert re.fullmatch(r"https://[^/]+/[^ ]*[^/]", external["penstock_docs"])


def test_the_runbook_names_each_bound_at_which_a_door_or_a_gate_turns_clients_away() -> None:
    page = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    section = page.partition("### PenstockConnectionsTurnedAway\n")[2].partition("\n### ")[0]
    assert [bound for bound in (*DoorBound, *GateBound) if f"`{bound.value}`" not in section] == []


def test_the_operators_key_is_readable_for_its_owner_only_and_cannot_be_committed(tmp_path: Path) -> None:
    command = re.search(
        r"^\$ (.*penstock admin-keys add .*)$", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE
    )
    assert command is not None
    program = tmp_path / "penstock"
    program.write_text("#!/bin/sh\necho the-key\n")
    program.chmod(0o755)
    (tmp_path / "deploy" / "prometheus").mkdir(parents=True)
    shell = ["sh", "-c", f"umask 022\nPATH={tmp_path}:$PATH\n{command[1]}"]
    subprocess.run(shell, check=True, cwd=tmp_path, timeout=60)
    (key,) = (tmp_path / "deploy" / "prometheus").iterdir()
    assert (key.read_text(), key.stat().st_mode & 0o777) == ("the-key\n", 0o600)
    assert str(key.relative_to(tmp_path)) in (ROOT / ".gitignore").read_text().splitlines()


def queued_jobs_of(board: Board) -> list[str]:
    """Return the queries of a board about queued jobs."""
    return [expr for panel in board.panels for expr, _ in panel.queries if "penstock_jobs_waiting" in expr]


@needs_prometheus
@pytest.mark.parametrize("board", [OVERVIEW, TENANT], ids=lambda board: board.uid)
def test_queued_jobs_count_once_while_two_doors_disagree_about_their_model(board: Board, tmp_path: Path) -> None:
    of_tenant = 'job="penstock-fleet", tenant="blue"'
    series = [
        # One door has seen only one model so far, and names it.
        {"series": f'penstock_jobs_waiting{{{of_tenant}, instance="a:8000", model_name="m"}}', "values": "7x9"},
        {"series": f'penstock_jobs_waiting{{{of_tenant}, instance="b:8000", model_name=""}}', "values": "6x9"},
    ]
    (query,) = queued_jobs_of(board)
    labels = '{tenant="blue"}' if board is OVERVIEW else "{}"
    expected = [{"labels": labels, "value": 7}]
    asked = [{"expr": query.replace("$tenant", "blue"), "eval_time": "5m", "exp_samples": expected}]
    tests = {"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": asked}]}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(tests))
    promtool("test", "rules", str(tmp_path / "tests.yml"))


def test_the_runbook_has_no_alert_that_does_not_exist() -> None:
    page = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^### (Penstock\w+)$", page, re.MULTILINE)) == {alert["alert"] for alert in ALERTS}


@pytest.mark.parametrize(
    "rule", ALERTS + rules_of("recording.yml"), ids=lambda rule: rule.get("alert") or rule["record"]
)
def test_each_rule_uses_metrics_that_exist(rule: dict[str, Any]) -> None:
    named = names_in(rule["expr"])
    # Others are about the scrapes themselves, or about disks.
    assert named or re.search(r"\bup\{|\bnode_filesystem_|\bkubelet_volume_", rule["expr"])
    assert named - exported_by_doors() - RECORDINGS == set()

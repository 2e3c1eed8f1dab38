"""The configuration and the rules for Prometheus: valid, fire when they must, and name what exists."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.exported import RECORDINGS, ROOT, exported_by_doors, names_in
from tests.support.prometheus import PROMTOOL, needs_prometheus

FOLDER = ROOT / "deploy" / "prometheus"
TESTS = Path(__file__).parent / "alerts.yml"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def rules_of(name: str) -> list[dict[str, Any]]:
    return [rule for group in load(FOLDER / name)["groups"] for rule in group["rules"]]


ALERTS = rules_of("alerts.yml")


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
    promtool("test", "rules", str(TESTS))


@pytest.mark.parametrize("alert", [alert["alert"] for alert in ALERTS])
def test_each_alert_has_a_situation_in_which_it_fires(alert: str) -> None:
    expected = [
        sample["labels"]
        for test in load(TESTS)["tests"]
        for query in test["promql_expr_test"]
        for sample in query["exp_samples"]
    ]
    assert any(f'alertname="{alert}"' in labels for labels in expected)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_each_alert_says_how_urgent_it_is_and_links_to_its_heading_in_the_runbook(alert: dict[str, Any]) -> None:
    assert alert["labels"] in ({"severity": "page"}, {"severity": "ticket"})
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert anchor == alert["alert"].lower()
    assert alert["alert"] in headings


def test_the_runbook_has_no_alert_that_does_not_exist() -> None:
    page = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^### (Penstock\w+)$", page, re.MULTILINE)) == {alert["alert"] for alert in ALERTS}


@pytest.mark.parametrize(
    "rule", ALERTS + rules_of("recording.yml"), ids=lambda rule: rule.get("alert") or rule["record"]
)
def test_each_rule_uses_metrics_that_exist(rule: dict[str, Any]) -> None:
    named = names_in(rule["expr"])
    # One alert is about the scrapes themselves, as Prometheus sees them.
    assert named or "up{" in rule["expr"]
    assert named - exported_by_doors() - RECORDINGS == set()

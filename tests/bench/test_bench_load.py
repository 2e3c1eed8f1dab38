"""Tests the load by people: its scenarios, the figures of their ledgers, and the page that describes them."""

import json
import re

import pytest

from bench.load import rows, table
from bench.load_ledger import TenantLedger, percentiles, summary
from bench.load_people import SCENARIOS, scenario_named
from tests.support.processes import ROOT

PAGE = (ROOT / "docs" / "load.md").read_text(encoding="utf-8")


def a_summary(ledger: TenantLedger) -> dict:
    return summary(json.loads(json.dumps(ledger.as_json())))


def test_a_person_who_left_as_planned_is_not_one_whom_nobody_answered():
    ledger = TenantLedger(requests=6, refusals=2)
    for ending in ("answered", "answered", "answered", "gave_up", "left"):
        ledger.endings[ending] += 1
    figures = a_summary(ledger)
    assert (figures["questions"], figures["left"], figures["gave_up"]) == (5, 1, 1)
    assert figures["answered_of_those_who_stayed"] == 0.75
    assert figures["requests_per_question"] == pytest.approx(1.2)


def test_percentiles_are_values_that_occurred():
    assert percentiles("x", [4, 1, 3, 2], (50, 95)) == {"x_p50": 2, "x_p95": 4}
    assert percentiles("x", [], (99,)) == {"x_p99": None}


def test_a_team_without_any_question_has_a_row_without_figures():
    figures = {"burst": {"tenants": {"red": a_summary(TenantLedger())}}}
    assert rows(figures) == [("burst", "red", "0", "-", "0", "-", "- -", "-")]
    assert table(figures).splitlines()[2] == "| burst | red | 0 | - | 0 | - | - - | - |"


def test_an_unknown_scenario_is_named_with_those_that_exist():
    with pytest.raises(SystemExit, match="unknown scenario 'rush': choose one of baseline, burst"):
        scenario_named("rush")


def test_the_page_has_each_scenario_and_its_measured_rows():
    for scenario in SCENARIOS:
        assert f"| {scenario.name} | {scenario.shows} |" in PAGE
        for tenant in {group.tenant for group in scenario.groups}:
            assert re.search(rf"^\| {scenario.name} \| {tenant} \| \d", PAGE, re.MULTILINE), (scenario.name, tenant)


def test_the_table_of_the_page_is_that_of_the_newest_result():
    newest = max((ROOT / "bench" / "results").glob("*-load.json"))
    assert table(json.loads(newest.read_text(encoding="utf-8"))["figures"]) in PAGE
    assert newest.name in PAGE

"""The boards for Grafana and how they are provisioned."""

import json
import re
from itertools import combinations
from typing import Any

import pytest
import yaml

from tests.support.exported import RECORDINGS, ROOT, exported_by_doors, exported_by_workers, names_in

FOLDER = ROOT / "deploy" / "grafana"
IMPORTS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (FOLDER / "import").glob("*.json")}
BOARDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (FOLDER / "boards").glob("*.json")}


def test_there_are_boards_for_the_system_a_tenant_and_a_worker() -> None:
    assert set(IMPORTS) == set(BOARDS) == {"overview", "tenant", "worker"}
    assert len({board["uid"] for board in BOARDS.values()}) == len({board["title"] for board in BOARDS.values()}) == 3


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_each_expression_uses_metrics_that_exist_and_variables_of_its_board(board: dict[str, Any]) -> None:
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert expressions
    variables = {variable["name"] for variable in board["templating"]["list"]}
    known = exported_by_doors() | exported_by_workers() | RECORDINGS
    for expression in expressions:
        assert names_in(expression) <= known, expression
        assert set(re.findall(r"\$(\w+)", expression)) <= variables | {"__rate_interval"}, expression


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_no_expression_adds_up_what_several_doors_tell_of_the_same_system(board: dict[str, Any]) -> None:
    for panel in board["panels"]:
        for target in panel["targets"]:
            for selector in re.finditer(r'[\w(]*\{job="penstock-fleet"', target["expr"]):
                before = target["expr"][: selector.start()] + selector[0]
                assert re.search(r"max( by \([\w, ]+\))? ?\((rate\()?penstock_\w+\{job=\"penstock-fleet\"$", before), (
                    before
                )


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_each_panel_has_a_help_text_and_a_place_of_its_own(board: dict[str, Any]) -> None:
    assert all(panel["title"] and panel["description"] for panel in board["panels"])
    places = [panel["gridPos"] for panel in board["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        apart_in_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_in_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_in_x or apart_in_y, (one, other)


def test_the_boards_use_the_provisioned_source() -> None:
    (source,) = yaml.safe_load((FOLDER / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    for board in BOARDS.values():
        (choice,) = (each for each in board["templating"]["list"] if each["type"] == "datasource")
        assert choice["current"]["value"] == source["uid"]
        assert sources_of(board) == {f"${{{choice['name']}}}"}
        assert "__inputs" not in board


def sources_of(board: dict[str, Any]) -> set[str]:
    queried = [target for panel in board["panels"] for target in (panel, *panel["targets"])]
    queried += [variable for variable in board["templating"]["list"] if variable["type"] == "query"]
    return {each["datasource"]["uid"] for each in queried}


def filled_in(board: dict[str, Any], uid: str) -> dict[str, Any]:
    """Return what Grafana's import form makes of a file if the user chooses this source for every input."""
    text = json.dumps(board)
    for asked in board["__inputs"]:
        assert (asked["type"], asked["pluginId"]) == ("datasource", "prometheus")
        assert f"${{{asked['name']}}}" in text
        text = text.replace(f"${{{asked['name']}}}", uid)
    return {name: value for name, value in json.loads(text).items() if not name.startswith("__")}


@pytest.mark.parametrize("name", BOARDS)
def test_the_import_form_makes_the_same_board_with_the_source_that_the_user_chooses(name: str) -> None:
    imported, provisioned = IMPORTS[name], BOARDS[name]
    assert imported["id"] is None
    assert {part["id"] for part in imported["__requires"] if part["type"] == "panel"} == {
        panel["type"] for panel in provisioned["panels"]
    }
    board = filled_in(imported, "chosen")
    assert "DS_" not in json.dumps(board)
    (choice,) = (each for each in board["templating"]["list"] if each["type"] == "datasource")
    assert choice["current"]["value"] == "chosen"
    assert board.pop("id") is None
    assert board.pop("editable") is True
    choice["current"]["value"] = "penstock-prometheus"
    assert board == {field: value for field, value in provisioned.items() if field != "editable"}

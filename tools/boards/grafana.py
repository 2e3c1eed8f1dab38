"""Writes a board in Grafana's JSON from a table of panels."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

#: The uid of the source of data that deploy/grafana/provisioning makes.
_PROVISIONED = "penstock-prometheus"
#: Each board has a choice of this name at its top, so that it also works with another Prometheus.
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
#: The import form of Grafana asks for a Prometheus, and writes its uid wherever this stands.
_INPUT = "DS_PROMETHEUS"
#: A board is 24 units wide.
_WIDTH = 24
_SIZES = {"stat": (4, 4), "timeseries": (12, 8)}


@dataclass(frozen=True)
class Panel:
    """One panel: `queries` are pairs of an expression and the legend of its series."""

    title: str
    #: How Grafana shows the values: short, reqps, s, percentunit, none.
    unit: str
    queries: tuple[tuple[str, str], ...]
    help: str
    kind: Literal["stat", "timeseries"] = "timeseries"
    stacked: bool = False


@dataclass(frozen=True)
class Variable:
    """A choice at the top of a board: the values of a label of a metric."""

    name: str
    label: str
    query: str


@dataclass(frozen=True)
class Board:
    """One board."""

    uid: str
    title: str
    help: str
    panels: Sequence[Panel]
    variables: Sequence[Variable] = ()


def board_json(board: Board) -> str:
    """Return the board as Grafana reads it from a file of a provisioned folder."""
    return _json(_content(board, _PROVISIONED, editable=False))


def import_json(board: Board) -> str:
    """Return the board for the import form of a Grafana that has a Prometheus already."""
    asked = {
        "name": _INPUT,
        "label": "Prometheus",
        "description": "The Prometheus that scrapes Penstock",
        "type": "datasource",
        "pluginId": "prometheus",
        "pluginName": "Prometheus",
    }
    needed = [
        {"type": "grafana", "id": "grafana", "name": "Grafana", "version": "10.0.0"},
        {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"},
        *(
            {"type": "panel", "id": kind, "name": kind.capitalize(), "version": ""}
            for kind in sorted({panel.kind for panel in board.panels})
        ),
    ]
    content = _content(board, f"${{{_INPUT}}}", editable=True)
    return _json({"__inputs": [asked], "__requires": needed, "id": None, **content})


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _content(board: Board, source: str, *, editable: bool) -> dict[str, Any]:
    """Return the board; `source` is the uid of the Prometheus that it shows at first."""
    panels, x, y, row_height = [], 0, 0, 0
    for number, panel in enumerate(board.panels, 1):
        width, height = _SIZES[panel.kind]
        if x + width > _WIDTH or (row_height and row_height != height):
            x, y, row_height = 0, y + row_height, 0
        panels.append(_panel(number, panel, {"x": x, "y": y, "w": width, "h": height}))
        x, row_height = x + width, height
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.help,
        "tags": ["penstock"],
        "schemaVersion": 39,
        "version": 1,
        "editable": editable,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source_choice(source), *map(_variable, board.variables)]},
        "links": [{"type": "dashboards", "tags": ["penstock"], "title": "Penstock", "keepTime": True}],
        "panels": panels,
    }


def _source_choice(uid: str) -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "current": {"selected": True, "text": "Prometheus", "value": uid},
        "refresh": 1,
    }


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    custom = {"fillOpacity": 30, "stacking": {"mode": "normal"}} if panel.stacked else {"fillOpacity": 0}
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.kind == "timeseries":
        defaults["custom"] = custom
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"reduceOptions": {"calcs": ["lastNotNull"]}} if panel.kind == "stat" else {},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": expr, "legendFormat": legend}
            for index, (expr, legend) in enumerate(panel.queries)
        ],
    }


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": variable.query, "refId": "A"},
        "refresh": 2,
        "sort": 1,
    }

"""Writes a board in Grafana's JSON from a table of panels."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

_SOURCE = {"type": "prometheus", "uid": "penstock-prometheus"}
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
    """Return the board as Grafana reads it from a file."""
    panels, x, y, row_height = [], 0, 0, 0
    for number, panel in enumerate(board.panels, 1):
        width, height = _SIZES[panel.kind]
        if x + width > _WIDTH or (row_height and row_height != height):
            x, y, row_height = 0, y + row_height, 0
        panels.append(_panel(number, panel, {"x": x, "y": y, "w": width, "h": height}))
        x, row_height = x + width, height
    content = {
        "uid": board.uid,
        "title": board.title,
        "description": board.help,
        "tags": ["penstock"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_variable(variable) for variable in board.variables]},
        "links": [{"type": "dashboards", "tags": ["penstock"], "title": "Penstock", "keepTime": True}],
        "panels": panels,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


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

"""The console's page of the history: charts of a span of time, and what happened at one time, by tenant and model."""

import json
from typing import Any
from urllib.parse import urlencode

from flask import render_template, request

from shared.history.points import Entry, Point
from shared.history.report import QUESTION_FIELDS, SPANS, Report, figures, iso
from web.console.guard import page
from web.http.api_errors import ApiError
from web.jobs.history import read_history
from web.runtime.current import current_context

#: The most lines of a table.
_MAX_LINES = 60
#: The most reasons of refusals with a line in the chart; the others share one.
_MAX_REASONS = 4
#: The charts are at least this many points wide, so that the points of a young store have room.
_FEWEST_STEPS = 12


@page("/history")
def history_page() -> str | tuple[str, int]:
    """Return the page for the question in the query, which a link can carry: `?at=14:05&tenant=blue`."""
    given = {name: value for name in QUESTION_FIELDS if (value := request.args.get(name, "").strip())}
    try:
        report = read_history(current_context(), given)
    except ApiError as error:
        values = {"given": given, "problem": error.message, "invalid": error.param, "spans": SPANS, "report": None}
        return render_template("console/history.html", **values), error.status
    charts = _charts(report)
    moment, whole = report.moment, "tenant" not in given and "model" not in given
    return render_template(
        "console/history.html",
        given=given,
        problem=None,
        invalid=None,
        spans=SPANS,
        report=report,
        charts=json.dumps(charts),
        has_spent=any(charts["spent"]["spent"]),
        known_from_ms=_known_from_ms(report),
        total=None if moment is None else figures(report.entry(moment), moment.samples),
        lines=_Lines(moment, report, given) if moment is not None and whole else None,
        links=_links(report, given),
        at=None if report.question.at_ms is None else iso(report.question.at_ms),
    )


class _Lines:
    """The lines of the tables of one time."""

    def __init__(self, moment: Point, report: Report, given: dict[str, str]) -> None:
        self._samples = moment.samples
        # A time of day is another time tomorrow.
        at = {} if report.question.at_ms is None else {"at": iso(report.question.at_ms)}
        self._query = {name: given[name] for name in given if name == "span"} | at
        self.tenants = self._sorted("tenant", moment.tenants)
        self.models = self._sorted(
            "model", {report.model_names.get(slug, slug): entry for slug, entry in moment.pools.items()}
        )
        self.others = self._line("other tenants", moment.rest)

    def _sorted(self, kind: str, entries: dict[str, Entry]) -> list[dict[str, Any]]:
        """Return the lines with most waiting jobs and refused requests first."""
        lines = [
            self._line(name, entry) | {"query": urlencode(self._query | {kind: name})}
            for name, entry in entries.items()
        ]
        lines.sort(key=lambda line: (-line["waiting"] - line["n_refused"], -line["completion_tokens"], line["name"]))
        return lines[:_MAX_LINES]

    def _line(self, name: str, entry: Entry) -> dict[str, Any]:
        return figures(entry, self._samples) | {
            "name": name,
            "n_refused": sum(entry.refused.values()),
            "n_other": entry["failed"] + entry["canceled"] + entry["expired"],
        }


def _links(report: Report, given: dict[str, str]) -> dict[str, str]:
    """Return the queries of the spans before and after this one, and of this one with its time written out."""
    step_ms = 500 * report.question.span_s
    at_ms = report.now_ms if report.question.at_ms is None else report.question.at_ms
    links = {"here": urlencode(given | {"at": iso(at_ms)}), "before": urlencode(given | {"at": iso(at_ms - step_ms)})}
    if report.question.at_ms is not None:
        links["now"] = urlencode({name: value for name, value in given.items() if name != "at"})
        if at_ms + step_ms < report.now_ms:
            links["after"] = urlencode(given | {"at": iso(at_ms + step_ms)})
    return links


def _charts(report: Report) -> dict[str, Any]:
    """Return what the script of the page draws: the times of the points in s, and the values of each line."""
    points = list(report.entries())
    told = [figures(entry, point.samples) for point, entry in points]
    seconds = [max(1.0, (point.to_ms - point.from_ms) / 1_000) for point, _ in points]
    reasons = _reasons(points)
    refused = {reason: [figure["refused"].get(reason, 0) for figure in told] for reason in reasons[:_MAX_REASONS]}
    if len(reasons) > _MAX_REASONS:
        rest = reasons[_MAX_REASONS:]
        refused["other reasons"] = [sum(figure["refused"].get(reason, 0) for reason in rest) for figure in told]
    # A line ends where a point is missing.
    return {
        "at": None if report.question.at_ms is None else report.question.at_ms / 1_000,
        "from": _axis_from_ms(report) / 1_000,
        "to": report.to_ms / 1_000,
        "step": report.step_s,
        "times": [point.start_ms / 1_000 for point, _ in points],
        "jobs": {name: [figure[name] for figure in told] for name in ("waiting", "running", "paused")},
        "tokens": {
            "answers": [round(figure["completion_tokens"] / s, 2) for figure, s in zip(told, seconds, strict=True)],
            "prompts": [
                round((figure["prompt_tokens"] - figure["cached_tokens"]) / s, 2)
                for figure, s in zip(told, seconds, strict=True)
            ],
        },
        "first": {
            name: [None if ms is None else ms / 1_000 for ms in (figure[f"first_token_{name}_ms"] for figure in told)]
            for name in ("p50", "p99")
        },
        "refused": refused,
        "spent": {"spent": [figure["cost_micro"] / 1_000_000 for figure in told]},
    }


def _known_from_ms(report: Report) -> int:
    """Return where the first point of the span begins, in ms; where the span does if that is about the same time."""
    first_ms = min((point.start_ms for point in report.points), default=report.from_ms)
    # The first point of a span begins up to a step after it.
    return report.from_ms if first_ms <= report.from_ms + 2_000 * report.step_s else first_ms


def _axis_from_ms(report: Report) -> int:
    """Return where the charts begin, in ms: at the first point, or so early that a few points have room before now.

    The time that was asked about is on the charts even if nothing is known about it.
    """
    asked_ms = report.to_ms if report.question.at_ms is None else report.question.at_ms
    widest_ms = report.to_ms - 1_000 * report.step_s * _FEWEST_STEPS
    return max(report.from_ms, min(_known_from_ms(report), asked_ms, widest_ms))


def _reasons(points: list[tuple[Point, Entry]]) -> list[str]:
    """Return the reasons of refusals in these points, the most frequent first."""
    sums: dict[str, int] = {}
    for _, entry in points:
        for reason, number in entry.refused.items():
            sums[reason] = sums.get(reason, 0) + number
    return sorted(sums, key=lambda reason: (-sums[reason], reason))

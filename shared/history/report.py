"""Answers what happened at a time, or in a span of time: to all jobs, to those of one tenant, or of one model."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import redis

from shared.durations import utc_time
from shared.history.points import RINGS, Entry, Point, in_turns, merged
from shared.history.stored import StoredHistory
from shared.jobs.job_filter import InvalidFilter, parse_time
from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import store_faults

#: The spans of time that can be asked for, in seconds.
SPANS = {"10m": 600, "1h": 3_600, "6h": 21_600, "1d": 86_400, "7d": 604_800, "30d": 2_592_000}
#: The fields of a question, as they are in a query of HTTP.
QUESTION_FIELDS = ("tenant", "model", "at", "span")
_DEFAULT_SPAN = "1h"
#: A span has at least this many points, so that there is a line to draw.
_FEWEST_POINTS = 12
#: The figures of a time are those of this long, unless the points are longer.
_MOMENT_MS = 60_000
#: The most models whose names are looked up; the others are named as in keys.
_MAX_MODELS = 256


@dataclass(frozen=True)
class Question:
    """A tenant, a model or neither, and a time."""

    tenant: str = ""
    model: str = ""
    #: In ms since the epoch by the store's clock; None for the time up to now.
    at_ms: int | None = None
    span_s: int = SPANS[_DEFAULT_SPAN]


@dataclass(frozen=True)
class Report:
    """The points of a span, and the sums of one time in it."""

    question: Question
    now_ms: int
    from_ms: int
    to_ms: int
    #: How long a point is, in seconds.
    step_s: int
    points: list[Point]
    #: The minute that was asked about, or a longer point with it; the whole span if no time was. None if nothing is
    #: known about it.
    moment: Point | None
    #: The names of models, by their form in keys.
    model_names: Mapping[str, str] = field(default_factory=dict)

    def entry(self, point: Point) -> Entry:
        """Return the counts of a point that the question is about."""
        if self.question.tenant:
            return point.tenants.get(self.question.tenant, Entry())
        if self.question.model:
            return point.pools.get(keys.model_slug(self.question.model), Entry())
        return point.total

    def entries(self) -> Iterator[tuple[Point, Entry]]:
        """Yield each point with the counts that the question is about."""
        for point in in_turns(self.points):
            yield point, self.entry(point)

    @property
    def unnamed_points(self) -> int:
        """In how many points the tenant is not named although other tenants were active that are not named either."""
        if not self.question.tenant:
            return 0
        return sum(self.question.tenant not in point.tenants and bool(point.rest.amounts) for point in self.points)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as in JSON. Times are in ISO 8601, UTC."""
        return {
            "object": "history",
            "tenant": self.question.tenant or None,
            "model": self.question.model or None,
            "at": None if self.question.at_ms is None else iso(self.question.at_ms),
            "from": iso(self.from_ms),
            "to": iso(self.to_ms),
            "step_s": self.step_s,
            "data": [_times(point) | figures(entry, point.samples) for point, entry in self.entries()],
            "moment": None if self.moment is None else self._moment(self.moment),
            "unnamed_points": self.unnamed_points,
        }

    def _moment(self, point: Point) -> dict[str, Any]:
        told = _times(point) | {"total": figures(self.entry(point), point.samples)}
        if self.question.tenant or self.question.model:
            return told
        return told | {
            "tenants": {name: figures(entry, point.samples) for name, entry in point.tenants.items()},
            "other_tenants": figures(point.rest, point.samples),
            "models": {
                self.model_names.get(slug, slug): figures(entry, point.samples) for slug, entry in point.pools.items()
            },
        }


def parse_question(given: Mapping[str, str], now_ms: int) -> Question:
    """Return the question in the fields of a query, which are all optional. Raises InvalidFilter."""
    texts = {name: given.get(name, "").strip() for name in QUESTION_FIELDS}
    if texts["tenant"] and not keys.is_tenant_name(texts["tenant"]):
        raise InvalidFilter("tenant", texts["tenant"], "is not a tenant's name: 1 to 64 letters, digits, _ and -")
    if texts["tenant"] and texts["model"]:
        raise InvalidFilter("model", texts["model"], f"cannot be combined with tenant={texts['tenant']!r}")
    if len(texts["model"]) > 256:
        raise InvalidFilter("model", texts["model"], "is longer than 256 characters")
    span = texts["span"] or _DEFAULT_SPAN
    if span not in SPANS:
        raise InvalidFilter("span", span, f"is not one of {', '.join(SPANS)}")
    at_ms = parse_time("at", texts["at"], now_ms) if texts["at"] else None
    if at_ms is not None and at_ms > now_ms:
        raise InvalidFilter("at", texts["at"], "is in the future")
    return Question(texts["tenant"], texts["model"], at_ms, SPANS[span])


def read_report(client: redis.Redis, given: Mapping[str, str]) -> Report:
    """Answer the question in the fields of a query. Raises InvalidFilter and StoreUnavailable."""
    stored = StoredHistory(client)
    now_ms = stored.now_ms()
    question = parse_question(given, now_ms)
    step_s, from_ms, to_ms = _place(question, now_ms)
    points = stored.read(step_s, from_ms, to_ms)
    return Report(
        question,
        now_ms,
        from_ms,
        to_ms,
        step_s,
        points,
        _moment_of(points, question.at_ms, 1_000 * step_s),
        _model_names(client),
    )


def figures(entry: Entry, samples: int) -> dict[str, Any]:
    """Return counts as operators read them: the jobs that waited, ran and were paused as means over the samples."""
    means = {name: round(entry[name] / max(1, samples), 2) for name in ("waiting", "running", "paused")}
    percentiles = {f"first_token_p{part}_ms": entry.first_token_ms(part / 100) for part in (50, 99)}
    return {
        **{name: entry[name] for name in ("admitted", "succeeded", "failed", "canceled", "expired")},
        **{f"{name}_tokens": entry[name] for name in ("prompt", "cached", "completion")},
        **{name: entry[name] for name in ("cost_micro", "pauses", "most_waiting")},
        **means,
        **{name: None if ms is None else round(ms) for name, ms in percentiles.items()},
        "refused": dict(sorted(entry.refused.items(), key=lambda item: (-item[1], item[0]))),
    }


def iso(ms: int) -> str:
    return utc_time(ms).isoformat(timespec="seconds").replace("+00:00", "Z")


def _times(point: Point) -> dict[str, Any]:
    return {"from": iso(point.from_ms), "to": iso(point.to_ms)}


def _place(question: Question, now_ms: int) -> tuple[int, int, int]:
    """Return the length of the points to read in s, and the span in ms, which is around the time if there is one."""
    for step_s, kept in RINGS:
        span_ms = 1_000 * max(question.span_s, _FEWEST_POINTS * step_s)
        middle_ms = now_ms if question.at_ms is None else question.at_ms
        to_ms = min(now_ms, middle_ms + span_ms // 2)
        from_ms = to_ms - span_ms
        # The last point is not written before its time has passed.
        if (question.at_ms is None or middle_ms >= now_ms - 1_000 * step_s * kept) and span_ms <= 1_000 * step_s * kept:
            return step_s, from_ms, to_ms
    return step_s, from_ms, to_ms


def _moment_of(points: Iterable[Point], at_ms: int | None, step_ms: int) -> Point | None:
    if at_ms is None:
        return merged(points)
    begin_ms = at_ms - at_ms % max(step_ms, _MOMENT_MS)
    end_ms = begin_ms + max(step_ms, _MOMENT_MS)
    known = list(points)
    # A point that covers the time although its place in the grid is later was written after a time without duties.
    return merged(point for point in known if begin_ms <= point.start_ms < end_ms) or merged(
        point for point in known if point.from_ms <= at_ms < point.to_ms
    )


def _model_names(client: redis.Redis) -> dict[str, str]:
    with store_faults(client):
        stored: Any = client.zrevrange(keys.models(), 0, _MAX_MODELS - 1)
    return {keys.model_slug(name): name for name in map(text, stored)}

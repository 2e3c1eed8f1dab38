"""What a run came to: useful work, waste, successes by tenant, refusals; the figures side by side."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from bench.sim.asks import Ask
from bench.sim.simulation import Run


@dataclass(frozen=True)
class Window:
    """The judged part of a run, in ms: what is before it is warm-up."""

    begin_ms: float
    end_ms: float

    def holds(self, moment_ms: float | None) -> bool:
        """Whether a moment lies within."""
        return moment_ms is not None and self.begin_ms <= moment_ms < self.end_ms

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end_ms - self.begin_ms) / 1_000


def useful_wtps(run: Run, window: Window) -> float:
    """Weighted tokens per second of answers that were ready in time."""
    return sum(ask.cost_wt for ask in run.asks if ask.in_time and window.holds(ask.ended_ms)) / window.seconds


def computed_wtps(run: Run, window: Window) -> float:
    """Weighted tokens per second that the workers computed, for whatever."""
    totals = [0, *run.computed_by_s]
    begin, end = int(window.begin_ms // 1_000), min(int(window.end_ms // 1_000), len(totals) - 1)
    return (totals[end] - totals[begin]) / max(1, end - begin)


def waste(run: Run, window: Window) -> float:
    """Of what was computed for jobs that ended, the share whose answers were not ready in time."""
    ended = [ask for ask in run.asks if window.holds(ask.ended_ms)]
    total = sum(ask.computed_wt for ask in ended)
    return sum(ask.computed_wt for ask in ended if not ask.in_time) / total if total else 0.0


def judged(run: Run, window: Window, sent_until_ms: float | None = None) -> list[Ask]:
    """The asks first sent in the window whose fate was sealed before the run's end.

    With `sent_until_ms` all that were sent until then: whoever still waits to come back was not answered.
    """
    end_ms = run.seconds * 1_000
    if sent_until_ms is not None:
        return [ask for ask in run.asks if window.begin_ms <= ask.at_ms < sent_until_ms]
    return [ask for ask in run.asks if window.holds(ask.at_ms) and (_sealed(ask) or ask.deadline_at_ms <= end_ms)]


def success(asks: Iterable[Ask]) -> float:
    """The share that was answered in time; 1 of nothing."""
    fates = [ask.in_time for ask in asks]
    return sum(fates) / len(fates) if fates else 1.0


def percentile(values: Iterable[float], share: float) -> float:
    """Nearest-rank percentile; NaN of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def first_token_waits(asks: Iterable[Ask]) -> list[float]:
    """Ms from the send to the first token, of those that got one."""
    return [ask.first_token_ms - ask.sent_ms for ask in asks if ask.first_token_ms is not None]


def residences_ms(asks: Iterable[Ask]) -> list[float]:
    """Ms in a slot, of the asks that ended well."""
    return [
        ask.ended_ms - ask.claimed_ms for ask in asks if ask.in_time and ask.ended_ms and ask.claimed_ms is not None
    ]


def jain(values: list[float]) -> float:
    """Jain's index: 1 when all are equal, 1/n when one has all."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def summary(run: Run, window: Window, capacity_wtps: float, sent_until_ms: float | None = None) -> dict[str, Any]:
    """The figures that every experiment shows, work beside waste, success and refusals."""
    asks = judged(run, window, sent_until_ms)
    light = [ask for ask in asks if ask.light]
    heavy = [ask for ask in asks if not ask.light]
    return {
        "useful": useful_wtps(run, window) / capacity_wtps,
        "computed": computed_wtps(run, window) / capacity_wtps,
        "busy": sum(worker.busy_ms for worker in run.workers) / (1_000 * run.seconds * len(run.workers)),
        "waste": waste(run, window),
        "light_success": success(light),
        "light_jobs": len(light),
        "heavy_success": success(heavy),
        "success": success(asks),
        "asked_per_s": len([a for a in run.asks if window.holds(a.at_ms)]) / window.seconds,
        "refused": sum(1 for ask in asks if ask.gave_up_ms is not None) / max(1, len(asks)),
        "refusals": dict(Counter(ask.refusal for ask in asks if ask.gave_up_ms is not None).most_common()),
        "light_refusals": dict(Counter(ask.refusal for ask in light if ask.gave_up_ms is not None).most_common()),
        "ends": dict(_by(asks, lambda ask: ask.outcome)),
        "light_ttft_p99_ms": percentile(first_token_waits(light), 0.99),
        "ttft_p50_ms": percentile(first_token_waits(asks), 0.5),
        "ttft_p99_ms": percentile(first_token_waits(asks), 0.99),
        "attempts_per_job": sum(ask.attempts for ask in asks) / max(1, len(asks)),
        "tenants": _tenants(asks, window),
    }


def _sealed(ask: Ask) -> bool:
    return bool(ask.outcome) or ask.gave_up_ms is not None


def _by(asks: Iterable[Ask], what: Callable[[Ask], str]) -> Counter[str]:
    return Counter(what(ask) or "open" for ask in asks if ask.gave_up_ms is None)


def _tenants(asks: list[Ask], window: Window) -> dict[str, dict[str, float]]:
    """By tenant: jobs asked, share in time, share refused, useful wt/s."""
    by_tenant: dict[str, list[Ask]] = {}
    for ask in asks:
        by_tenant.setdefault(ask.tenant, []).append(ask)
    return {
        tenant: {
            "jobs": len(own),
            "success": success(own),
            "refused": sum(1 for ask in own if ask.gave_up_ms is not None) / len(own),
            "useful_wtps": sum(ask.cost_wt for ask in own if ask.in_time) / window.seconds,
        }
        for tenant, own in sorted(by_tenant.items())
    }

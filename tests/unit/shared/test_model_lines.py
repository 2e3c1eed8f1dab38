"""Tests the line of each model that operators see: which models have one, in which order, and why one is not served."""

from typing import Any

import pytest

from shared.accounts.routes import StoredRoute
from shared.jobs.route import Route, RouteStep
from shared.store.replies import PoolReason, PoolView, Snapshot
from shared.views.frame import WorkerLine
from shared.views.models import RECENT_MS, model_lines, routes_by_pool


def a_pool(model: str, **fields: Any) -> PoolView:
    values: dict[str, Any] = {"heartbeat_age_ms": 10, "live_workers": 1, "reason": None, "waiting": 0, "running": 0}
    return PoolView(model, slots=4, oldest_age_ms=None, **(values | fields))


def dead(model: str, **fields: Any) -> PoolView:
    return a_pool(model, **({"live_workers": 0, "reason": PoolReason.NO_WORKER} | fields))


def a_snapshot(*pools: PoolView) -> Snapshot:
    return Snapshot(0, 0, 64, 0, 0, {}, [], [], [], draining=False, pools={pool.model: pool for pool in pools})


def a_worker(model: str, state: str, tokens_per_s: float | None) -> WorkerLine:
    return WorkerLine("w", model, state, 0, 4, 0, 0.0, tokens_per_s)


@pytest.mark.parametrize(
    ("pool", "listed"),
    [
        (a_pool("m"), True),
        (dead("m", heartbeat_age_ms=RECENT_MS), True),
        (dead("m", heartbeat_age_ms=RECENT_MS + 1), False),
        (dead("m", heartbeat_age_ms=90_000_000, waiting=1), True),
        (dead("m", heartbeat_age_ms=90_000_000, running=1), True),
    ],
)
def test_a_model_has_a_line_while_it_has_workers_or_jobs_and_for_an_hour_after_its_last_worker(pool, listed):
    assert bool(model_lines(a_snapshot(pool), (), {})) is listed


def test_models_that_are_not_served_come_first_and_say_why():
    drained = a_pool("b", reason=PoolReason.DRAINING)
    restarting = a_pool("d", reason=PoolReason.WORKERS_RESTART)
    lines = model_lines(a_snapshot(a_pool("a"), drained, dead("c"), restarting), (), {})
    assert [(line.model, line.state, line.why) for line in lines] == [
        ("b", "draining", "all its live workers drain"),
        ("c", "no worker", "no worker is live"),
        ("d", "restarting", "its workers restart again and again"),
        ("a", "serving", ""),
    ]


def test_a_pool_of_a_route_has_a_line_even_if_it_was_never_served():
    steps = (RouteStep("m"), RouteStep("missing"))
    routes = routes_by_pool({name: StoredRoute(Route(name, steps), "") for name in ("smart", "auto")})
    missing, served = model_lines(a_snapshot(a_pool("m")), (), routes)
    assert (missing.model, missing.why, missing.routes) == ("missing", "no worker has served it", ("auto", "smart"))
    assert (served.reason, served.routes, served.slots) == (None, ("auto", "smart"), 4)


def test_the_tokens_a_second_of_a_model_are_those_of_its_workers_that_are_not_silent():
    workers = [a_worker("m", "serving", 5.0), a_worker("m", "draining", 2.0), a_worker("m", "silent", 9.0)]
    one, other = model_lines(a_snapshot(a_pool("m"), a_pool("n")), [*workers, a_worker("n", "serving", None)], {})
    assert (one.tokens_per_s, other.tokens_per_s) == (7.0, None)


def test_a_model_that_cannot_be_loaded_says_why_and_when_it_is_tried_again():
    failed = a_pool(
        "a", reason=PoolReason.LOAD_FAILED, load_failures=2, load_retry_in_ms=9_100, load_error="its file is damaged"
    )
    [line] = model_lines(a_snapshot(failed), (), {})
    assert (line.state, line.why) == (
        "load fails",
        "it could not be loaded 2 times in a row (its file is damaged); it is tried again in 10 s",
    )

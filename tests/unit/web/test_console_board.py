"""Tests the figures of the console: what is counted over minutes, groups, quantiles, and the last refusals."""

from typing import Any

from shared.metrics.spec import BUCKETS_MS
from shared.store.replies import Snapshot, TenantView
from shared.views.shares import Sums
from web.console.board import MAX_EVENTS, RecentEvents, Since, make_board
from web.console.reads import (
    Counters,
    FailedJob,
    RunningJob,
    RunningJobs,
    TenantFacts,
    divide,
    quantile_ms,
    refusals_between,
)

NOTHING = Counters(0, {}, {}, {})


def a_tenant(name: str, **fields: Any) -> TenantView:
    values: dict[str, Any] = {"weight": 1.0, "waiting": 0, "running": 0, "oldest_age_ms": None}
    return TenantView(name, waiting_tokens=0, max_waiting=16, max_waiting_tokens=None, **(values | fields))


def a_snapshot(tenants: list[TenantView], stats: dict[str, int] | None = None, now_ms: int = 10_000) -> Snapshot:
    return Snapshot(now_ms, 3, 64, 2, 1, stats or {}, tenants, [], ["m"], draining=False)


def buckets(**jobs: int) -> tuple[int, ...]:
    """Return the buckets with these numbers of jobs in those up to `ms_<bound>`."""
    return tuple(jobs.get(f"ms_{bound}", 0) for bound in [*BUCKETS_MS, "inf"])


def counted(at_ms: int, **refused: int) -> Counters:
    return Counters(at_ms, {("red", reason): number for reason, number in refused.items()}, {}, {})


def test_a_snapshot_is_divided_into_rates_and_counters():
    stats = {
        "tokens|blue|m|completion": 7,
        "tokens|blue|m|prompt": 90,
        "served|blue|m": 118,
        "refused|blue|backlog_full": 2,
        "ended|failed": 5,
        "ended|blue|a|b|failed": 3,
        "ended|blue|a|b|expired": 1,
        "ended|blue|a|b|succeeded": 50,
        "h|time_to_first_token|blue|a|b|s|250": 4,
        "h|time_to_first_token|blue|m|l|250": 1,
        "h|time_to_first_token|blue|m|l|sum": 999,
        "h|queue_wait|blue|m|5": 8,
    }
    snapshot, counters = divide(a_snapshot([], stats))
    assert snapshot.stats == {
        "tokens|blue|m|completion": 7,
        "served|blue|m": 118,
        "refused|blue|backlog_full": 2,
    }
    assert counters.refused == {("blue", "backlog_full"): 2}
    assert counters.failed == {("blue", "a|b"): 4}
    assert counters.first_token == {"blue": buckets(ms_250=5)}


def test_a_quantile_lies_within_its_bucket_as_prometheus_computes_it():
    assert quantile_ms(buckets(), 0.5) is None
    assert quantile_ms(buckets(ms_100=10), 0.5) == 75
    assert quantile_ms(buckets(ms_100=10), 0.99) == 100
    assert quantile_ms(buckets(ms_100=98, ms_1000=2), 0.5) == 76
    assert quantile_ms(buckets(ms_100=98, ms_1000=2), 0.99) == 750
    assert quantile_ms(buckets(ms_inf=1), 0.5) == BUCKETS_MS[-1]


def test_only_what_was_counted_in_between_is_shown_and_a_counter_that_fell_shows_nothing():
    before = counted(0, backlog_full=5, draining=9)
    after = counted(1, backlog_full=7, draining=0, rate_limited=4)
    assert refusals_between(before, after) == {"red": {"rate_limited": 4, "backlog_full": 2}}


def test_a_group_has_the_sums_of_its_tenants():
    tenants = [
        a_tenant("a", waiting=3, running=1, oldest_age_ms=500, group="lab"),
        a_tenant("b", waiting=1, oldest_age_ms=900, group="lab"),
        a_tenant("alone", running=1),
    ]
    now = Counters(
        60_000, {("a", "backlog_full"): 1, ("b", "backlog_full"): 2}, {}, {"a": buckets(ms_5=1), "b": buckets(ms_5=1)}
    )
    facts = TenantFacts(("a", "b", "alone"), disabled=frozenset({"b"}))
    running = RunningJobs([RunningJob("j", "a", "m", "w", 10, is_paused=True, cancel_requested=False)], are_all=True)
    snapshot = a_snapshot(tenants)
    sums = Sums({"a": 30.0, "b": 10.0, "alone": 40.0}, {"a": 50.0, "b": 10.0, "alone": 20.0})
    board = make_board(snapshot, snapshot, Since(NOTHING, now), facts, running, sums)
    (lab,) = board.groups
    assert (lab.waiting, lab.running, lab.paused, lab.oldest_ms, lab.members) == (4, 1, 1, 900, 2)
    assert (lab.served, lab.due, lab.refused, lab.first_token_p99_ms) == (0.5, 0.75, {"backlog_full": 3}, 5)
    assert [(line.name, line.group, line.is_disabled) for line in board.tenants] == [
        ("a", "lab", False),
        ("b", "lab", True),
        ("alone", "", False),
    ]
    assert board.counted_s == 60


def test_a_tenant_is_marked_only_if_it_waits_and_is_below_its_share():
    tenants = [a_tenant("waits", oldest_age_ms=500), a_tenant("rests"), a_tenant("leads", oldest_age_ms=500)]
    snapshot, sums = (
        a_snapshot(tenants),
        Sums({"waits": 10.0, "rests": 10.0, "leads": 80.0}, dict.fromkeys(["waits", "rests", "leads"], 33.0)),
    )
    board = make_board(snapshot, snapshot, Since(NOTHING, NOTHING), TenantFacts(), RunningJobs((), are_all=True), sums)
    assert [line.name for line in board.tenants if line.is_below_share] == ["waits"]


def test_how_many_jobs_of_each_tenant_are_paused_is_unknown_unless_all_running_jobs_were_read():
    snapshot = a_snapshot([a_tenant("a", running=2, group="lab"), a_tenant("b", running=1, group="lab")])
    jobs = [RunningJob("j", "a", "m", "w", 10, is_paused=True, cancel_requested=False)]
    since, facts = Since(NOTHING, NOTHING), TenantFacts(("a", "b"))
    known = make_board(snapshot, snapshot, since, facts, RunningJobs(jobs, are_all=True), Sums())
    assert ([line.paused for line in (*known.tenants, *known.groups)], known.n_read) == ([1, 0, 1], None)
    unknown = make_board(snapshot, snapshot, since, facts, RunningJobs(jobs, are_all=False), Sums())
    assert ([line.paused for line in (*unknown.tenants, *unknown.groups)], unknown.n_read) == ([None] * 3, 1)


def test_of_a_thousand_tenants_those_with_the_most_waiting_jobs_are_first():
    tenants = [a_tenant(f"t{number:03}", waiting=number) for number in range(64)]
    snapshot = a_snapshot(tenants)
    facts = TenantFacts(tuple(f"t{number:03}" for number in range(1_000)))
    board = make_board(snapshot, snapshot, Since(NOTHING, NOTHING), facts, RunningJobs((), are_all=True), Sums())
    assert [line.name for line in board.tenants] == [f"t{number:03}" for number in range(63, -1, -1)]
    assert board.n_tenants == 1_000


def test_refusals_one_after_another_are_one_line_and_later_ones_another():
    events = RecentEvents()
    events.note(counted(0), counted(1_000, draining=2), [])
    events.note(counted(1_000, draining=2), counted(2_000, draining=5), [])
    events.note(counted(2_000, draining=5), counted(60_000, draining=6), [])
    assert [(one.number, one.at_ms) for one in events.refusals] == [(1, 60_000), (5, 2_000)]


def test_a_failure_that_is_read_again_is_listed_once_and_the_newest_is_first():
    events = RecentEvents()
    old, new = (FailedJob(name, "blue", "failed", "poison", "…", at_ms) for name, at_ms in (("a", 1), ("b", 2)))
    events.note(NOTHING, NOTHING, [old])
    events.note(NOTHING, NOTHING, [new, old])
    assert events.failures == [new, old]
    events.note(NOTHING, NOTHING, [FailedJob(f"j{n}", "blue", "failed", "", "", 10 + n) for n in range(100)])
    assert len(events.failures) == MAX_EVENTS

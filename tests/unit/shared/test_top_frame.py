"""Tests the figures of `penstock top`: rates between two snapshots, shares of the service, the tenants' order."""

from typing import Any

import pytest

from shared.store.replies import Snapshot, TenantView, WorkerView
from shared.views.frame import SORT_KEYS, make_frame
from shared.views.shares import Shares, Sums

NOTHING = Sums()


def a_tenant(name: str, **fields: Any) -> TenantView:
    values: dict[str, Any] = {"weight": 1.0, "waiting": 0, "running": 0, "oldest_age_ms": None}
    return TenantView(name, waiting_tokens=0, max_waiting=16, max_waiting_tokens=None, **(values | fields))


def a_worker(name: str = "w1", **fields: Any) -> WorkerView:
    values: dict[str, Any] = {"live": True, "draining": False, "facts": {}, "slots_busy": 1, "cells_free": 25}
    return WorkerView(name, "m", heartbeat_age_ms=10, slots=4, cells=100, **(values | fields))


def a_snapshot(now_ms: int, tenants: list[TenantView], workers: list[WorkerView], **stats: int) -> Snapshot:
    named = {name.replace("__", "|"): value for name, value in stats.items()}
    return Snapshot(now_ms, 3, 64, 2, 1, named, tenants, workers, ["m"], draining=False)


def test_rates_are_those_between_the_snapshots():
    before = a_snapshot(
        10_000, [a_tenant("blue")], [a_worker(facts={"completion_tokens": "50"})], tokens__blue__m__completion=100
    )
    after = a_snapshot(
        14_000,
        [a_tenant("blue", running=1)],
        [a_worker(facts={"completion_tokens": "90", "paused": "2"})],
        tokens__blue__m__completion=300,
        tokens__blue__m__prompt=9_000,
        refused__blue__rate_limited=1,
        refused__blue__backlog_full=1,
    )
    frame = make_frame(before, after, "tenant", NOTHING)
    (tenant,), (worker,) = frame.tenants, frame.workers
    assert (tenant.tokens_per_s, tenant.refused_per_min) == (50.0, 30.0)
    assert (worker.tokens_per_s, worker.paused, worker.kv_used, worker.state) == (10.0, 2, 0.75, "serving")


def test_a_tenant_without_counters_of_its_own_and_a_new_worker_have_no_rates():
    snapshot = a_snapshot(10_000, [a_tenant("blue")], [], tokens__other__m__completion=7)
    later = a_snapshot(11_000, [a_tenant("blue")], [a_worker()], tokens__other__m__completion=9)
    frame = make_frame(snapshot, later, "tenant", NOTHING)
    assert (frame.tenants[0].tokens_per_s, frame.workers[0].tokens_per_s) == (None, None)
    assert make_frame(later, later, "tenant", NOTHING).workers[0].tokens_per_s is None


def test_what_was_served_is_compared_with_what_was_due_in_the_pools_that_a_tenant_used():
    # Blue and red share a pool, and green has a slow one to itself.
    tenants = [
        a_tenant("blue", queues=frozenset({"m"}), oldest_age_ms=9),
        a_tenant("red", queues=frozenset({"m"}), oldest_age_ms=9, weight=3.0),
        a_tenant("green", queues=frozenset({"slow"}), oldest_age_ms=9, weight=50.0),
        a_tenant("idle", weight=50.0),
    ]
    shares = Shares()
    before = a_snapshot(10_000, tenants, [], served__blue__m=700, served__red__m=1, served__green__slow=0)
    shares.add(before, {})
    after = a_snapshot(11_000, tenants, [], served__blue__m=1_150, served__red__m=451, served__green__slow=100)
    frame = make_frame(before, after, "tenant", shares.add(after, {}))
    assert {line.tenant: (line.served, line.due) for line in frame.tenants} == {
        "blue": (0.45, 0.225),
        "red": (0.45, 0.675),
        "green": (0.1, 0.1),
        "idle": (None, None),
    }


@pytest.mark.parametrize("sort", SORT_KEYS)
def test_every_order_begins_with_the_largest_and_ends_with_a_tie_by_name(sort):
    busy = a_tenant("z", waiting=5, running=2, oldest_age_ms=700)
    stats = {"tokens__z__m__completion": 5, "refused__z__draining": 1}
    before = a_snapshot(10_000, [a_tenant(name) for name in "zba"], [])
    after = a_snapshot(11_000, [busy, a_tenant("b"), a_tenant("a")], [], **stats)
    frame = make_frame(before, after, sort, Sums({"z": 5.0}, {"z": 5.0}))
    assert [line.tenant for line in frame.tenants] == (["a", "b", "z"] if sort == "tenant" else ["z", "a", "b"])


def test_a_worker_that_drains_or_is_silent_is_shown_as_such():
    workers = [a_worker("a", draining=True), a_worker("b", live=False), a_worker("c", cells_free=100)]
    snapshot = a_snapshot(10_000, [], workers)
    assert [line.state for line in make_frame(snapshot, snapshot, "tenant", NOTHING).workers] == [
        "draining",
        "silent",
        "serving",
    ]

"""Tests the fleet metrics that are computed from a snapshot of the store."""

import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shared.accounts.budgets import Budget
from shared.jobs.outcomes import Outcome
from shared.metrics.fleet import COUNTED, FLEET
from shared.metrics.process import PROCESS
from shared.metrics.spec import BUCKETS_MS, MAX_TENANTS, MetricSpec
from shared.store.replies import Snapshot, TenantView, WorkerView
from shared.store.webhooks import NONE_PENDING, Pending
from web.runtime.fleet_metrics import MAX_BUDGETS, ReadFamilies, encoded, fleet_families

Labels = dict[str, str]


def a_tenant(name: str, waiting: int = 0, running: int = 0, oldest_age_ms: int | None = None) -> TenantView:
    return TenantView(name, 1.0, waiting, 0, 16, 65_536, running, oldest_age_ms)


def a_worker(name: str, *, live: bool = True, slots: int = 4, busy: int = 1, **facts: str) -> WorkerView:
    return WorkerView(name, "m", live, 100, slots, busy, 100, 25, draining=False, facts=facts)


def a_snapshot(stats: dict[str, int] | None = None, **overrides: object) -> Snapshot:
    fields: dict[str, object] = {
        "now_ms": 0,
        "inflight": 0,
        "max_inflight": 64,
        "waiting": 0,
        "running": 0,
        "stats": stats or {},
        "tenants": [],
        "workers": [],
        "models": ["m"],
        "draining": False,
    }
    return Snapshot(**(fields | overrides))


def samples(snapshot: Snapshot, budgets: Sequence[Budget] = ()) -> dict[str, list[tuple[Labels, float]]]:
    """Return the samples that a scraper reads, by name."""
    read: dict[str, list[tuple[Labels, float]]] = {}
    page = encoded(ReadFamilies(fleet_families(snapshot, budgets)), "text").decode()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            read.setdefault(sample.name, []).append((sample.labels, sample.value))
    return read


def test_counters_without_labels_exist_from_the_start() -> None:
    read = samples(a_snapshot())
    for name in (
        "penstock_executed_total",
        "penstock_yielded_total",
        "penstock_inflight",
        "penstock_leases_reclaimed_total",
    ):
        assert read[name] == [({}, 0.0)]


def test_a_counter_s_labels_come_from_the_name_of_its_field() -> None:
    read = samples(
        a_snapshot(
            {
                "executed": 3,
                "executed|blue|m": 3,
                "yielded": 2,
                "refused|blue|inflight_full": 2,
                "admitted": 5,
                "admitted|blue": 5,
                "ended|succeeded": 1,
                "ended|blue|m|succeeded": 1,
                "tokens|blue|m|cached": 7,
                "wasted|other|expired": 9,
            }
        )
    )
    assert read["penstock_executed_total"] == [({}, 3)]
    assert read["penstock_yielded_total"] == [({}, 2)]
    assert ({"tenant": "blue", "model_name": "m", "outcome": "succeeded"}, 1) in read["penstock_jobs_total"]
    assert read["penstock_tokens_total"] == [({"tenant": "blue", "model_name": "m", "kind": "cached"}, 7)]
    assert read["penstock_wasted_tokens_total"] == [({"tenant": "other", "reason": "expired"}, 9)]
    assert read["penstock_admission_total"] == [
        ({"tenant": "blue", "decision": "refused", "reason": "inflight_full"}, 2),
        ({"tenant": "blue", "decision": "admitted", "reason": ""}, 5),
    ]


def test_rare_events_have_series_before_they_happen() -> None:
    assert samples(a_snapshot({"mended|number": 2}))["penstock_mended_total"] == [
        ({"kind": "type"}, 0),
        ({"kind": "number"}, 2),
        ({"kind": "setting"}, 0),
        ({"kind": "job"}, 0),
    ]


def test_a_tenants_counters_have_all_their_series_once_one_was_counted() -> None:
    returns = samples(a_snapshot({"hint_returns|blue|late": 3, "hint_returns|red|refused": 1}))
    found = {(labels["tenant"], labels["result"]): value for labels, value in returns["penstock_hint_returns_total"]}
    zeros = {(tenant, result): 0 for tenant in ("blue", "red") for result in ("admitted", "refused", "late", "early")}
    assert found == zeros | {("blue", "late"): 3, ("red", "refused"): 1}


def test_a_tenants_first_failed_job_is_a_growth() -> None:
    ended = samples(a_snapshot({"ended|blue|org/m|succeeded": 7}))["penstock_jobs_total"]
    assert ({"tenant": "blue", "model_name": "org/m", "outcome": "failed"}, 0) in ended
    assert {labels["outcome"]: value for labels, value in ended} == dict.fromkeys(Outcome, 0) | {"succeeded": 7}


def test_a_vertical_bar_in_a_model_s_name_is_kept() -> None:
    read = samples(a_snapshot({"ended|blue|odd|name|failed": 1}))
    assert ({"tenant": "blue", "model_name": "odd|name", "outcome": "failed"}, 1) in read["penstock_jobs_total"]


def test_histograms_are_cumulative_and_in_seconds() -> None:
    read = samples(
        a_snapshot(
            {
                "h|queue_wait|blue|m|5": 2,
                "h|queue_wait|blue|m|100": 1,
                "h|queue_wait|blue|m|inf": 1,
                "h|queue_wait|blue|m|sum": 700_123,
            }
        )
    )
    buckets = {labels["le"]: value for labels, value in read["penstock_queue_wait_seconds_bucket"]}
    assert (buckets["0.005"], buckets["0.05"], buckets["0.1"], buckets["640.0"], buckets["+Inf"]) == (2, 2, 3, 3, 4)
    assert read["penstock_queue_wait_seconds_count"][0][1] == 4
    assert read["penstock_queue_wait_seconds_sum"][0][1] == 700.123


def test_a_histograms_sum_adds_microseconds_to_the_milliseconds_of_older_stores() -> None:
    stats = {"h|time_per_output_token|blue|m|5": 3, "h|time_per_output_token|blue|m|sum_us": 350}
    read = samples(a_snapshot(stats))
    assert read["penstock_time_per_output_token_seconds_sum"][0][1] == pytest.approx(0.00035)
    read = samples(a_snapshot(stats | {"h|time_per_output_token|blue|m|sum": 2}))
    assert read["penstock_time_per_output_token_seconds_sum"][0][1] == pytest.approx(0.00235)


def test_gauges_show_the_tenants_seen_last_and_the_rest_as_other() -> None:
    tenants = [a_tenant(f"t{i}", waiting=1) for i in range(60)]
    read = samples(a_snapshot(tenants=tenants, waiting=75, running=0))
    shown = {labels["tenant"]: value for labels, value in read["penstock_jobs_waiting"]}
    assert len(shown) == MAX_TENANTS + 1
    assert shown["other"] == 25


def test_only_live_workers_are_counted() -> None:
    # An embedding worker keeps no cells, and reports more free ones than it has.
    embeds = replace(a_worker("w3", busy=0), cells_free=40_000)
    workers = [a_worker("w1"), a_worker("w2", live=False), embeds]
    read = samples(a_snapshot(workers=workers, live_workers=256, live_slots=1_024, capacity_wtps=120.5))
    assert read["penstock_workers"] == [({}, 256)]
    assert read["penstock_slots"] == [({}, 1_024)]
    assert read["penstock_capacity_tokens_per_second"] == [({}, 120.5)]
    assert read["penstock_worker_slots_busy"] == [({"worker": "w1"}, 1), ({"worker": "w3"}, 0)]
    assert read["penstock_worker_kv_used_ratio"] == [({"worker": "w1"}, 0.75), ({"worker": "w3"}, 0)]


def test_paused_jobs_are_added_up_over_the_live_workers_of_a_pool() -> None:
    workers = [a_worker("w1", paused="2"), a_worker("w2", paused="1"), a_worker("w3", live=False, paused="9")]
    read = samples(a_snapshot({"pauses|m|kept": 5, "pauses|m|recomputed": 1}, workers=workers))
    assert read["penstock_paused_jobs"] == [({"model_name": workers[0].model}, 3)]
    assert sorted((labels["way"], value) for labels, value in read["penstock_pauses_total"]) == [
        ("kept", 5),
        ("recomputed", 1),
    ]


def test_drafted_tokens_are_counted_by_model_and_result() -> None:
    read = samples(a_snapshot({"drafts|m|accepted": 7, "drafts|m|rejected": 2}))
    assert sorted((labels["model_name"], labels["result"], n) for labels, n in read["penstock_draft_tokens_total"]) == [
        ("m", "accepted", 7),
        ("m", "rejected", 2),
    ]


def test_crashes_are_counted_by_model() -> None:
    read = samples(a_snapshot({"crashes|m": 3, "crashes|other/m": 1}))
    assert sorted((labels["model_name"], n) for labels, n in read["penstock_engine_crashes_total"]) == [
        ("m", 3),
        ("other/m", 1),
    ]


def test_the_backlog_of_a_pool_is_told_in_seconds_and_a_pool_without_rates_tells_none() -> None:
    read = samples(a_snapshot(live_models=["m", "new"], backlogs_s={"m": 1.5}, busy_ratios={"m": 1, "new": 0}))
    assert read["penstock_pool_backlog_seconds"] == [({"model_name": "m"}, 1.5)]
    assert read["penstock_pool_busy_ratio"] == [({"model_name": "m"}, 1), ({"model_name": "new"}, 0)]


def test_the_tier_of_a_pool_is_a_gauge_labeled_with_its_model() -> None:
    assert samples(a_snapshot(tiers={"m": 2, "other": 0}))["penstock_pool_tier"] == [
        ({"model_name": "m"}, 2),
        ({"model_name": "other"}, 0),
    ]


def test_worker_metrics_are_the_figures_that_live_workers_report() -> None:
    workers = [
        a_worker("w1", dead_tokens="7", idle_slot_steps="3"),
        a_worker("w2", dead_tokens="junk"),
    ]
    read = samples(a_snapshot(workers=workers))
    assert read["penstock_dead_tokens_total"] == [({"worker": "w1"}, 7), ({"worker": "w2"}, 0)]
    assert read["penstock_worker_idle_slot_steps_total"] == [({"worker": "w1"}, 3)]


def test_every_counter_s_field_is_counted_by_a_script() -> None:
    written = "".join(path.read_text() for path in Path(str(files("shared").joinpath("lua"))).rglob("*.lua"))
    calls = r"(count\(|observe\(|'HINCRBY', k_stats, )"
    # A loop over a table of kinds counts each of them.
    kinds = "".join(re.findall(r"for kind, results in pairs\((.*)\) do", written))
    uncounted = {
        row.field
        for row in COUNTED
        if not re.search(rf"{calls}'{row.field}\b", written) and not re.search(rf"\b{row.field} = {{", kinds)
    }
    assert uncounted == set()


def test_a_tenant_without_queued_jobs_has_no_oldest_job_age() -> None:
    read = samples(a_snapshot(tenants=[a_tenant("blue", 1, 0, 1500), a_tenant("green")]))
    assert read["penstock_oldest_job_age_seconds"] == [({"tenant": "blue"}, 1.5)]


def test_the_scripts_and_the_metrics_have_the_same_histogram_buckets() -> None:
    source = files("shared").joinpath("lua/lib/ledgers/stats.lua").read_text()
    listed = re.search(r"BUCKETS_MS = \{ ([\d,\s]+) \}", source)
    assert listed is not None
    assert tuple(int(part) for part in listed[1].split(",")) == BUCKETS_MS


def test_no_two_metrics_have_the_same_name() -> None:
    names = [row.name for row in (*FLEET, *PROCESS)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("row", [*FLEET, *PROCESS], ids=lambda row: row.name)
def test_every_metric_has_the_prefix_and_a_help_text(row: MetricSpec) -> None:
    assert row.name.startswith("penstock_")
    assert row.help


def test_the_offset_of_the_stores_time_is_exported_in_seconds() -> None:
    assert samples(a_snapshot())["penstock_clock_ahead_seconds"] == [({}, 0.0)]
    assert samples(a_snapshot(ahead_ms=1_500))["penstock_clock_ahead_seconds"] == [({}, 1.5)]


def test_the_most_used_budgets_have_series() -> None:
    def a_budget(name: str, counted: int) -> Budget:
        return Budget("tenant", name, "day", 1_000, counted, 5, "2026-11-24T00:00:00Z")

    idle = [a_budget(f"t{number}", 0) for number in range(2 * MAX_BUDGETS)]
    of_group = Budget("group", "lab", "month", 50, 60, 0, "2026-12-01T00:00:00Z")
    read = samples(a_snapshot(), [*idle, a_budget("blue", 900), of_group])
    assert ({"kind": "tenant", "owner": "blue", "period": "day"}, 905.0) in read["penstock_budget_used_tokens"]
    assert ({"kind": "group", "owner": "lab", "period": "month"}, 60.0) in read["penstock_budget_used_tokens"]
    assert ({"kind": "group", "owner": "lab", "period": "month"}, 50.0) in read["penstock_budget_tokens"]
    assert len(read["penstock_budget_tokens"]) == len(read["penstock_budget_used_tokens"]) == MAX_BUDGETS


def test_the_webhooks_that_are_not_told_and_the_age_of_the_oldest_are_exported() -> None:
    snapshot = a_snapshot(stats={"webhooks|delivered": 7, "webhooks|refused_address": 2})

    def read(pending: Pending) -> dict[str, float]:
        families = fleet_families(snapshot, webhooks=pending)
        return {sample.name + sample.labels.get("result", ""): sample.value for f in families for sample in f.samples}

    none, some = read(NONE_PENDING), read(Pending(3, snapshot.now_ms - 2_500))
    assert (none["penstock_webhooks_pending"], none["penstock_oldest_webhook_age_seconds"]) == (0, 0)
    assert (some["penstock_webhooks_pending"], some["penstock_oldest_webhook_age_seconds"]) == (3, 2.5)
    assert (some["penstock_webhooks_totaldelivered"], some["penstock_webhooks_totalrefused_address"]) == (7, 2)


def test_a_tenant_that_is_named_other_shares_a_series_with_all_that_have_none_of_their_own() -> None:
    read = samples(
        a_snapshot(tenants=[a_tenant("other", waiting=2), a_tenant("blue", waiting=1)], waiting=8, running=3)
    )
    assert read["penstock_jobs_waiting"] == [
        ({"tenant": "blue", "model_name": "m"}, 1),
        ({"tenant": "other", "model_name": "m"}, 7),
    ]
    assert read["penstock_jobs_running"][-1] == ({"tenant": "other", "model_name": "m"}, 3)


def test_a_model_whose_workers_have_all_gone_is_named_as_not_live() -> None:
    read = samples(a_snapshot(models=["gone", "served"], live_models=["served", "new"]))
    assert read["penstock_pool_live"] == [
        ({"model_name": "gone"}, 0),
        ({"model_name": "new"}, 1),
        ({"model_name": "served"}, 1),
    ]

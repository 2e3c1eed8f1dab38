"""The ratio of a tenant's service to its fair share, from snapshots of the store."""

from dataclasses import replace

import pytest

from shared.store.keys import model_slug
from shared.store.replies import Snapshot, TenantView
from shared.views.shares import Shares


class TenantShares:
    """The ratios after each snapshot, with these weights of groups."""

    def __init__(self, **weights: float) -> None:
        self._shares, self._weights = Shares(), weights

    def ratios(self, snapshot: Snapshot) -> dict[str, float]:
        return self._shares.add(snapshot, self._weights).ratios()


def a_tenant(name: str, *models: str, weight: float = 1.0, group: str | None = None) -> TenantView:
    """A tenant with queued jobs for these models."""
    queues = frozenset(model_slug(model) for model in models)
    return TenantView(name, weight, len(models), 0, 16, None, 0, 0 if models else None, group, queues)


def a_snapshot(now_s: float, tenants: list[TenantView], **served: int) -> Snapshot:
    """A snapshot in which `blue_m=5` means that 5 weighted tokens were served to blue by the model m so far."""
    stats = {f"served|{tenant_model.replace('_', '|')}": tokens for tenant_model, tokens in served.items()}
    return Snapshot(round(now_s * 1000), 0, 64, 0, 0, stats, tenants, [], ["m"], draining=False)


def test_of_two_tenants_with_queued_jobs_the_one_of_twice_the_weight_is_due_twice_as_much() -> None:
    shares = TenantShares()
    tenants = [a_tenant("blue", "m", weight=2.0), a_tenant("red", "m")]
    assert shares.ratios(a_snapshot(0, tenants, blue_m=1000, red_m=7000)) == {}
    assert shares.ratios(a_snapshot(15, tenants, blue_m=1600, red_m=7300)) == {"blue": 1.0, "red": 1.0}
    later = shares.ratios(a_snapshot(30, tenants, blue_m=1600, red_m=7600))
    assert later == {"blue": pytest.approx(600 / 800), "red": pytest.approx(600 / 400)}


def test_a_tenant_that_is_queued_and_not_served_at_all_has_the_ratio_0() -> None:
    shares = TenantShares()
    tenants = [a_tenant("poor", "m"), a_tenant("rich", "m")]
    shares.ratios(a_snapshot(0, tenants, poor_m=1, rich_m=1))
    assert shares.ratios(a_snapshot(15, tenants, poor_m=1, rich_m=101)) == {"poor": 0.0, "rich": 2.0}


def test_tenants_of_different_pools_take_nothing_from_each_other() -> None:
    # The pool of the fast model serves ten times as much.
    shares = TenantShares()
    tenants = [a_tenant("blue", "fast"), a_tenant("red", "slow")]
    shares.ratios(a_snapshot(0, tenants, blue_fast=0, red_slow=0))
    assert shares.ratios(a_snapshot(15, tenants, blue_fast=1000, red_slow=100)) == {"blue": 1.0, "red": 1.0}


def test_the_tenants_of_a_group_share_what_is_due_to_the_group() -> None:
    shares = TenantShares(lab=3.0)
    tenants = [a_tenant("ada", "m", group="lab"), a_tenant("bob", "m", group="lab", weight=2.0), a_tenant("red", "m")]
    shares.ratios(a_snapshot(0, tenants, ada_m=0, bob_m=0, red_m=0))
    ratios = shares.ratios(a_snapshot(15, tenants, ada_m=250, bob_m=500, red_m=250))
    assert ratios == {"ada": pytest.approx(1.0), "bob": pytest.approx(1.0), "red": pytest.approx(1.0)}


def test_idle_tenants_have_no_ratio_and_do_not_reduce_the_shares_of_others() -> None:
    shares = TenantShares()
    tenants = [a_tenant("busy", "m"), a_tenant("idle")]
    shares.ratios(a_snapshot(0, tenants, busy_m=0, idle_m=50))
    assert shares.ratios(a_snapshot(15, tenants, busy_m=500, idle_m=50)) == {"busy": 1.0}


def test_a_tenant_without_waiting_jobs_is_due_what_it_got_and_the_rest_is_due_to_the_others() -> None:
    shares = Shares()
    tenants = [a_tenant("red", "m"), a_tenant("blue"), a_tenant("green", "m")]
    shares.add(a_snapshot(0, tenants, red_m=0, blue_m=0, green_m=0), {})
    sums = shares.add(a_snapshot(15, tenants, red_m=630, blue_m=100, green_m=270), {})
    assert sums.due == {"red": pytest.approx(450), "blue": pytest.approx(100), "green": pytest.approx(450)}
    assert sums.ratios() == {"red": pytest.approx(1.4), "blue": pytest.approx(1.0), "green": pytest.approx(0.6)}


def test_nobody_is_below_its_share_if_nobody_waits() -> None:
    shares = TenantShares()
    tenants = [a_tenant("red"), a_tenant("blue", weight=3.0)]
    shares.ratios(a_snapshot(0, tenants, red_m=0, blue_m=0))
    assert shares.ratios(a_snapshot(15, tenants, red_m=630, blue_m=310)) == {
        "red": pytest.approx(1.0),
        "blue": pytest.approx(1.0),
    }


def test_a_tenant_that_waited_for_half_of_the_time_is_due_less_than_its_share() -> None:
    shares = Shares()
    waits, rests = a_tenant("blue", "m"), a_tenant("blue")
    red = a_tenant("red", "m")
    for turn, blue in enumerate((waits, waits, rests)):
        tenants = [red, replace(blue, running=1)]
        sums = shares.add(a_snapshot(15 * turn, tenants, red_m=1_000 * turn, blue_m=1), {})
    # In each of two steps, 1,000 tokens were served. Half of them were blue's share, which it wanted in one step.
    assert sums.due == {"red": pytest.approx(2_000 * 2 / 3), "blue": pytest.approx(2_000 / 3)}


def test_what_a_tenant_leaves_is_due_to_its_group_first() -> None:
    shares = Shares()
    tenants = [a_tenant("ada", "m", group="lab"), a_tenant("bob", group="lab"), a_tenant("red", "m")]
    shares.add(a_snapshot(0, tenants, ada_m=0, bob_m=0, red_m=0), {})
    sums = shares.add(a_snapshot(15, tenants, ada_m=350, bob_m=50, red_m=600), {})
    assert sums.due == {"ada": pytest.approx(450), "bob": pytest.approx(50), "red": pytest.approx(500)}


def test_batch_jobs_that_wait_are_no_demand() -> None:
    shares = TenantShares()
    batch = replace(a_tenant("batch", "m"), oldest_age_ms=None)
    tenants = [batch, a_tenant("red", "m")]
    shares.ratios(a_snapshot(0, tenants, batch_m=0, red_m=0))
    assert shares.ratios(a_snapshot(15, tenants, batch_m=10, red_m=990)) == {
        "batch": pytest.approx(1.0),
        "red": pytest.approx(1.0),
    }


def test_a_tenant_with_a_running_job_shares_the_pool_before_its_tokens_count() -> None:
    shares = Shares()
    tenants = [a_tenant("red", "m"), replace(a_tenant("blue", "m"), queues=frozenset(), running=1)]
    for turn in range(11):
        sums = shares.add(a_snapshot(turn, tenants, red_m=50 * turn, blue_m=1 + 500 * (turn // 10)), {})
    assert sums.due == {"red": pytest.approx(500), "blue": pytest.approx(500)}


def test_only_the_last_five_minutes_count() -> None:
    shares = TenantShares()
    tenants = [a_tenant("blue", "m"), a_tenant("red", "m")]
    shares.ratios(a_snapshot(0, tenants, blue_m=0, red_m=0))
    shares.ratios(a_snapshot(15, tenants, blue_m=900, red_m=0))
    for turn in range(1, 22):
        ratios = shares.ratios(a_snapshot(15 + 15 * turn, tenants, blue_m=900 + 10 * turn, red_m=10 * turn))
    assert ratios == {"blue": pytest.approx(1.0), "red": pytest.approx(1.0)}


def test_a_long_gap_between_scrapes_and_a_store_that_was_restored_are_left_out() -> None:
    shares = TenantShares()
    tenants = [a_tenant("blue", "m"), a_tenant("red", "m")]
    shares.ratios(a_snapshot(0, tenants, blue_m=500, red_m=0))
    assert shares.ratios(a_snapshot(1_000, tenants, blue_m=9_000, red_m=0)) == {}
    assert shares.ratios(a_snapshot(1_015, tenants, blue_m=0, red_m=0)) == {}
    assert shares.ratios(a_snapshot(1_030, tenants, blue_m=10, red_m=10)) == {"blue": 1.0, "red": 1.0}


def test_tenants_without_a_label_of_their_own_count_together() -> None:
    shares = TenantShares()
    tenants = [a_tenant("blue", "m"), a_tenant("late1", "m"), a_tenant("late2", "m")]
    shares.ratios(a_snapshot(0, tenants, blue_m=0, other_m=0))
    assert shares.ratios(a_snapshot(15, tenants, blue_m=100, other_m=200)) == {
        "blue": pytest.approx(1.0),
        "other": pytest.approx(1.0),
    }


def test_spoiled_weights_count_as_the_default() -> None:
    shares = TenantShares()
    tenants = [a_tenant("blue", "m", weight=-1.0), a_tenant("red", "m")]
    shares.ratios(a_snapshot(0, tenants, blue_m=0, red_m=0))
    assert shares.ratios(a_snapshot(15, tenants, blue_m=10, red_m=10)) == {"blue": 1.0, "red": 1.0}

"""Tests of degradation: the tiers of a pool, answers cut to the time that is left, and no effect where it is off."""

from typing import Any

import pytest

from shared.jobs.job import ClaimRef
from shared.jobs.job_history import Change
from shared.jobs.outcomes import Refused
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    an_ending,
    claim,
    claim_one,
    contents,
    reconfigure,
    refused,
    stat,
    view_of,
)
from tests.support.cell import empty
from tests.support.pressure import (
    HeldPool,
    a_long_job,
    a_quiet_pool,
    claim_job,
    make_rates_old,
    raise_tier,
    set_answer_lengths,
)


@pytest.fixture
def quiet(store: Store, settings: Any) -> HeldPool:
    """A pool with degradation on, whose four slots are taken and which has no queued jobs."""
    return a_quiet_pool(store, settings)


@pytest.fixture
def pressed(quiet: HeldPool) -> HeldPool:
    """The same pool at tier 1: a quarter of the work that may wait has been queued for more than a second."""
    raise_tier(quiet)
    return quiet


def test_a_second_of_pressure_raises_the_tier_and_a_second_of_more_pressure_raises_it_again(quiet):
    quiet.fill(2_000)
    assert quiet.tier_after(1_000) == 0
    assert quiet.tier_after(100) == quiet.tier_after(3_000) == 1
    quiet.fill(3_000)
    assert quiet.tier_after(1_000) == 1
    assert quiet.tier_after(100) == quiet.tier_after(3_000) == quiet.store.snapshot().tiers[MODEL] == 2


def test_pressure_that_ends_within_a_second_does_not_raise_the_tier(quiet):
    quiet.fill(4_000)
    assert quiet.tier_after(800) == 0
    quiet.cancel_fillers()
    quiet.tier_after(100)
    quiet.fill(4_000)
    assert quiet.tier_after(900) == 0


def test_two_seconds_below_half_of_the_threshold_lower_the_tier(pressed):
    pressed.cancel_fillers()
    pressed.fill(500)  # a sixteenth of the work that may wait; the threshold is 0.15
    assert pressed.tier_after(2_000) == 1
    assert pressed.tier_after(100) == 0


def test_going_down_two_tiers_takes_four_seconds(pressed):
    pressed.fill(3_000)
    assert pressed.tier_after(1_100) == 2
    pressed.cancel_fillers()
    assert pressed.tier_after(2_000) == 2
    assert pressed.tier_after(100) == pressed.tier_after(1_900) == 1
    assert pressed.tier_after(100) == 0


def test_the_tier_stays_while_the_pressure_is_between_its_two_thresholds(pressed):
    pressed.cancel_fillers()
    # A tenth of the work that may wait: less than the threshold of tier 1, and more than half of it.
    pressed.fill(800, tenants=2)
    assert pressed.tier_after(5_000) == 1


def test_the_tier_rises_when_even_the_shortest_wait_of_the_claimed_jobs_is_long(quiet):
    """The work costs more than was estimated: little work seems to be queued, and yet every job waits long."""
    for tenant in ("a", "b", "c", "d"):
        for _ in range(4):
            admitted(quiet.store, a_job(tenant, cost_mwt=1_000, deadline_ms=600_000))
    assert quiet.tier_after(3_300) == 0
    for _ in range(4):
        claim_one(quiet.store)
        quiet.tier_after(300)
    assert quiet.tier == 1


def test_the_tier_does_not_rise_when_one_of_the_claimed_jobs_hardly_waited(quiet):
    for _ in range(9):
        admitted(quiet.store, a_job("patient", cost_mwt=1_000, deadline_ms=600_000))
    assert quiet.tier_after(3_300) == 0
    for i in range(6):
        assert claim_one(quiet.store).tenant == "patient"
        admitted(quiet.store, a_job(f"new{i}", cost_mwt=1_000, deadline_ms=600_000))
        claim_one(quiet.store)
        assert quiet.tier_after(300) == 0


def test_the_wait_of_a_released_job_is_measured_from_its_release(quiet):
    held = [ClaimRef(job_id.decode(), "running") for job_id in quiet.store.client.zrange(keys.leases(), 0, -1)]
    quiet.tier_after(3_300)
    for job in held:
        assert quiet.store.release("w1", [job]) == 1
        claim_one(quiet.store)
        assert quiet.tier_after(300) == 0


def test_a_job_that_would_be_refused_is_admitted_and_its_answer_is_cut(pressed):
    set_answer_lengths(pressed, "blue", 500)
    assert isinstance(pressed.store.admit(a_long_job(degrade=False)), Refused)
    job_id = admitted(pressed.store, a_long_job())
    assert view_of(pressed.store, job_id).degraded == ()
    pressed.pass_ms(2_000)
    job = claim_job(pressed, job_id)
    # Four fifths of the 6 s that are left, less 10 ms for the prompt, are 239 tokens of 20 ms.
    assert job.max_tokens == 239
    assert view_of(pressed.store, job_id).degraded == (Change("max_tokens", 500, 239, "tier 1"),)
    assert stat(pressed.store, "degraded|blue|max_tokens") == 1


def test_the_latest_start_of_a_job_admitted_for_a_cut_answer_is_that_of_the_cut_answer(pressed):
    set_answer_lengths(pressed, "blue", 500)
    job_id = admitted(pressed.store, a_long_job())
    sooner = admitted(pressed.store, a_job("blue", latest_start_ms=1_000, cost_mwt=10_000, degrade=True))
    assert [view_of(pressed.store, each).position for each in (sooner, job_id)] == [1, 2]


def test_a_job_admitted_for_a_cut_answer_is_cut_even_when_the_pressure_is_over_at_its_claim(pressed):
    set_answer_lengths(pressed, "blue", 500)
    job_id = admitted(pressed.store, a_long_job())
    pressed.cancel_fillers()
    assert pressed.tier_after(2_500) == 0
    assert claim_job(pressed, job_id).max_tokens == 219


def test_a_job_admitted_for_a_cut_answer_is_cut_even_when_the_rates_are_old_at_its_claim(pressed):
    set_answer_lengths(pressed, "blue", 2_000)
    job_id = admitted(pressed.store, a_long_job(max_tokens=2_000, deadline_ms=20_000))
    make_rates_old(pressed)
    assert claim_job(pressed, job_id).max_tokens == 799


def test_a_job_admitted_while_no_rates_were_known_is_cut_like_any_other(pressed):
    make_rates_old(pressed)
    job_id = admitted(pressed.store, a_long_job())
    pressed.pass_ms(0)
    assert claim_job(pressed, job_id).max_tokens == 319


def test_a_job_that_may_be_degraded_is_not_cut_at_tier_zero(quiet):
    job_id = admitted(quiet.store, a_long_job())
    assert (claim_job(quiet, job_id).max_tokens, view_of(quiet.store, job_id).degraded) == (500, ())


def test_a_job_that_may_not_be_degraded_keeps_its_length_at_every_tier(pressed):
    job_id = admitted(pressed.store, a_long_job(degrade=False))
    pressed.fill(3_000)
    assert pressed.tier_after(1_100) == 2
    assert claim_job(pressed, job_id).max_tokens == 500


def test_an_answer_that_fits_is_not_cut(pressed):
    job_id = admitted(pressed.store, a_long_job(max_tokens=200))
    assert (claim_job(pressed, job_id).max_tokens, view_of(pressed.store, job_id).degraded) == (200, ())


def test_no_answer_is_cut_below_thirty_two_tokens_or_made_longer(pressed):
    few, fewer = admitted(pressed.store, a_long_job()), admitted(pressed.store, a_long_job("green", max_tokens=20))
    pressed.tier_after(7_900)
    claimed = {job.id: job.max_tokens for job in claim(pressed.store, room=50, cells_free=10**6)}
    assert (claimed[few], claimed[fewer]) == (32, 20)


def test_a_job_is_refused_when_not_even_thirty_two_tokens_of_its_answer_fit(pressed):
    set_answer_lengths(pressed, "blue", 500)
    answer = refused(pressed.store, a_long_job(deadline_ms=700))
    assert (answer.reason, answer.value) == ("deadline_unmeetable", 10_110)


def test_a_repeated_claim_returns_the_same_cut_lengths(pressed):
    job_id = admitted(pressed.store, a_long_job())
    first = pressed.store.claim("w1", "once", MODEL, room=50, cells_free=10**6)
    again = pressed.store.claim("w1", "once", MODEL, room=50, cells_free=10**6)
    assert {job.id: job.max_tokens for job in first} == {job.id: job.max_tokens for job in again}
    assert {job.id: job.max_tokens for job in again}[job_id] == 319


def test_a_job_claimed_again_is_cut_to_the_time_left_at_that_claim_and_counted_once(pressed):
    job_id = admitted(pressed.store, a_long_job())
    held = claim_job(pressed, job_id).held
    assert pressed.store.release("w1", [held]) == 1
    pressed.tier_after(1_000)
    assert claim_job(pressed, job_id).max_tokens == 279
    assert view_of(pressed.store, job_id).degraded == (Change("max_tokens", 500, 279, "tier 1"),)
    assert stat(pressed.store, "degraded|blue|max_tokens") == 1


def test_a_job_claimed_again_after_the_pressure_has_ended_is_not_cut(pressed):
    job_id = admitted(pressed.store, a_long_job())
    assert pressed.store.release("w1", [claim_job(pressed, job_id).held]) == 1
    assert pressed.tier_after(2_500) == 0
    assert (claim_job(pressed, job_id).max_tokens, view_of(pressed.store, job_id).degraded) == (500, ())


def test_a_cut_job_ends_like_any_other_and_still_reports_what_was_changed(pressed):
    job_id = admitted(pressed.store, a_long_job())
    pressed.store.settle(an_ending(claim_job(pressed, job_id).held, finish_reason="length"), "w1")
    view = view_of(pressed.store, job_id)
    assert (view.state, view.finish_reason, view.degraded[0].before) == ("succeeded", "length", 500)


def test_at_tier_one_each_tenant_may_queue_half_as_much_work(quiet, settings):
    quiet.store.client.hset(keys.books(MODEL), "mean_mwt", 90_000)
    quiet.fill(1_000)
    assert quiet.tier_after(1_200) == 0
    admitted(quiet.store, a_job("blue", cost_mwt=100_000))
    before = refused(quiet.store, a_job("blue", cost_mwt=4_000_000)).max
    quiet.store.client.hset(keys.books(MODEL), mapping={"tier": 1, "tier_look_ms": quiet.now_ms, "tier_above_ms": 0})
    assert refused(quiet.store, a_job("blue", cost_mwt=4_000_000)).max == before // 2


def test_at_tier_two_only_tenants_under_their_share_are_admitted(pressed):
    pressed.fill(3_000)
    assert pressed.tier_after(1_100) == 2
    pressed.cancel_fillers()
    # A quarter of the work that may wait is queued: at tier 1 each of two tenants could queue up to 1,500.
    admitted(pressed.store, a_job("blue", cost_mwt=800_000))
    admitted(pressed.store, a_job("green", cost_mwt=1_200_000))
    answer = refused(pressed.store, a_job("green", cost_mwt=10_000))
    assert (answer.limit, answer.value, answer.max) == ("tenant_waiting_work", 1_200, 1_000)
    admitted(pressed.store, a_job("blue", cost_mwt=10_000))
    admitted(pressed.store, a_job("new", cost_mwt=10_000))


def test_a_quote_agrees_with_admission_and_does_not_move_the_tier(pressed):
    set_answer_lengths(pressed, "blue", 500)
    before = contents(pressed.store)
    fields = {"prompt_tokens": 10, "max_tokens": 500, "deadline_ms": 8_000}
    assert pressed.store.quote(a_job(**fields)).refused is not None
    assert pressed.store.quote(a_job(**fields, degrade=True)).refused is None
    assert contents(pressed.store) == before


def contents_without_times(store: Store) -> dict[str, Any]:
    """Return every key byte for byte, except RQ's created_at and the ids of stream entries, which are real time."""
    found: dict[str, Any] = contents(store)
    for key in found:
        if store.client.type(key) == b"stream":
            found[key] = [fields for _, fields in store.client.xrange(key)]
        elif key.startswith(keys.rq_job("")):
            found[key] = {**store.client.hgetall(key), b"created_at": b""}
    return found


def test_with_degradation_off_jobs_that_may_be_degraded_leave_the_same_bytes_in_the_store(store, settings):
    """Run the same steps twice, the second time with jobs that may be degraded: no byte differs under pressure."""
    results = []
    for degrade in (False, True):
        empty(store.client)
        reconfigure(store, settings, max_inflight=1_000, max_queue_size=100)
        pool = HeldPool(store)
        jobs = [a_long_job(f"t{i % 5}", id=f"job{i}", degrade=degrade, deadline_ms=600_000) for i in range(40)]
        for job in jobs:
            pool.pass_ms(100)
            store.admit(job)
        claimed = store.claim("w1", "one", MODEL, room=6, cells_free=10**6)
        pool.pass_ms(1_000)
        store.settle(an_ending(claimed[0].held), "w1")
        results.append(({job.id: job.max_tokens for job in claimed}, contents_without_times(store)))
        assert {b"tier", b"wait_from_ms"} & set(store.client.hkeys(keys.books(MODEL))) == set()
    assert results[0] == results[1]

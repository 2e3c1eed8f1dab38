"""Degradation: tiers of pressure, and answers cut to the time that is left; nothing at all where it is off."""

from typing import Any

import pytest

from shared.jobs.job import Change, Held
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
    seen,
    stat,
)
from tests.support.pressure import HeldPool, a_long_job, claimed_of, learned


@pytest.fixture
def quiet(store: Store, settings: Any) -> HeldPool:
    """A pool with tiers, whose four slots are taken and where nothing waits."""
    reconfigure(store, settings, degradation="on", max_inflight=1_000, max_queue_size=100)
    pool = HeldPool(store)
    for _ in range(4):
        admitted(store, a_job("runner", deadline_ms=600_000))
    assert len(store.claim("w1", "running", MODEL, room=4, cells_free=4_096)) == 4
    return pool


@pytest.fixture
def pressed(quiet: HeldPool) -> HeldPool:
    """That pool at tier 1: a quarter of the work that may wait has waited for more than a second."""
    quiet.fill(2_000)
    assert quiet.looked(1_200) == 1
    return quiet


def test_a_second_of_pressure_raises_the_tier_and_a_second_of_more_raises_it_again(quiet):
    quiet.fill(2_000)
    assert quiet.looked(1_000) == 0
    assert quiet.looked(100) == quiet.looked(3_000) == 1
    quiet.fill(3_000)
    assert quiet.looked(1_000) == 1
    assert quiet.looked(100) == quiet.looked(3_000) == quiet.store.snapshot().tiers[MODEL] == 2


def test_pressure_that_passes_within_the_second_raises_nothing(quiet):
    quiet.fill(4_000)
    assert quiet.looked(800) == 0
    quiet.relieve()
    quiet.looked(100)
    quiet.fill(4_000)
    assert quiet.looked(900) == 0


def test_two_seconds_below_half_of_the_pressure_lower_it(pressed):
    pressed.relieve()
    pressed.fill(500)  # a sixteenth of what may wait; the mark is .15
    assert pressed.looked(2_000) == 1
    assert pressed.looked(100) == 0


def test_two_tiers_down_take_four_seconds(pressed):
    pressed.fill(3_000)
    assert pressed.looked(1_100) == 2
    pressed.relieve()
    assert pressed.looked(2_000) == 2
    assert pressed.looked(100) == pressed.looked(1_900) == 1
    assert pressed.looked(100) == 0


def test_between_the_marks_the_tier_stays(pressed):
    pressed.relieve()
    # A tenth of what may wait: less than raises the tier, and more than half of that.
    pressed.fill(800, tenants=2)
    assert pressed.looked(5_000) == 1


def test_a_queue_stands_when_even_the_job_that_waited_least_has_waited_long(quiet):
    """Work that is cheaper than it was thought: little seems to wait, and yet everybody waits."""
    for tenant in ("a", "b", "c", "d"):
        for _ in range(4):
            admitted(quiet.store, a_job(tenant, cost_mwt=1_000, deadline_ms=600_000))
    assert quiet.looked(3_300) == 0
    for _ in range(4):
        claim_one(quiet.store)
        quiet.looked(300)
    assert quiet.tier == 1


def test_one_job_that_hardly_waited_shows_that_no_queue_stands(quiet):
    for _ in range(9):
        admitted(quiet.store, a_job("patient", cost_mwt=1_000, deadline_ms=600_000))
    assert quiet.looked(3_300) == 0
    for i in range(6):
        assert claim_one(quiet.store).tenant == "patient"
        admitted(quiet.store, a_job(f"new{i}", cost_mwt=1_000, deadline_ms=600_000))
        claim_one(quiet.store)
        assert quiet.looked(300) == 0


def test_a_job_that_came_back_has_waited_since_then(quiet):
    held = [Held(job_id.decode(), "running") for job_id in quiet.store.client.zrange(keys.leases(), 0, -1)]
    quiet.looked(3_300)
    for job in held:
        assert quiet.store.release("w1", [job]) == 1
        claim_one(quiet.store)
        assert quiet.looked(300) == 0


def test_what_was_seen_before_a_time_without_looks_raises_nothing(quiet):
    quiet.fill(2_000)
    quiet.looked(500)
    quiet.pass_ms(2_001)
    assert quiet.looked(800) == 0


def test_a_tier_that_nobody_has_looked_at_is_over(pressed):
    pressed.pass_ms(2_001)
    learned(pressed, "blue", 500)
    answer = pressed.store.admit(a_long_job())
    assert isinstance(answer, Refused)
    assert (answer.reason, pressed.tier, pressed.store.snapshot().tiers) == ("deadline_unmeetable", 0, {MODEL: 0})


def test_a_job_that_would_be_refused_is_taken_and_answered_shorter(pressed):
    learned(pressed, "blue", 500)
    assert isinstance(pressed.store.admit(a_long_job(degrade=False)), Refused)
    job_id = admitted(pressed.store, a_long_job())
    assert seen(pressed.store, job_id).degraded == ()
    pressed.pass_ms(2_000)
    job = claimed_of(pressed, job_id)
    # Four fifths of the 6 s that are left, less 10 ms for the prompt, at 20 ms a token.
    assert job.max_tokens == 239
    assert seen(pressed.store, job_id).degraded == (Change("max_tokens", 500, 239, "tier 1"),)
    assert stat(pressed.store, "degraded|blue|max_tokens") == 1


def test_a_job_that_is_taken_for_its_short_answer_has_time_in_its_list_by_that(pressed):
    learned(pressed, "blue", 500)
    job_id = admitted(pressed.store, a_long_job())
    sooner = admitted(pressed.store, a_job("blue", latest_start_ms=1_000, cost_mwt=10_000, degrade=True))
    assert [seen(pressed.store, each).position for each in (sooner, job_id)] == [1, 2]


def test_what_it_was_taken_for_holds_when_the_pressure_is_over_by_its_turn(pressed):
    learned(pressed, "blue", 500)
    job_id = admitted(pressed.store, a_long_job())
    pressed.pass_ms(2_500)
    assert claimed_of(pressed, job_id).max_tokens == 219


def _rates_are_old(pool: HeldPool) -> None:
    pool.store.client.hset(keys.books(MODEL), "rates_ms", pool.now_ms - 10_001)


def test_what_it_was_taken_for_holds_when_the_rates_have_become_old_by_its_turn(pressed):
    learned(pressed, "blue", 2_000)
    job_id = admitted(pressed.store, a_long_job(max_tokens=2_000, deadline_ms=20_000))
    _rates_are_old(pressed)
    assert claimed_of(pressed, job_id).max_tokens == 799


def test_a_job_that_came_before_the_rates_were_known_is_cut_as_any_other(pressed):
    _rates_are_old(pressed)
    job_id = admitted(pressed.store, a_long_job())
    pressed.pass_ms(0)
    assert claimed_of(pressed, job_id).max_tokens == 319


def test_a_job_that_may_be_changed_is_not_while_nothing_presses(quiet):
    job_id = admitted(quiet.store, a_long_job())
    assert (claimed_of(quiet, job_id).max_tokens, seen(quiet.store, job_id).degraded) == (500, ())


def test_a_job_whose_tenant_did_not_opt_in_keeps_its_length_at_every_tier(pressed):
    job_id = admitted(pressed.store, a_long_job(degrade=False))
    pressed.fill(3_000)
    assert pressed.looked(1_100) == 2
    assert claimed_of(pressed, job_id).max_tokens == 500


def test_an_answer_that_fits_is_not_cut(pressed):
    job_id = admitted(pressed.store, a_long_job(max_tokens=200))
    assert (claimed_of(pressed, job_id).max_tokens, seen(pressed.store, job_id).degraded) == (200, ())


def test_no_answer_is_cut_below_thirty_two_tokens_nor_made_longer(pressed):
    few, fewer = admitted(pressed.store, a_long_job()), admitted(pressed.store, a_long_job("green", max_tokens=20))
    pressed.looked(7_900)
    got = {job.id: job.max_tokens for job in claim(pressed.store, room=50, cells_free=10**6)}
    assert (got[few], got[fewer]) == (32, 20)


def test_an_answer_of_which_not_even_thirty_two_tokens_fit_is_refused_as_ever(pressed):
    learned(pressed, "blue", 500)
    answer = refused(pressed.store, a_long_job(deadline_ms=700))
    assert (answer.reason, answer.value) == ("deadline_unmeetable", 10_010)


def test_the_same_claim_again_tells_the_same_length(pressed):
    job_id = admitted(pressed.store, a_long_job())
    first = pressed.store.claim("w1", "once", MODEL, room=50, cells_free=10**6)
    again = pressed.store.claim("w1", "once", MODEL, room=50, cells_free=10**6)
    assert {job.id: job.max_tokens for job in first} == {job.id: job.max_tokens for job in again}
    assert {job.id: job.max_tokens for job in again}[job_id] == 319


def test_a_job_that_is_claimed_again_is_cut_to_what_is_left_then_and_counted_once(pressed):
    job_id = admitted(pressed.store, a_long_job())
    held = claimed_of(pressed, job_id).held
    assert pressed.store.release("w1", [held]) == 1
    pressed.looked(1_000)
    assert claimed_of(pressed, job_id).max_tokens == 279
    assert seen(pressed.store, job_id).degraded == (Change("max_tokens", 500, 279, "tier 1"),)
    assert stat(pressed.store, "degraded|blue|max_tokens") == 1


def test_a_job_that_is_claimed_again_runs_as_asked_for_when_the_pressure_is_over(pressed):
    job_id = admitted(pressed.store, a_long_job())
    assert pressed.store.release("w1", [claimed_of(pressed, job_id).held]) == 1
    pressed.pass_ms(2_500)
    assert (claimed_of(pressed, job_id).max_tokens, seen(pressed.store, job_id).degraded) == (500, ())


def test_a_cut_job_ends_as_any_other_and_still_says_what_was_changed(pressed):
    job_id = admitted(pressed.store, a_long_job())
    pressed.store.settle(an_ending(claimed_of(pressed, job_id).held), "w1")
    view = seen(pressed.store, job_id)
    assert (view.state, view.finish_reason, view.degraded[0].before) == ("succeeded", "length", 500)


def test_at_tier_one_half_as_much_may_wait_of_each_tenant(quiet, settings):
    quiet.store.client.hset(keys.books(MODEL), "mean_mwt", 90_000)
    quiet.fill(1_000)
    assert quiet.looked(1_200) == 0
    admitted(quiet.store, a_job("blue", cost_mwt=100_000))
    before = refused(quiet.store, a_job("blue", cost_mwt=4_000_000)).max
    quiet.store.client.hset(keys.books(MODEL), mapping={"tier": 1, "tier_look_ms": quiet.now_ms, "tier_above_ms": 0})
    assert refused(quiet.store, a_job("blue", cost_mwt=4_000_000)).max == before // 2


def test_at_tier_two_only_tenants_under_their_share_come(pressed):
    pressed.fill(3_000)
    assert pressed.looked(1_100) == 2
    pressed.relieve()
    # A quarter of what may wait: the threshold of tier 1 would let each of two tenants wait with 1,500.
    admitted(pressed.store, a_job("blue", cost_mwt=800_000))
    admitted(pressed.store, a_job("green", cost_mwt=1_200_000))
    answer = refused(pressed.store, a_job("green", cost_mwt=10_000))
    assert (answer.limit, answer.value, answer.max) == ("tenant_waiting_work", 1_200, 1_000)
    admitted(pressed.store, a_job("blue", cost_mwt=10_000))
    admitted(pressed.store, a_job("new", cost_mwt=10_000))


def test_a_quote_says_what_the_door_would_and_moves_no_tier(pressed):
    learned(pressed, "blue", 500)
    before = contents(pressed.store)
    facts = {"prompt_tokens": 10, "max_tokens": 500, "deadline_ms": 8_000}
    assert pressed.store.quote("blue", MODEL, **facts).refused is not None
    assert pressed.store.quote("blue", MODEL, **facts, degrade=True).refused is None
    assert contents(pressed.store) == before


def all_but_births(store: Store) -> dict[str, Any]:
    """Every key byte for byte; but for when the door made RQ's record and the names of stream entries: real time."""
    found: dict[str, Any] = contents(store)
    for key in found:
        if store.client.type(key) == b"stream":
            found[key] = [fields for _, fields in store.client.xrange(key)]
        elif key.startswith(keys.rq_job("")):
            found[key] = {**store.client.hgetall(key), b"created_at": b""}
    return found


def test_where_degradation_is_off_jobs_that_may_be_changed_leave_the_store_byte_for_byte_as_others_do(store, settings):
    """The same story twice, once with jobs that may be changed: not a byte differs, whatever presses."""
    told = []
    for degrade in (False, True):
        store.client.flushall()
        reconfigure(store, settings, max_inflight=1_000, max_queue_size=100)
        pool = HeldPool(store)
        stories = [a_long_job(f"t{i % 5}", id=f"job{i}", degrade=degrade, deadline_ms=600_000) for i in range(40)]
        for job in stories:
            pool.pass_ms(100)
            store.admit(job)
        got = store.claim("w1", "one", MODEL, room=6, cells_free=10**6)
        pool.pass_ms(1_000)
        store.settle(an_ending(got[0].held), "w1")
        told.append(({job.id: job.max_tokens for job in got}, all_but_births(store)))
        assert {b"tier", b"wait_from_ms"} & set(store.client.hkeys(keys.books(MODEL))) == set()
    assert told[0] == told[1]

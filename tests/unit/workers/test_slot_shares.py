"""Tests of the slots that several pools of one worker share."""

from hypothesis import given
from hypothesis import strategies as st

from shared.clock import ManualClock
from workers.duties.claimed_jobs import ClaimedJobs
from workers.duties.slot_shares import Contender, PoolShare, SlotShares, divide


class Held(ClaimedJobs):
    """The jobs of a pool. A test sets how many have slots."""

    n = 0

    def computing(self, leaving=()) -> int:
        return self.n - len(leaving)


def shared(slots: int, pools: int) -> tuple[ManualClock, SlotShares, list[PoolShare]]:
    clock = ManualClock()
    shares = SlotShares(lambda: slots, clock)
    return clock, shares, [shares.join(Held()) for _ in range(pools)]


def wait_for_slots(*pools: PoolShare) -> None:
    for pool in pools:
        pool.may_wait = lambda: True


@given(st.integers(0, 64), st.lists(st.builds(Contender, st.floats(0, 1e6), st.floats(0.01, 100)), min_size=1))
def test_all_free_slots_are_divided(free, contenders):
    assert sum(divide(free, contenders)) == free


def test_a_pool_takes_all_slots_if_no_other_has_jobs():
    _, _, (one, _) = shared(8, 2)
    assert one.room(0) == 8


def test_pools_never_get_more_slots_together_than_the_engine_has():
    _, shares, pools = shared(8, 3)
    wait_for_slots(*pools)
    pools[0].claimed_jobs.n = 5
    assert sum(pool.room(0) for pool in pools) <= shares.free() == 3
    pools[1].claimed_jobs.n = 9
    assert [pool.room(0) for pool in pools] == [0, 0, 0]


def test_a_freed_slot_goes_to_the_pool_that_had_the_least_slot_time():
    clock, _, (one, two) = shared(2, 2)
    one.claimed_jobs.n = 2
    clock.advance(10)
    wait_for_slots(one, two)
    one.room(0)
    clock.advance(1)
    assert one.room(1) == 0
    one.claimed_jobs.n = 1
    assert two.room(0) == 1


def test_slot_time_follows_the_weights_even_with_one_slot():
    clock, _, pools = shared(1, 3)
    wait_for_slots(*pools)
    pools[0].weight = 4.0
    had = [0, 0, 0]
    for _ in range(600):
        rooms = [pool.room(0) for pool in pools]
        assert sum(rooms) == 1
        pool = rooms.index(1)
        pools[pool].claimed_jobs.n = 1
        had[pool] += 1
        clock.advance(1)
        pools[pool].room(0)
        pools[pool].claimed_jobs.n = 0
    assert had == [400, 100, 100]


def test_a_pool_that_was_idle_has_no_credit():
    clock, _, (one, two) = shared(1, 2)
    wait_for_slots(one)
    one.claimed_jobs.n = 1
    for _ in range(100):
        clock.advance(1)
        one.shares._count_service()
    wait_for_slots(two)
    one.claimed_jobs.n = 0
    assert abs(one.service_s - two.service_s) <= 1.0


def test_the_pools_wake_each_other_for_what_is_free_until_nobody_waits():
    _, _, (one, two, three) = shared(2, 3)
    woken = []
    for pool in (one, two, three):
        pool.wake = lambda pool=pool: woken.append(pool)
    wait_for_slots(two)
    one.pass_on()
    assert woken == [two]
    one.claimed_jobs.n = 2
    one.pass_on()
    assert woken == [two]


def test_the_pools_in_use_report_the_engines_slots_and_rates_together_and_so_do_all_idle_pools():
    _, _, pools = shared(5, 3)
    one, two, three = pools
    assert [pool.reported() for pool in pools] == [(2, 1 / 3), (2, 1 / 3), (1, 1 / 3)]
    one.claimed_jobs.n = 3
    assert one.reported() == (5, 1.0)
    two.claimed_jobs.n = 1
    two.weight = 3.0
    assert (one.reported(), two.reported()) == ((4, 0.25), (1, 0.75))
    one.claimed_jobs.n = 4
    assert (one.reported()[0], two.reported()[0], three.reported()[0]) == (4, 1, 1)


def test_the_first_job_of_an_idle_pool_brings_a_heartbeat():
    _, _, (one, _) = shared(2, 2)
    told = []
    one.report = lambda: told.append(one.reported())
    one.pass_on()
    one.claimed_jobs.n = 1
    one.pass_on()
    one.pass_on()
    assert told == [(2, 1.0)]

"""Tests of jobs whose workers crash: several are not blamed for one crash, and the job that is the cause ends alone."""

from math import ceil, log2

import pytest

from shared.jobs.outcomes import EndCode
from shared.jobs.states import JobState
from shared.store import keys
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    an_ending,
    claim,
    claim_one,
    heartbeat,
    hold_clock,
    pass_time,
    reconfigure,
    view_of,
)

SLOTS = 64


@pytest.fixture
def pool(store):
    hold_clock(store)
    heartbeat(store, "w1", slots=SLOTS)
    return store


def admit_jobs(store, count: int, tenants: str = "ab") -> list[str]:
    return [admitted(store, a_job(tenants[i % len(tenants)], deadline_ms=600_000)) for i in range(count)]


def lose(store, jobs) -> None:
    """Let the leases of these jobs end. Their worker has never sent a heartbeat."""
    store.client.zadd(keys.leases(), {job.id: 1 for job in jobs})
    store.reap()


class Fleet:
    """Workers that are killed by some jobs, or by chance, each followed by another one."""

    def __init__(self, store, killers: set[str]) -> None:
        self.store, self.killers, self.crashes, self.most = store, killers, 0, 0

    def run(self, ids: list[str]) -> None:
        """Run all jobs until they have ended."""
        for _ in range(60):
            if all(view_of(self.store, job_id).ended_ms for job_id in ids):
                return
            self.step()
        raise AssertionError("the jobs do not end")

    def step(self) -> None:
        """Let a new worker claim what it gets, and die if a killer is among it."""
        worker = f"x{self.crashes}"
        jobs = claim(self.store, worker, room=SLOTS)
        if self.killers & {job.id for job in jobs}:
            self.crashes += 1
            lose(self.store, jobs)
        else:
            for job in jobs:
                self.store.settle(an_ending(job.held), worker)


@pytest.mark.parametrize("max_attempts", [2, 3])
@pytest.mark.parametrize(("count", "killers"), [(1, 1), (2, 1), (3, 1), (8, 1), (33, 2), (64, 1)])
def test_only_the_job_that_kills_its_workers_fails(pool, settings, count, killers, max_attempts):
    reconfigure(pool, settings, max_attempts=max_attempts)
    ids = admit_jobs(pool, count)
    deadly = set(ids[count // 2 :][:killers])
    fleet = Fleet(pool, deadly)
    fleet.run(ids)
    for job_id in ids:
        view = view_of(pool, job_id)
        expected = (JobState.FAILED, EndCode.POISON) if job_id in deadly else (JobState.SUCCEEDED, None)
        assert (view.state, view.code or None) == expected
    assert fleet.crashes <= 2 + killers * (ceil(log2(count)) + max_attempts)


def test_jobs_whose_workers_crash_by_chance_lose_no_attempt_and_run_together_again(pool):
    """The crashes have nothing to do with the jobs. After two of them, the jobs run in halves, and these pass."""
    ids = admit_jobs(pool, 16)
    for number in range(2):
        jobs = claim(pool, f"dead{number}", room=SLOTS)
        assert len(jobs) == 16
        lose(pool, jobs)
    first = claim(pool, "next", room=SLOTS)
    assert len(first) == 8
    assert claim(pool, "next", room=SLOTS) == []
    for job in first:
        pool.settle(an_ending(job.held), "next")
    second = claim(pool, "next", room=SLOTS)
    assert {job.id for job in (*first, *second)} == set(ids)
    for job in second:
        pool.settle(an_ending(job.held), "next")
    admit_jobs(pool, 16)
    assert len(claim(pool, "next", room=SLOTS)) == 16


def test_a_job_that_may_have_no_company_gets_a_busy_worker_to_itself(pool):
    for _ in range(2):
        admitted(pool, a_job("busy"))
    held = claim(pool, room=2)
    suspects = admit_jobs(pool, 2)
    for number in range(2):
        lose(pool, claim(pool, f"dead{number}", room=2))
    first = claim_one(pool, "dead2")
    pool.settle(an_ending(first.held), "dead2")
    (left,) = set(suspects) - {first.id}
    for _ in range(30):
        admitted(pool, a_job("busy"))
    # The worker is not empty, so it passes the job a few times, and then takes no other.
    for _ in range(12):
        held += claim(pool)
    assert claim(pool, room=8) == []
    assert left not in {job.id for job in held}
    for _ in range(8):
        for job in held:
            pool.settle(an_ending(job.held), "w1")
        held = claim(pool, room=8)
        if left in {job.id for job in held}:
            break
    assert [job.id for job in held] == [left]
    assert claim(pool, room=8) == []
    pool.settle(an_ending(held[0].held), "w1")
    assert len(claim(pool, room=8)) == 8


def test_a_worker_that_ends_by_a_fault_costs_its_jobs_no_attempt(pool, settings):
    """Its jobs are taken back together, also the one that it claimed last and whose lease ends later."""
    reconfigure(pool, settings, max_attempts=2)
    ids = admit_jobs(pool, 3)
    for _ in range(2):
        heartbeat(pool, "a")
        assert len(claim(pool, "a", room=2)) == 2
        pass_time(pool, 1_000)
        assert len(claim(pool, "a", room=2)) == 1
        pool.farewell("a", MODEL, fault="the engine's loop ended")
        pass_time(pool, settings.lease_ms - 900)
        pool.reap()
        assert {view_of(pool, job_id).state for job_id in ids} == {JobState.QUEUED}


def test_a_lease_that_ends_although_the_worker_lives_counts_as_an_attempt(pool, settings):
    reconfigure(pool, settings, max_attempts=2)
    ids = admit_jobs(pool, 2)
    for _ in range(2):
        claim(pool, room=2)
        claim(pool, room=2)
        pass_time(pool, settings.lease_ms + 1_500, beating="w1")
        pool.reap()
    assert JobState.FAILED in {view_of(pool, job_id).state for job_id in ids}


def test_crashes_in_company_are_forgiven_a_bounded_number_of_times(pool):
    """Another program keeps the jobs together."""
    ids = admit_jobs(pool, 2)
    for crashes in range(1, 40):
        for job_id in ids:
            pool.client.hdel(keys.rq_job(job_id), "penstock_company")
        jobs = claim(pool, f"dead{crashes}", room=2)
        if not jobs:
            break
        lose(pool, jobs)
    assert {view_of(pool, job_id).code for job_id in ids} == {EndCode.POISON}
    assert 16 < crashes < 24


@pytest.mark.parametrize("spoiled", ["", "x", "-1", "1e300"])
def test_marks_that_another_program_has_spoiled_are_ignored(pool, spoiled):
    ids = admit_jobs(pool, 4)
    for job_id in ids:
        pool.client.hset(keys.rq_job(job_id), mapping={"penstock_company": spoiled, "penstock_pardons": spoiled})
    jobs = claim(pool, "dead", room=4)
    assert len(jobs) == 4
    lose(pool, jobs)
    assert len(claim(pool, room=4)) == 4

"""Tests of fairness: random scenarios run on the real scripts in virtual time, and service stays within its bound."""

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.sim.asks import GENERATED_WEIGHT, SimJob
from bench.sim.experiments.service_gap import OPEN
from bench.sim.fairness import Scenario, max_min, run_scenario
from bench.sim.ours import PenstockSystem
from bench.sim.scenarios import drawn, flood, floods_of_long_answers, named
from shared.audit.invariants import find_breaches
from tests.support.examples import examples

pytestmark = pytest.mark.thorough

#: Few enough examples for CI; `python -m bench.fairness` runs a thousand.
FEW_EXAMPLES = settings(
    max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def run_checked(client: redis.Redis, scenario: Scenario, **environ: str):
    """Run the scenario and check every invariant. Return the services in each pool over time and the ended jobs."""
    pools, jobs = run_scenario(PenstockSystem(client, OPEN | environ), scenario)
    assert find_breaches(client) == []
    return pools, jobs


@FEW_EXAMPLES
@given(seed=st.integers(0, 2**32 - 1), pools=st.integers(1, 3), grouped=st.booleans())
def test_the_services_of_two_tenants_or_groups_that_wait_for_one_pool_never_differ_by_more_than_the_bound(
    redis_client, seed, pools, grouped
):
    levels, jobs = run_checked(redis_client, drawn(seed, pools, grouped=grouped), PENSTOCK_PREEMPTION="off")
    assert all(services.worst() <= services.bound_wt for services in levels)
    # No tenant starves: no job is refused and none is late, so every job succeeds.
    assert {job.outcome for job in jobs} == {"succeeded"}


@settings(FEW_EXAMPLES, max_examples=examples(4))
@given(seed=st.integers(0, 2**32 - 1), pools=st.integers(1, 3), grouped=st.booleans())
def test_with_preemption_the_services_never_differ_by_more_than_what_the_slots_compute_in_a_quantum(
    redis_client, seed, pools, grouped
):
    levels, jobs = run_checked(redis_client, drawn(seed, pools, grouped=grouped), PENSTOCK_PREEMPTION="on")
    assert all(services.worst() <= services.bound_wt for services in levels)
    assert {job.outcome for job in jobs} == {"succeeded"}
    check_pauses(jobs, quantum_ms=1_000)


def check_pauses(jobs: list[SimJob], quantum_ms: int) -> None:
    """Check that no job was paused more often than once for each quarter of a quantum that it had had a slot."""
    # Workers report whole milliseconds.
    assert [job.number for job in jobs if job.pauses * (quantum_ms / 4 - 0.5) > job.slot_ms] == []


@settings(FEW_EXAMPLES, max_examples=examples(3))
@given(
    tenants=st.integers(2, 7),
    slots=st.integers(1, 4),
    quantum_ms=st.sampled_from([200, 1_000]),
    answers=st.lists(st.integers(5, 400), min_size=4, max_size=4),
)
def test_no_job_is_paused_more_than_once_for_each_quarter_of_a_quantum_in_a_slot(
    redis_client, tenants, slots, quantum_ms, answers
):
    jobs = [
        job
        for i in range(tenants)
        for at_ms in range(0, 8_000, 1_000 + 370 * i)
        for job in flood(f"t{i}", 1, prompt=20 + 60 * i, answer=answers[i % 4], at_ms=float(at_ms))
    ]
    scenario = Scenario(tuple(jobs), {"t0": 4.0}, 400.0, slots=slots)
    _, ended = run_checked(redis_client, scenario, PENSTOCK_PREEMPTION="on", PENSTOCK_QUANTUM_MS=str(quantum_ms))
    check_pauses(ended, quantum_ms)


@pytest.mark.parametrize("name", floods_of_long_answers())
def test_with_preemption_long_answers_differ_by_less_than_a_fifth_of_the_bound_without_it(redis_client, name):
    scenario = floods_of_long_answers()[name]
    (services,), _ = run_checked(redis_client, scenario, PENSTOCK_PREEMPTION="on")
    assert services.worst() <= services.bound_wt < scenario.batch_bound_wt / 5


@FEW_EXAMPLES
@given(
    job_counts=st.lists(st.integers(1, 60), min_size=2, max_size=6),
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=6, max_size=6),
    cut_s=st.floats(5.0, 40.0),
)
def test_at_any_time_every_tenant_has_received_its_max_min_share_within_the_bound(
    redis_client, job_counts, weights, cut_s
):
    jobs = [job for i, count in enumerate(job_counts) for job in flood(f"t{i}", count, prompt=100, answer=60)]
    by_weight = {f"t{i}": weights[i] for i in range(len(job_counts))}
    scenario = Scenario(tuple(jobs), by_weight, cut_s)
    (services,), _ = run_checked(redis_client, scenario)
    received = {tenant: units * by_weight[tenant] for tenant, units in services.served[-1].items()}
    demands = {f"t{i}": float(count * (100 + GENERATED_WEIGHT * 60)) for i, count in enumerate(job_counts)}
    shares = max_min(demands, by_weight, sum(received.values()))
    assert all(abs(received[tenant] - shares[tenant]) / by_weight[tenant] <= services.bound_wt for tenant in received)


def test_equal_jobs_are_claimed_in_exact_turns(redis_client):
    jobs = [job for tenant in ("a", "b", "c") for job in flood(tenant, 20, prompt=50, answer=20)]
    scenario = Scenario(tuple(jobs), {}, 60.0, slots=1)
    _, ended = run_checked(redis_client, scenario, PENSTOCK_FAIRNESS="turns")
    claimed = sorted((job for job in ended if job.claimed_ms is not None), key=lambda job: job.claimed_ms)
    assert [job.tenant for job in claimed[1:]] == (["a", "b", "c"] * 20)[1:]


def test_waiting_tenants_share_the_fleet_by_their_weights(redis_client):
    (services,), _ = run_checked(redis_client, named()["weights 1 2 3 4"])
    assert services.jain_while_all_wait() >= 0.995


def test_a_flood_does_not_delay_a_tenant_that_arrives_later(redis_client):
    scenario = named()["a flood, and a rival 5 s later"]
    (services,), jobs = run_checked(redis_client, scenario)
    first = min(job.claimed_ms for job in jobs if job.tenant == "rival" and job.claimed_ms is not None)
    # The rival arrives at 5000 ms, behind a flood of 400 jobs. A slot becomes free about every third of a second.
    assert first - 5_000 <= 1_500
    assert services.jain_while_all_wait() >= 0.995

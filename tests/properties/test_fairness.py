"""Whatever tenants send, those that wait are served alike: random scenarios over the real scripts in virtual time."""

import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.sim.asks import GENERATED_WEIGHT
from bench.sim.experiments.e2 import OPEN
from bench.sim.fairness import Scenario, max_min, watch
from bench.sim.ours import Ours
from bench.sim.scenarios import drawn, flood, named
from shared.audit.invariants import breaches

#: A number that CI can afford; `python -m bench.fairness` looks at a thousand.
FEW = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def seen(client: redis.Redis, scenario: Scenario, **environ: str):
    services, asks = watch(Ours(client, OPEN | environ), scenario)
    assert breaches(client) == []
    return services, asks


@FEW
@given(seed=st.integers(0, 2**32 - 1))
def test_two_tenants_that_wait_are_never_served_further_apart_than_the_bound(redis_client, seed):
    scenario = drawn(seed)
    services, asks = seen(redis_client, scenario)
    assert services.worst() <= scenario.batch_bound_wt + services.lift_wt
    # Nobody starves: with nothing refused and nobody late, everybody is answered in the end.
    assert {ask.outcome for ask in asks} == {"succeeded"}


@FEW
@given(
    jobs=st.lists(st.integers(1, 60), min_size=2, max_size=6),
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=6, max_size=6),
    cut_s=st.floats(5.0, 40.0),
)
def test_what_tenants_got_at_any_moment_is_their_max_min_share_within_the_bound(redis_client, jobs, weights, cut_s):
    asks = [ask for i, count in enumerate(jobs) for ask in flood(f"t{i}", count, prompt=100, answer=60)]
    by_weight = {f"t{i}": weights[i] for i in range(len(jobs))}
    scenario = Scenario(tuple(asks), by_weight, cut_s)
    services, _ = seen(redis_client, scenario)
    got = {tenant: units * by_weight[tenant] for tenant, units in services.served[-1].items()}
    demands = {f"t{i}": float(count * (100 + GENERATED_WEIGHT * 60)) for i, count in enumerate(jobs)}
    shares = max_min(demands, by_weight, sum(got.values()))
    within = scenario.batch_bound_wt + services.lift_wt
    assert all(abs(got[tenant] - shares[tenant]) / by_weight[tenant] <= within for tenant in got)


def test_turns_of_equal_jobs_are_exact(redis_client):
    asks = [ask for tenant in ("a", "b", "c") for ask in flood(tenant, 20, prompt=50, answer=20)]
    scenario = Scenario(tuple(asks), {}, 60.0, slots=1)
    _, ended = seen(redis_client, scenario, PENSTOCK_FAIRNESS="turns")
    claimed = sorted((ask for ask in ended if ask.claimed_ms is not None), key=lambda ask: ask.claimed_ms)
    assert [ask.tenant for ask in claimed[1:]] == (["a", "b", "c"] * 20)[1:]


def test_weights_share_the_fleet_among_those_who_wait(redis_client):
    services, _ = seen(redis_client, named()["weights 1 2 3 4"])
    assert services.jain_while_all_wait() >= 0.995


def test_a_flood_does_not_keep_a_late_rival_waiting(redis_client):
    scenario = named()["a flood, and a rival 5 s later"]
    services, asks = seen(redis_client, scenario)
    first = min(ask.claimed_ms for ask in asks if ask.tenant == "rival" and ask.claimed_ms is not None)
    # It came with a flood of 400 before it, and a slot is free about every third of a second.
    assert first - 5_000 <= 1_500
    assert services.jain_while_all_wait() >= 0.995

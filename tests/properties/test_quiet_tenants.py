"""Tests of E9 in virtual time: a quiet tenant with short answers beside a loud one with long answers."""

import pytest

from bench.sim.experiments.e9 import allowed_p99_ms, first_token_p99_ms, loud_share
from bench.sim.scenarios import loud_and_quiet
from tests.properties.test_fairness import run_checked

SECONDS = 30.0


@pytest.mark.parametrize("slots", [1, 4])
def test_a_quiet_tenant_starts_almost_as_soon_as_if_it_were_alone_and_no_slot_time_is_lost(redis_client, slots):
    _, alone = run_checked(redis_client, loud_and_quiet(slots, SECONDS, 3, loud=False))
    redis_client.flushall()
    scenario = loud_and_quiet(slots, SECONDS, 3)
    (services,), jobs = run_checked(redis_client, scenario)
    assert {job.outcome for job in jobs if job.tenant == "quiet"} == {"succeeded"}
    assert first_token_p99_ms(jobs) <= allowed_p99_ms(first_token_p99_ms(alone), slots)
    assert loud_share(services, scenario) >= 0.98

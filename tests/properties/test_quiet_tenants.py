"""Tests of E9 in virtual time: a quiet tenant with short answers beside loud ones with long answers."""

import pytest

from bench.sim.asks import SimJob
from bench.sim.experiments.first_tokens import QUANTUM_MS, allowed_p99_ms, first_token_p99_ms, loud_share
from bench.sim.fairness import Scenario
from bench.sim.scenarios import QUIET_TOKENS, flood, loud_and_quiet
from tests.properties.test_fairness import run_checked
from tests.support.cell import empty

pytestmark = pytest.mark.thorough

SECONDS = 30.0


@pytest.mark.parametrize("slots", [1, 4])
def test_a_quiet_tenant_starts_almost_as_soon_as_if_it_were_alone_and_no_slot_time_is_lost(redis_client, slots):
    _, alone = run_checked(redis_client, loud_and_quiet(slots, SECONDS, 3, loud=False))
    empty(redis_client)
    scenario = loud_and_quiet(slots, SECONDS, 3)
    (services,), jobs = run_checked(redis_client, scenario)
    assert {job.outcome for job in jobs if job.tenant == "quiet"} == {"succeeded"}
    assert first_token_p99_ms(jobs) <= allowed_p99_ms(first_token_p99_ms(alone), slots)
    assert loud_share(services, scenario) >= 0.98


@pytest.mark.parametrize(("slots", "answer", "every_ms"), [(16, 30, 1_000), (64, 150, 100), (64, 150, 1_000)])
def test_a_quiet_tenant_starts_soon_beside_answers_that_all_end_at_the_same_time(redis_client, slots, answer, every_ms):
    """Many slots become free at once, and none for seconds after that. Nobody may wait for one in the meantime."""
    loud = [job for i in range(3) for job in flood(f"loud{i}", 4 * slots, prompt=1, answer=answer)]
    quiet = [SimJob(0, "quiet", at_ms, 1, QUIET_TOKENS, 1_024, 3_000_000) for at_ms in range(2_000, 12_000, every_ms)]
    scenario = Scenario((*loud, *quiet), {}, SECONDS, slots=slots)
    _, jobs = run_checked(redis_client, scenario)
    assert {job.outcome for job in jobs if job.tenant == "quiet"} == {"succeeded"}
    two_steps_ms = 2 * scenario.machine.takes_ms(slots, 0, 0)
    # A slot that becomes free, or half of a quantum without one; then the time for which a job keeps its slot.
    assert first_token_p99_ms(jobs) <= QUANTUM_MS / 2 + QUANTUM_MS / 4 + 2 * two_steps_ms

"""A paused job that needs many KV cells resumes, although smaller jobs would fit into the free cells."""

import pytest

from shared.store import keys
from tests.support.builders import hold_clock
from tests.support.contending import Worker, a_worker, offer

pytestmark = pytest.mark.rq

OTHERS = ("b", "c", "d", "e")
#: Of 8,192 cells, three jobs of the first length leave enough for the large one, and three of the second do not.
FIRST_TOKENS, LATER_TOKENS, LARGE_TOKENS = 1_100, 1_200, 4_800


@pytest.fixture
def contest(preemptive):
    """A worker with 4 slots and 8,192 cells that computes jobs of four tenants, and the paused large job of a fifth."""
    hold_clock(preemptive)
    worker = a_worker(preemptive, cells=8_192)
    (large,) = offer(preemptive, "large", max_tokens=LARGE_TOKENS)
    worker.ask()
    worker.run(2_000)
    for tenant in OTHERS[:3]:
        offer(preemptive, tenant, max_tokens=FIRST_TOKENS)
    worker.ask()
    worker.run(1_000)
    offer(preemptive, OTHERS[3], max_tokens=LATER_TOKENS)
    assert worker.ask().pause == [large]
    return worker, large


def ends_until_it_goes_on(worker: Worker, large: str) -> int:
    """Let jobs of the others end, who have more queued. Return how many end until the large one resumes."""
    for ends in range(30):
        if large in worker.computing:
            return ends
        worker.beat()
        oldest = max(worker.computing, key=lambda job: worker.computing[job][1])
        offer(worker.store, worker.claims[oldest].tenant, max_tokens=LATER_TOKENS)
        worker.end(oldest)
        worker.ask()
        worker.run(100)
    pytest.fail(f"30 jobs ended while the large one was paused; {worker.tenants()} compute")


def test_a_paused_job_that_does_not_fit_is_passed_over_a_few_times_and_then_waited_for(contest):
    assert 8 <= ends_until_it_goes_on(*contest) <= 12


def test_a_job_that_has_got_its_slot_again_may_be_passed_over_as_often_as_before(contest):
    worker, large = contest
    ends_until_it_goes_on(worker, large)
    assert worker.store.client.hget(keys.rq_job(large), "penstock_skips") is None

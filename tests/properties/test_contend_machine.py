"""Tests that random exchanges, in which jobs are paused and resumed, agree with the reference model."""

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.stateful import initialize, invariant, multiple, precondition, rule, run_state_machine_as_test

from shared.jobs.job import ClaimRef
from shared.store import keys
from shared.store.replies import ClaimRequest, HeldProgress, Progress
from tests.properties.test_store_machine import RATES, StoreMachine
from tests.support.examples import examples
from tests.support.machine import CELLS, PROGRESS, SLUGS, TENANTS, WORKERS, QueueMachine
from tests.support.model_claim import HeldJob

pytestmark = pytest.mark.thorough
#: How far each running job of an exchange is. Leads of a part of a quantum need small differences.
EACH_PROGRESS = st.lists(st.one_of(st.sampled_from(PROGRESS), st.integers(0, 30).map(Progress)), min_size=1, max_size=4)


class ContendMachine(StoreMachine):
    """Workers report what they run, and pause and resume jobs as they are told, or otherwise."""

    claims = QueueMachine.claims
    ids = QueueMachine.ids

    @initialize(
        fairness=st.sampled_from(["tokens", "tokens", "turns"]),
        max_attempts=st.integers(1, 3),
        weight_milli=st.sampled_from([1_000, 500, 3_000]),
        rates=st.sampled_from([(0, 0, 0), *RATES]),
        grouped=st.sampled_from([(), ("ann", "bob"), ("ann", "bob", "cyd")]),
    )
    def begin(self, fairness, max_attempts, weight_milli, rates, grouped):
        options = {"max_queue_tokens": 2_000, "preemption": "on"}
        self.set_up(fairness, max_attempts, weight_milli, rates, grouped=grouped, **options)

    @rule(
        target=claims,
        worker=st.sampled_from(sorted(WORKERS)),
        slots=st.integers(1, 3),
        cells_free=st.sampled_from([3 * CELLS, 3 * CELLS, 60]),
        progress=EACH_PROGRESS,
        rows_ms=st.lists(st.sampled_from([0, 100, 250, 900, 1_000, 5_000]), min_size=1, max_size=4),
        stray=st.sampled_from([False, False, False, True]),
        twice=st.booleans(),
    )
    def exchange(self, worker, slots, cells_free, progress, rows_ms, *, stray, twice):
        """Report all that the worker holds; if `stray`, the first job as paused if it is not, or vice versa."""
        self.count += 1
        claim_id, slug = f"claim{self.count:04d}", WORKERS[worker]
        mine = sorted((j for j in self.model.inflight() if j.worker == worker), key=lambda job: job.id)
        pauses = [job.paused_since_ms > 0 for job in mine]
        if stray and pauses:
            pauses[0] = not pauses[0]
        held = [
            HeldJob(job.id, job.claim, *progress[i % len(progress)], None if is_paused else rows_ms[i % len(rows_ms)])
            for i, (job, is_paused) in enumerate(zip(mine, pauses, strict=True))
        ]
        held += [HeldJob("gone", "x", 0, 0, 5)] if stray else []
        room = max(0, slots - sum(job.row_ms is not None for job in held))
        given = worker, claim_id, slug
        told = self.model.contend(*given, room, cells_free, held)
        report = [HeldProgress(ClaimRef(job.id, job.token), *job[2:]) for job in held]
        for _ in range(1 + twice):
            got = self.store.contend(given[0], ClaimRequest(*given[1:], room=room, cells_free=cells_free, held=report))
            if not told.changes and _:
                break
            assert [job.id for job in got.started] == told.started
            assert (got.resume, got.pause, got.lost) == (told.resume, told.pause, told.lost)
            assert _ or got.ask_in_ms == told.ask_in_ms
        return multiple(*[(job_id, claim_id) for job_id in told.started])

    @rule(
        target=ids,
        worker=st.sampled_from(sorted(WORKERS)),
        slots=st.integers(1, 3),
        early=st.lists(st.sampled_from(TENANTS), min_size=1, max_size=4),
        late=st.lists(st.sampled_from(TENANTS), min_size=1, max_size=3),
        rounds=st.integers(1, 5),
        ms=st.sampled_from([300, 1_000]),
        ages_ms=st.lists(st.sampled_from([0, 0, 400]), min_size=1, max_size=3),
        tokens=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    )
    def tenants_contend_for_a_worker(self, worker, slots, early, late, rounds, ms, ages_ms, tokens):
        """Let some tenants take the slots of a worker and others come; then let the worker run and exchange."""
        slug, admitted = WORKERS[worker], []
        for tenants in (early, late):
            admitted += [self._admit(tenant, slug, 10, 100_000, max_tokens=130) for tenant in tenants]
            self.exchange(worker, slots, 3 * CELLS, PROGRESS[:1], [ms], stray=False, twice=False)
        for number in range(1, rounds + 1):
            self.tick(ms, {worker}, PROGRESS[0])
            progress = [Progress(number * each) for each in tokens]
            self.exchange(
                worker, slots, 3 * CELLS, progress, [number * ms + age for age in ages_ms], stray=False, twice=True
            )
        return multiple(*[job_id for job_id in admitted if job_id])

    @precondition(lambda self: hasattr(self, "model"))
    @invariant()
    def the_paused_jobs_agree(self):
        for slug in SLUGS:
            stored = self.client.hgetall(keys.rows(slug))
            for tenant in TENANTS:
                paused = [
                    j for j in self.model.inflight() if (j.tenant, j.slug) == (tenant, slug) and j.paused_since_ms
                ]
                assert int(stored.get(f"p|{tenant}".encode(), 0)) == len(paused)


@pytest.mark.timeout(600)
def test_exchanges_agree_with_the_reference_model(redis_client):
    ContendMachine.client = redis_client
    run_state_machine_as_test(
        ContendMachine,
        settings=settings(
            max_examples=examples(25), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rates=st.sampled_from([(0, 0, 0), *RATES]),
    grouped=st.sampled_from([(), ("ann", "bob"), ("ann", "bob", "cyd")]),
    slots=st.integers(1, 3),
    early=st.lists(st.sampled_from(TENANTS), min_size=1, max_size=4),
    late=st.lists(st.sampled_from(TENANTS), min_size=1, max_size=3),
    ages_ms=st.lists(st.sampled_from([0, 0, 400]), min_size=1, max_size=3),
    tokens=st.lists(st.integers(0, 30), min_size=1, max_size=4),
)
def test_the_exchanges_of_one_full_worker_agree_with_the_reference_model(
    redis_client, rates, grouped, slots, early, late, ages_ms, tokens
):
    """A random walk rarely meets the rules of turns: a lead between two bounds beside jobs that are old enough."""
    ContendMachine.client = redis_client
    machine = ContendMachine()
    machine.begin("tokens", 3, 1_000, rates, grouped)
    machine.tenants_contend_for_a_worker("w3", slots, early, late, 5, 1_000, ages_ms, tokens)
    machine.the_paused_jobs_agree()

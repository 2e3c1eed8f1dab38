"""Tests of the predicted waits for slots where running jobs are paused for tenants that have less than their share."""

import pytest

from shared.accounts.groups import Groups
from shared.accounts.tenants import Tenants
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.outcomes import Refused
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from tests.support.builders import MODEL, a_job, admitted, hold_clock, reconfigure, view_of
from tests.support.contending import QUANTUM_MS, QUANTUM_TOKENS, Worker

#: Only the deadline refuses jobs.
ROOMY = {"max_inflight": 1_000, "max_queue_size": 1_000, "max_wait_ms": 3_600_000}
#: A worker generates a token in this time in each slot, and exchanges its jobs with the store after some tokens.
TOKEN_MS = QUANTUM_MS // QUANTUM_TOKENS
EXCHANGE_MS = 5 * TOKEN_MS
EARLY_MS = QUANTUM_MS // 4
#: The time for a prompt of 10 tokens.
PROMPT_MS = 10


class Scene:
    """A store in held time, and a worker whose jobs end at their last tokens."""

    def __init__(self, store, settings, slots=4, *, can_pause=1, preemption="on"):
        reconfigure(store, settings, preemption=preemption, quantum_ms=QUANTUM_MS, **ROOMY)
        hold_clock(store)
        self.store, self.slots, self.can_pause = store, slots, can_pause
        self.worker, self.lengths, self.passed_ms = Worker(store, slots, cells=1_000_000), dict[str, int](), 0
        self.beat()
        # Long answers have ended here, of other tenants.
        self.store.client.hset(keys.books(MODEL), mapping={"run_ms": 48_000, "mean_mwt": 4_810_000})

    def beat(self):
        self.worker.can_pause = bool(self.can_pause)
        self.worker.rates = {"mu_wtps": 4 * QUANTUM_TOKENS * self.slots, "prefill_tps": 1_000, "tpot_ms": TOKEN_MS}
        self.worker.beat()

    def offer(self, tenant, jobs=1, tokens=10, deadline_ms=900_000, **given):
        """Offer jobs that the store must admit. Their answers have as many tokens as they may."""
        fields = {"max_tokens": tokens, "cost_mwt": 10_000 + 4_000 * tokens, "deadline_ms": deadline_ms} | given
        ids = [admitted(self.store, a_job(tenant, **fields)) for _ in range(jobs)]
        self.lengths |= dict.fromkeys(ids, tokens)
        return ids

    def run(self, ms):
        """Let the worker compute, and exchange its jobs now and then."""
        until_ms = self.passed_ms + ms
        while self.passed_ms < until_ms:
            self.worker.run(EXCHANGE_MS)
            self.passed_ms += EXCHANGE_MS
            if self.passed_ms % 1_000 < EXCHANGE_MS:
                self.beat()
            for job_id in [i for i, row in self.worker.computing.items() if row[0] >= self.lengths[i]]:
                self.worker.end(job_id)
            self.worker.ask()

    def forget_waits(self):
        """Forget what the waits of earlier jobs taught, so that they do not change later predictions."""
        self.store.client.hdel(keys.books(MODEL), "wait|s", "wait|n", "wait|h")

    def predicted_ms(self, job_id):
        """Return the predicted ms to the first token, from the admission."""
        return int(self.store.client.hget(keys.rq_job(job_id), "penstock_predicted").split()[0])

    def eta_ms(self, job_id):
        return (
            int(self.store.client.hget(keys.rq_job(job_id), "penstock_eta_ms"))
            - view_of(self.store, job_id).admitted_ms
        )

    def started_after_ms(self, job_id):
        view = view_of(self.store, job_id)
        assert view.first_claim_ms, "the job did not start"
        return view.first_claim_ms - view.admitted_ms

    def ended_after_ms(self, job_id):
        view = view_of(self.store, job_id)
        assert view.ended_ms, "the job did not end"
        return view.ended_ms - view.admitted_ms


@pytest.fixture
def scene(store, settings):
    """Four slots, which one tenant has had for 10 s with answers of 1,900 tokens."""
    return with_loud(Scene(store, settings))


def with_loud(scene, jobs=None, **given):
    scene.offer("loud", jobs or scene.slots, tokens=1_900, **given)
    scene.run(10_000)
    assert len(scene.worker.computing) == scene.slots
    scene.forget_waits()
    return scene


def learn_lengths(scene, tenant, tokens):
    scene.store.client.hset(
        keys.tenant(tenant), mapping={"len_n": 10, "len_mean": tokens, "len_p35": tokens, "len_p50": tokens}
    )


def test_a_short_job_beside_long_answers_is_admitted_and_starts_and_ends_as_predicted(scene):
    (quiet,) = scene.offer("quiet", deadline_ms=8_000)
    assert scene.predicted_ms(quiet) == EARLY_MS + PROMPT_MS
    assert scene.eta_ms(quiet) == EARLY_MS + PROMPT_MS + 10 * TOKEN_MS
    scene.run(2_000)
    assert scene.started_after_ms(quiet) <= EARLY_MS
    assert scene.ended_after_ms(quiet) <= scene.eta_ms(quiet)


@pytest.mark.parametrize("without", [{"preemption": "off"}, {"can_pause": 0}])
def test_where_nothing_is_paused_the_short_job_is_refused(store, settings, without):
    scene = with_loud(Scene(store, settings, **without))
    answer = scene.store.admit(a_job("quiet", max_tokens=10, deadline_ms=8_000))
    assert isinstance(answer, Refused)
    assert answer.reason == "deadline_unmeetable"
    quote = scene.store.quote(a_job("quiet", max_tokens=10, deadline_ms=8_000))
    assert quote.eta_ms >= 12_000


def test_a_pool_whose_workers_that_can_pause_are_silent_promises_no_pauses(scene):
    scene.can_pause = 0
    scene.run(6_000)
    answer = scene.store.admit(a_job("quiet", max_tokens=10, deadline_ms=8_000))
    assert isinstance(answer, Refused)


def test_a_quote_of_a_short_job_knows_that_it_starts_soon(scene):
    quote = scene.store.quote(a_job("quiet", max_tokens=10, deadline_ms=8_000))
    assert quote.eta_ms == EARLY_MS + PROMPT_MS + 10 * TOKEN_MS


def test_with_one_slot_a_short_job_waits_for_a_quantum(store, settings):
    scene = with_loud(Scene(store, settings, slots=1))
    (quiet,) = scene.offer("quiet", deadline_ms=8_000)
    assert scene.predicted_ms(quiet) == QUANTUM_MS + PROMPT_MS
    scene.run(2_000)
    assert scene.started_after_ms(quiet) <= scene.predicted_ms(quiet)


def test_with_one_slot_a_long_job_is_predicted_to_take_turns(store, settings):
    scene = with_loud(Scene(store, settings, slots=1))
    learn_lengths(scene, "rival", 250)
    (rival,) = scene.offer("rival", tokens=250)
    # It computes for 10 s: it gets the first second at once, and then every second one.
    assert scene.eta_ms(rival) == pytest.approx(19_000, rel=0.15)
    scene.run(24_000)
    assert scene.ended_after_ms(rival) == pytest.approx(scene.eta_ms(rival), rel=0.25)


def test_a_tenant_with_more_than_its_share_is_promised_no_early_start(scene):
    learn_lengths(scene, "loud", 1_900)
    scene.offer("rival", 8, tokens=1_900)
    scene.run(2_000)
    (late,) = scene.offer("loud", tokens=100)
    # Two of its four jobs are paused, and three of them must end before this one starts.
    assert scene.predicted_ms(late) > 30_000
    quote = scene.store.quote(a_job("loud", max_tokens=10, deadline_ms=8_000))
    assert quote.refused
    assert quote.refused.reason == "deadline_unmeetable"
    scene.run(20_000)
    assert not view_of(scene.store, late).first_claim_ms


def test_what_runs_for_the_tenant_itself_counts_with_its_usual_length(scene):
    learn_lengths(scene, "loud", 1_000)
    (more,) = scene.offer("loud", tokens=10)
    # The next of its four answers ends after a quarter of the time of one.
    assert scene.predicted_ms(more) == pytest.approx(1_000 * TOKEN_MS / 4, rel=0.05)


def test_the_weight_of_a_tenant_says_how_many_of_its_jobs_start_soon(store, settings):
    Tenants(store.client).set("heavy", TenantPolicy(weight=4.0))
    scene = with_loud(Scene(store, settings, slots=5))
    # Jobs with the same deadline would each be predicted to go before the others.
    jobs = [scene.offer("heavy", tokens=100, deadline_ms=900_000 + i)[0] for i in range(5)]
    predicted = [scene.predicted_ms(job) for job in jobs]
    assert predicted[:4] == [EARLY_MS + PROMPT_MS] * 4
    assert predicted[4] > 1_000
    scene.run(800)
    assert all(scene.started_after_ms(job) <= EARLY_MS for job in jobs[:4])


def test_a_light_tenant_beside_a_heavy_one_gets_a_slot_at_once_and_shares_it(store, settings):
    Tenants(store.client).set("loud", TenantPolicy(weight=4.0))
    scene = with_loud(Scene(store, settings), jobs=8)
    (light,) = scene.offer("light", tokens=10, deadline_ms=8_000)
    assert scene.predicted_ms(light) == EARLY_MS + PROMPT_MS
    scene.run(2_000)
    assert scene.ended_after_ms(light) <= scene.eta_ms(light)


def test_a_tenant_of_another_group_starts_soon_and_one_of_the_same_group_takes_a_slot_of_its_fellow(store, settings):
    for group in ("g", "h"):
        Groups(store.client).set(group, GroupPolicy())
    for tenant, group in (("loud", "g"), ("fellow", "g"), ("quiet", "h")):
        Tenants(store.client).set(tenant, TenantPolicy(group=group))
    scene = with_loud(Scene(store, settings))
    jobs = [scene.offer(tenant, deadline_ms=8_000)[0] for tenant in ("quiet", "fellow")]
    assert [scene.predicted_ms(job) for job in jobs] == [EARLY_MS + PROMPT_MS] * 2
    scene.run(2_000)
    assert all(scene.ended_after_ms(job) <= scene.eta_ms(job) for job in jobs)


@pytest.mark.parametrize("slots", [1, 4])
def test_batch_jobs_that_run_keep_nobody_waiting(store, settings, slots):
    scene = with_loud(Scene(store, settings, slots), priority=-1)
    jobs = [scene.offer(tenant, deadline_ms=8_000)[0] for tenant in ("loud", "quiet")[:slots]]
    assert [scene.predicted_ms(job) for job in jobs] == [EARLY_MS + PROMPT_MS] * len(jobs)
    scene.run(2_000)
    assert all(scene.ended_after_ms(job) <= scene.eta_ms(job) for job in jobs)


def test_with_more_tenants_than_slots_each_waits_for_its_turn(store, settings):
    scene = Scene(store, settings, slots=2)
    for tenant in ("a", "b", "c"):
        scene.offer(tenant, 1, tokens=1_900)
    scene.run(10_000)
    (newcomer,) = scene.offer("newcomer", deadline_ms=20_000)
    assert QUANTUM_MS <= scene.predicted_ms(newcomer) <= 3 * QUANTUM_MS
    scene.run(6_000)
    assert scene.started_after_ms(newcomer) <= 3 * QUANTUM_MS


def test_a_tenant_that_leads_in_service_waits_until_the_others_have_caught_up(store, settings):
    scene = with_loud(Scene(store, settings), jobs=8)
    client = store.client
    served = int(client.hget(keys.tenant("loud"), f"s|{MODEL}"))
    client.hset(keys.tenant("leader"), f"s|{MODEL}", served + 4_000_000)
    (job,) = scene.offer("leader", deadline_ms=60_000)
    # The other computes 400 wt a second, and the leader may lead by three quarters of a quantum.
    assert scene.predicted_ms(job) == pytest.approx(10_000, rel=0.05)
    scene.run(14_000)
    assert scene.started_after_ms(job) == pytest.approx(scene.predicted_ms(job), rel=0.2)


def test_a_crowd_of_owners_counts_with_one_slot_each(store, settings):
    scene = Scene(store, settings, slots=80)
    rows = keys.rows(MODEL)
    for i in range(70):
        scene.offer(f"t{i:02d}", tokens=1_900)
    scene.offer("loud", 10, tokens=1_900)
    scene.run(1_000)
    scene.forget_waits()
    assert scene.store.client.hlen(rows) == 71
    (quiet,) = scene.offer("quiet", deadline_ms=8_000)
    assert scene.predicted_ms(quiet) == EARLY_MS + PROMPT_MS
    scene.run(1_000)
    assert scene.started_after_ms(quiet) <= EARLY_MS


def test_while_the_worker_holds_as_many_paused_jobs_as_slots_a_newcomer_waits_until_another_tenant_leads_by_far(
    store, settings
):
    scene = Scene(store, settings, slots=2)
    for tenant in ("a", "b", "c", "d"):
        scene.offer(tenant, tokens=1_900)
        scene.run(3_000)
    assert len(scene.worker.paused) == 2
    scene.forget_waits()
    # Five tenants share two slots, and another one has to lead by three quanta. A second job waits until one ends.
    (first,) = scene.offer("late", deadline_ms=800_000)
    (second,) = scene.offer("late")
    assert scene.predicted_ms(first) == 8_500 + PROMPT_MS
    assert scene.predicted_ms(second) > 30_000


def test_waits_of_early_starts_are_a_class_of_their_own(scene):
    client = scene.store.client
    client.hset(keys.books(MODEL), mapping={"wait|n": 3_000, "wait|h": 3_000})
    (quiet,) = scene.offer("quiet", deadline_ms=8_000)
    assert scene.predicted_ms(quiet) == EARLY_MS + PROMPT_MS
    scene.run(200)
    assert int(client.hget(keys.books(MODEL), "wait|s")) < 0


@pytest.mark.parametrize("spoiled", ["abc", "-5", "1e300"])
def test_spoiled_numbers_of_slots_and_times_refuse_nobody_for_ever(scene, spoiled):
    before = scene.store.client.hgetall(keys.rows(MODEL))
    scene.store.client.hset(keys.rows(MODEL), mapping={"c|loud": spoiled, "cb|loud": spoiled, "p|quiet": spoiled})
    scene.offer("quiet")
    scene.store.client.hset(keys.books(MODEL), "can_pause_ms", spoiled)
    scene.offer("quiet")
    scene.beat()
    scene.store.reconcile("loud", MODEL)
    assert scene.store.client.hgetall(keys.rows(MODEL)) == before

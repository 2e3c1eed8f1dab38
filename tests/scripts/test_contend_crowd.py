"""Tests of preemption where a worker holds as many paused jobs as it may: one makes room for a newcomer's job."""

import pytest

from shared.store import keys
from shared.store.replies import ClaimRequest
from tests.support.answers import FINGERPRINT, Answer
from tests.support.builders import MODEL, heartbeat, hold_clock, reconfigure, view_of
from tests.support.contending import QUANTUM_MS, QUANTUM_TOKENS, Worker, offer

EXCHANGE_MS = 200
#: Long answers of many tenants are admitted, although they are more work than the pool can do in the usual time.
ROOMY = {"admission": "bounds"}


class Crowd:
    """A worker whose answers never end by themselves, and whose tokens are in the store."""

    def __init__(self, store, settings, slots, *, fingerprint=FINGERPRINT, **given):
        hold_clock(store)
        reconfigure(store, settings, preemption="on", quantum_ms=QUANTUM_MS, **ROOMY | given)
        self.store, self.worker, self.answers = store, Worker(store, slots, cells=1_000_000), dict[str, Answer]()
        rates = {"mu_wtps": 4 * QUANTUM_TOKENS * slots, "prefill_tps": 1_000, "tpot_ms": 1_000 // QUANTUM_TOKENS}
        self.facts = rates | {"can_pause": 1, "fingerprint": fingerprint}
        self.passed_ms, self.lost = 0, list[str]()
        self.beat()

    def beat(self):
        held = [one.held for one in self.worker.report()]
        heartbeat(self.store, "w1", *held, slots=self.worker.slots, cells=1_000_000, facts=self.facts)

    def run(self, ms):
        """Compute, store the tokens of each job, and make exchanges."""
        for _ in range(0, ms, EXCHANGE_MS):
            self.worker.run(EXCHANGE_MS)
            self.passed_ms += EXCHANGE_MS
            for job_id, (made, _) in self.worker.computing.items():
                answer = self.answers[job_id]
                answer.goes_on("words", range(answer.tokens, made))
            if self.passed_ms % 1_000 < EXCHANGE_MS:
                self.beat()
            self.ask()

    def ask(self):
        answer = self.worker.ask()
        self.lost += answer.lost
        for job in answer.started:
            self.answers[job.id] = Answer(self.store, job)
            self.worker.computing[job.id][0] = len(job.answer)

    def waits_ms(self, tenant, at_most_ms=30_000, **given):
        """Offer a job of a tenant; return how long it waits for a slot, in which it then stays for 400 ms."""
        (job_id,) = offer(self.store, tenant, max_tokens=10, **given)
        began_ms = self.passed_ms
        while job_id not in self.worker.computing and self.passed_ms - began_ms < at_most_ms:
            self.run(EXCHANGE_MS)
        waited_ms = self.passed_ms - began_ms
        self.run(400)
        if job_id in self.worker.claims:
            self.worker.end(job_id)
        return waited_ms


def with_long_answers(crowd, tenants, **given):
    """Let tenants come one after the other, each with a long answer, until no further job may be paused."""
    ids = []
    for i in range(tenants):
        ids += offer(crowd.store, f"loud{i}", max_tokens=10_000, **given)
        crowd.run(2_000)
    crowd.run(10_000)
    assert len(crowd.worker.paused) == crowd.worker.slots
    return ids


@pytest.mark.parametrize(("slots", "tenants"), [(1, 2), (1, 6), (4, 8), (4, 20)])
def test_a_newcomer_gets_a_slot_after_some_turns_however_many_long_answers_there_are(store, settings, slots, tenants):
    crowd = Crowd(store, settings, slots)
    long = with_long_answers(crowd, tenants)
    waits_ms = [crowd.waits_ms("quiet") for _ in range(3)]
    # The long answers take 400 s.
    assert max(waits_ms) <= 2_000 + 5_500 * (tenants + 1) / slots, waits_ms
    assert crowd.lost
    # Those that have made room continue after their tokens.
    assert all(crowd.answers[job_id].tokens > 0 for job_id in long)
    assert {view_of(store, job_id).attempts for job_id in long} <= {0, 1}
    assert int(store.client.hget(keys.books(MODEL), "paused")) == len(crowd.worker.paused) <= slots


def test_paused_batch_jobs_make_room_at_once(store, settings):
    crowd = Crowd(store, settings, 4)
    batch = offer(store, "batch", 4, max_tokens=10_000, priority=-1)
    crowd.run(2_000)
    offer(store, "loud", 4, max_tokens=10_000)
    crowd.run(2_000)
    assert sorted(crowd.worker.paused) == sorted(batch)
    assert crowd.waits_ms("quiet") <= EXCHANGE_MS
    assert crowd.lost[0] in batch


def test_a_tenant_with_a_paused_job_gets_no_room_for_another_one(store, settings):
    crowd = Crowd(store, settings, 1)
    with_long_answers(crowd, 2)
    (paused,) = crowd.worker.paused
    assert crowd.waits_ms(crowd.worker.claims[paused].tenant) == 30_000
    assert crowd.lost == []


@pytest.mark.parametrize("fields", [{"deadline_ms": 70_000}, {"fingerprint": ""}])
def test_jobs_that_could_not_continue_or_would_be_late_make_no_room(store, settings, fields):
    crowd = Crowd(store, settings, 1, **{name: given for name, given in fields.items() if name == "fingerprint"})
    with_long_answers(crowd, 2, deadline_ms=fields.get("deadline_ms", 600_000))
    assert crowd.waits_ms("quiet") == 30_000
    assert crowd.lost == []


def test_a_repeated_claim_says_again_which_job_has_made_room(store, settings):
    crowd = Crowd(store, settings, 4)
    offer(store, "batch", 4, max_tokens=10_000, priority=-1)
    crowd.run(2_000)
    offer(store, "loud", 4, max_tokens=10_000)
    crowd.run(2_000)
    offer(store, "quiet")
    given = {"room": 0, "cells_free": 1_000_000, "held": crowd.worker.report()}
    first = store.contend("w1", ClaimRequest("again", MODEL, **given))
    assert len(first.lost) == 1
    assert store.contend("w1", ClaimRequest("again", MODEL, **given)) == first

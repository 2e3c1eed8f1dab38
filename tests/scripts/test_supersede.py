"""Tests of supersede keys: a newer job with the same key replaces the older job in one step."""

from shared.store import keys
from shared.store.replies import Admitted
from tests.support.builders import (
    a_job,
    admitted,
    an_ending,
    claim_one,
    heartbeat,
    reconfigure,
    refused,
    view_of,
)


def a_keyed_job(tenant: str = "blue", digest: str = "d", **overrides: object):
    return a_job(tenant, supersede_digest=digest, **overrides)


def test_a_newer_job_cancels_the_queued_older_job(store):
    heartbeat(store)
    older, newer = admitted(store, a_keyed_job()), admitted(store, a_keyed_job())
    assert (view_of(store, older).state, view_of(store, older).code) == ("canceled", "superseded")
    assert view_of(store, newer).state == "queued"
    assert store.snapshot().inflight == 1


def test_a_running_older_job_is_flagged_for_cancel_and_ends_superseded(store):
    heartbeat(store)
    older = admitted(store, a_keyed_job())
    held = claim_one(store).held
    newer = admitted(store, a_keyed_job())
    assert view_of(store, older).cancel_requested
    assert store.wait_for_work("w1", "m", timeout_s=1).canceled == [older]
    store.settle(an_ending(held), "w1")
    assert (view_of(store, older).state, view_of(store, older).code) == ("canceled", "superseded")
    assert claim_one(store).id == newer


def test_of_three_jobs_with_one_key_only_the_newest_stays(store):
    heartbeat(store)
    ids = [admitted(store, a_keyed_job()) for _ in range(3)]
    assert [view_of(store, job_id).state for job_id in ids] == ["canceled", "canceled", "queued"]


def test_a_newer_job_does_not_affect_other_keys_other_tenants_or_jobs_without_a_key(store):
    heartbeat(store)
    others = [admitted(store, job) for job in (a_keyed_job("green"), a_keyed_job(digest="e"), a_job())]
    admitted(store, a_keyed_job())
    assert {view_of(store, job_id).state for job_id in others} == {"queued"}


def test_an_older_job_that_has_ended_keeps_its_outcome(store):
    heartbeat(store)
    older = admitted(store, a_keyed_job())
    store.settle(an_ending(claim_one(store).held), "w1")
    admitted(store, a_keyed_job())
    assert view_of(store, older).state == "succeeded"


def test_a_tenant_at_its_bound_may_supersede_its_own_job_and_the_bound_is_kept(store, settings):
    reconfigure(store, settings, max_queue_size=2, max_inflight=2)
    heartbeat(store)
    admitted(store, a_job())
    admitted(store, a_keyed_job())
    newer = admitted(store, a_keyed_job())
    assert store.snapshot().inflight == 2
    assert view_of(store, newer).position is not None


def test_a_refused_newer_job_leaves_the_older_job_unchanged(store, settings):
    reconfigure(store, settings, max_inflight=1)
    heartbeat(store)
    older = admitted(store, a_keyed_job())
    claim_one(store)
    assert refused(store, a_keyed_job()).reason == "inflight_full"
    assert not view_of(store, older).cancel_requested


def test_the_same_job_offered_again_does_not_supersede_itself(store):
    heartbeat(store)
    job = a_keyed_job()
    admitted(store, job)
    assert store.admit(job) == Admitted(job.id, again=True, position=1, inflight=1)
    assert view_of(store, job.id).state == "queued"


def test_a_supersede_key_expires_after_the_longest_possible_life_of_its_job(store):
    heartbeat(store)
    admitted(store, a_keyed_job(deadline_ms=5_000))
    assert 90_000 < store.client.pttl(keys.supersede("blue", "d")) <= 95_000


def test_a_supersede_key_that_names_an_unknown_job_does_not_prevent_an_admission(store):
    heartbeat(store)
    store.client.set(keys.supersede("blue", "d"), "gone", px=5_000)
    admitted(store, a_keyed_job())

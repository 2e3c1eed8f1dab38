"""A newer job of the same supersede_key: it takes the older one's place, in the same step."""

from shared.store import keys
from shared.store.replies import Admitted
from tests.support.builders import (
    a_job,
    admitted,
    an_ending,
    beat,
    claim_one,
    reconfigure,
    refused,
    seen,
)


def keyed(tenant: str = "blue", digest: str = "d", **spelled: object):
    return a_job(tenant, supersede_digest=digest, **spelled)


def test_a_newer_job_cancels_the_waiting_older_one(store):
    beat(store)
    older, newer = admitted(store, keyed()), admitted(store, keyed())
    assert (seen(store, older).state, seen(store, older).code) == ("canceled", "superseded")
    assert seen(store, newer).state == "queued"
    assert store.snapshot().inflight == 1


def test_a_running_older_one_is_asked_to_stop_and_ends_superseded(store):
    beat(store)
    older = admitted(store, keyed())
    held = claim_one(store).held
    newer = admitted(store, keyed())
    assert seen(store, older).cancel_requested
    assert store.wait_for_work("w1", "m", timeout_s=1)[1] == [older]
    store.settle(an_ending(held), "w1")
    assert (seen(store, older).state, seen(store, older).code) == ("canceled", "superseded")
    assert claim_one(store).id == newer


def test_of_three_the_newest_is_left(store):
    beat(store)
    ids = [admitted(store, keyed()) for _ in range(3)]
    assert [seen(store, job_id).state for job_id in ids] == ["canceled", "canceled", "queued"]


def test_other_keys_other_tenants_and_jobs_without_a_key_are_left_alone(store):
    beat(store)
    others = [admitted(store, job) for job in (keyed("green"), keyed(digest="e"), a_job())]
    admitted(store, keyed())
    assert {seen(store, job_id).state for job_id in others} == {"queued"}


def test_one_that_has_ended_stays_as_it_ended(store):
    beat(store)
    older = admitted(store, keyed())
    store.settle(an_ending(claim_one(store).held), "w1")
    admitted(store, keyed())
    assert seen(store, older).state == "succeeded"


def test_a_full_tenant_may_renew_and_its_bound_holds(store, settings):
    reconfigure(store, settings, max_queue_size=2, max_inflight=2)
    beat(store)
    admitted(store, a_job())
    admitted(store, keyed())
    newer = admitted(store, keyed())
    assert store.snapshot().inflight == 2
    assert seen(store, newer).position is not None


def test_a_refused_newer_job_leaves_the_older_one_where_it_is(store, settings):
    reconfigure(store, settings, max_inflight=1)
    beat(store)
    older = admitted(store, keyed())
    claim_one(store)
    assert refused(store, keyed()).reason == "inflight_full"
    assert not seen(store, older).cancel_requested


def test_the_same_job_offered_again_does_not_supersede_itself(store):
    beat(store)
    job = keyed()
    admitted(store, job)
    assert store.admit(job) == Admitted(job.id, again=True, position=1, inflight=1)
    assert seen(store, job.id).state == "queued"


def test_the_key_goes_with_the_longest_life_of_its_job(store):
    beat(store)
    admitted(store, keyed(deadline_ms=5_000))
    assert 90_000 < store.client.pttl(keys.supersede("blue", "d")) <= 95_000


def test_a_key_that_names_no_job_any_more_is_no_hindrance(store):
    beat(store)
    store.client.set(keys.supersede("blue", "d"), "gone", px=5_000)
    admitted(store, keyed())

"""Tests of the script `follow`, which a door calls for a client that follows the text of a job."""

import pytest

from shared.jobs.job import new_job_id
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import a_job, admitted, an_ending, claim_one, heartbeat, view_of


@pytest.fixture(autouse=True)
def a_worker(store: Store) -> None:
    heartbeat(store)


@pytest.mark.parametrize(("followed", "told"), [(1, True), (0, False), (None, None)])
def test_a_claim_says_whether_somebody_follows_the_job_if_its_door_says_so(store, followed, told):
    admitted(store, a_job(followed=followed))
    assert claim_one(store).is_followed is told


def test_a_queued_job_that_is_followed_is_claimed_as_such(store):
    job_id = admitted(store, a_job(followed=0))
    assert not view_of(store, job_id).is_followed
    assert store.follow(job_id)
    assert view_of(store, job_id).is_followed
    assert claim_one(store).is_followed


def test_the_worker_of_a_running_job_is_woken_once_however_many_follow_it(store):
    job_id = admitted(store, a_job(followed=0))
    claim_one(store)
    store.client.delete(keys.bell("w1"))
    assert [store.follow(job_id) for _ in range(3)] == [True] * 3
    rings = store.wait_for_work("w1", "", timeout_s=1)
    assert (rings.followed, rings.canceled) == ([job_id], [])


def test_one_wait_of_a_worker_returns_its_cancels_and_its_followers(store):
    one, two = (admitted(store, a_job(followed=0)) for _ in range(2))
    for _ in range(2):
        claim_one(store)
    store.cancel(one)
    store.follow(two)
    rings = store.wait_for_work("w1", "", timeout_s=1)
    assert (rings.canceled, rings.followed) == ([one], [two])


def test_another_attempt_knows_that_the_job_is_followed(store):
    job_id = admitted(store, a_job(followed=0))
    held = claim_one(store).held
    store.follow(job_id)
    store.release("w1", [held])
    assert claim_one(store).is_followed


def test_nobody_follows_a_job_that_has_ended_or_does_not_exist(store):
    job_id = admitted(store, a_job(followed=0))
    store.settle(an_ending(claim_one(store).held), "w1")
    assert not store.follow(job_id)
    unknown = new_job_id()
    assert not store.follow(unknown)
    assert not store.client.exists(keys.rq_job(unknown))


def test_a_follower_is_told_to_the_worker_when_memory_is_full(store, memory_is_full):
    job_id = admitted(store, a_job(followed=0))
    claim_one(store)
    with memory_is_full():
        assert store.follow(job_id)
    assert store.wait_for_work("w1", "", timeout_s=1).followed == [job_id]

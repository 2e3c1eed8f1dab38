"""Tests that each ring reaches a worker with a free slot."""

import pytest

from shared.store import keys
from tests.support.builders import MODEL
from workers.duties.doorbell import Doorbell, PoolSubscription


def doorbell(store, *, slots: int) -> tuple[Doorbell, list[str]]:
    """Return the duty of a worker with this many free slots, and what it has been told to do."""
    told: list[str] = []
    duty = Doorbell(
        store,
        "w1",
        MODEL,
        claimed_jobs=None,
        engine=None,
        pool=PoolSubscription(store, "w1"),
        has_free_slot=lambda: slots > 0,
        on_work=lambda: told.append("work"),
        on_contest=lambda: told.append("contest"),
        on_follower=told.append,
    )
    return duty, told


@pytest.mark.parametrize(("slots", "told", "forwarded"), [(1, ["work"], 0), (0, [], 1)])
def test_a_ring_for_a_prompt_starts_a_claim_or_goes_to_the_pool(store, slots, told, forwarded):
    store.client.lpush(keys.bell("w1"), "=")
    store.client.expire(keys.bell("w1"), 60)
    duty, heard = doorbell(store, slots=slots)
    assert duty.one_pass() == 0
    assert (heard, store.client.llen(keys.wake(MODEL))) == (told, forwarded)


def test_a_job_that_was_left_to_a_worker_without_a_free_slot_is_not_forwarded(store):
    store.client.lpush(keys.bell("w1"), "+")
    store.client.expire(keys.bell("w1"), 60)
    duty, heard = doorbell(store, slots=0)
    duty.one_pass()
    assert (heard, store.client.llen(keys.wake(MODEL))) == ([], 0)

"""Tests how much memory an ended job keeps, and that a tenant's index of jobs is no longer than the jobs' records."""

import pytest

from shared.jobs.job import Ending
from shared.jobs.outcomes import Outcome
from shared.store import keys
from tests.support.builders import a_job, admitted, advance_clock, an_ending, claim_one, heartbeat, reconfigure
from tests.support.pressure import START_MS

#: The most bytes that an ended job with a 64-byte prompt and an answer of 16 tokens may keep.
MOST_BYTES = 3_000


def end_one(store, **overrides):
    """Run one job through admission, claim, text and end; return its id."""
    job = a_job(payload={"prompt": "x" * 64}, key_label="default", offer="0" * 16, **overrides)
    admitted(store, job)
    claimed = claim_one(store, "host-07.cluster-4242-1a2b3c4d")
    store.append([(claimed.held, "some text of it, ", 8)])
    store.settle(an_ending(claimed.held, text="word " * 16), "host-07.cluster-4242-1a2b3c4d")
    return claimed.id


def kept_bytes(client):
    """Return the memory of all keys except the event streams, which live for a minute."""
    found = [key for key in client.scan_iter("*", count=1_000) if not key.startswith(b"penstock:events:")]
    return sum(client.memory_usage(key, samples=0) for key in found)


def test_an_ended_job_keeps_at_most_three_kilobytes(store):
    heartbeat(store)
    for _ in range(20):
        end_one(store)
    before = kept_bytes(store.client)
    for _ in range(100):
        end_one(store)
    assert (kept_bytes(store.client) - before) / 100 <= MOST_BYTES


def drop_records(store, ids):
    """Delete the records and results of ended jobs, as the store does when their TTL ends."""
    for job_id in ids:
        for prefix in ("rq:job:", "rq:results:", "penstock:result:", "penstock:events:"):
            store.client.delete(prefix + job_id)
        store.client.zrem("rq:finished:blue.m", job_id)


@pytest.fixture
def held(store):
    """Hold the store's time, so that every admission trims the index, and each at another place."""
    store.client.set(keys.clock(), f"={START_MS}")
    heartbeat(store)
    return store


def end_many(store, jobs):
    """Run `jobs` jobs, one every 7 ms, and return their ids."""
    ids = []
    for _ in range(jobs):
        now_ms = int(store.client.get(keys.clock())[1:]) + 7
        store.client.set(keys.clock(), f"={now_ms}")
        ids.append(end_one(store))
    return ids


def indexed(store):
    return {raw.decode() for raw in store.client.zrange(keys.jobs("blue"), 0, -1)}


def test_the_index_of_a_tenants_jobs_loses_the_ids_whose_records_are_gone(held):
    ended = end_many(held, 60)
    drop_records(held, ended)
    kept = end_many(held, 10)
    assert indexed(held) == set(kept)


def test_jobs_with_far_deadlines_do_not_keep_the_ids_behind_them_in_the_index(held, settings):
    reconfigure(held, settings, max_queue_size=100)
    # As many jobs as one admission examines at the start of the index wait for a model whose worker claims nothing.
    heartbeat(held, "w2", model="other")
    for _ in range(16):
        admitted(held, a_job(model="other", deadline_ms=86_400_000))
    ended = end_many(held, 60)
    drop_records(held, ended)
    end_many(held, 60)
    assert len(indexed(held) & set(ended)) < 15


def test_the_index_of_a_tenants_jobs_disappears_with_the_last_record(store):
    heartbeat(store)
    job_id = admitted(store, a_job(deadline_ms=10_000))
    # A job ends at its deadline, or two leases later if its worker dies, plus a minute for the reaper.
    assert 3_640 <= store.client.ttl(keys.jobs("blue")) <= 3_600 + 10 + 2 * 15 + 60
    claimed = claim_one(store)
    store.settle(Ending(job_id, claimed.token, Outcome.SUCCEEDED), "w1")
    assert store.client.ttl(keys.jobs("blue")) <= 3_600 + 10 + 2 * 15 + 60


def test_a_job_that_ends_much_later_than_its_deadline_stays_in_the_index_as_long_as_its_record(store):
    heartbeat(store)
    job_id = admitted(store, a_job(deadline_ms=10_000))
    store.client.expire(keys.jobs("blue"), 5)
    advance_clock(store, 10_001)
    store.reap()
    assert store.client.ttl(keys.jobs("blue")) >= store.client.ttl(keys.rq_job(job_id)) > 3_500

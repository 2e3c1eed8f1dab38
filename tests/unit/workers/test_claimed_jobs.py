"""Tests of ClaimedJobs: one claim per job, and cancels that arrive before or after the claim."""

from typing import Any

from shared.jobs.job import ClaimedJob, ClaimRef
from workers.duties.claimed_jobs import ClaimedJobs

FIRST = ClaimRef("j1", "t1")


def a_claim(job_id: str = "j1", token: str = "t1", **overrides: Any) -> ClaimedJob:
    fields: dict[str, Any] = {
        "id": job_id,
        "token": token,
        "tenant": "blue",
        "model": "m",
        "payload": {"prompt": "hello"},
        "attempt": 1,
        "deadline_in_ms": 60_000,
        "start_in_ms": None,
        "prompt_tokens": 1,
        "max_tokens": 2,
    }
    return ClaimedJob(**(fields | overrides))


def test_a_claimed_job_is_listed_until_it_is_removed():
    claimed_jobs = ClaimedJobs()
    (entry,), replaced = claimed_jobs.add([a_claim()], 5.0)
    assert (entry.claim, entry.claimed_s, replaced) == (FIRST, 5.0, [])
    assert claimed_jobs.held() == [FIRST]
    assert claimed_jobs.remove(FIRST) is entry
    assert claimed_jobs.remove(FIRST) is None
    assert len(claimed_jobs) == 0


def test_adding_the_same_claim_twice_keeps_one_entry():
    claimed_jobs = ClaimedJobs()
    claimed_jobs.add([a_claim()], 5.0)
    assert claimed_jobs.add([a_claim()], 6.0) == ([], [])
    assert len(claimed_jobs) == 1


def test_a_newer_claim_replaces_the_older_one_of_the_same_job():
    claimed_jobs = ClaimedJobs()
    claimed_jobs.add([a_claim()], 5.0)
    (entry,), replaced = claimed_jobs.add([a_claim(token="t2")], 6.0)
    assert replaced == [FIRST]
    assert claimed_jobs.get(FIRST) is None
    assert claimed_jobs.get(ClaimRef("j1", "t2")) is entry
    assert claimed_jobs.remove(FIRST) is None
    assert len(claimed_jobs) == 1


def test_a_cancel_marks_the_claimed_job():
    claimed_jobs = ClaimedJobs()
    (entry,), _ = claimed_jobs.add([a_claim()], 5.0)
    assert claimed_jobs.request_cancel("j1") == FIRST
    assert entry.cancel_requested


def test_a_cancel_that_arrives_before_the_claims_answer_marks_the_job_when_it_is_added():
    claimed_jobs = ClaimedJobs()
    assert claimed_jobs.request_cancel("j1") is None
    (entry, other), _ = claimed_jobs.add([a_claim(), a_claim("j2")], 5.0)
    assert entry.cancel_requested
    assert not other.cancel_requested


def test_a_claim_that_was_canceled_before_it_was_answered_is_marked_as_canceled():
    (entry,), _ = ClaimedJobs().add([a_claim(cancel_requested=True)], 5.0)
    assert entry.cancel_requested


def test_cancels_of_jobs_that_are_never_claimed_do_not_accumulate():
    claimed_jobs = ClaimedJobs()
    for number in range(10_000):
        claimed_jobs.request_cancel(f"unclaimed{number}")
    assert len(claimed_jobs._early_cancels) <= 256
    (entry,), _ = claimed_jobs.add([a_claim("unclaimed9999")], 5.0)
    assert entry.cancel_requested

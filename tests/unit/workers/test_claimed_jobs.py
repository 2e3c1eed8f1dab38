"""What a worker holds: one claim of a job at a time, and cancels in whatever order they come."""

from typing import Any

from shared.jobs.job import Claimed
from workers.duties.claimed_jobs import ClaimedJobs, key_of


def a_claim(job_id: str = "j1", token: str = "t1", **spelled: Any) -> Claimed:
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
    return Claimed(**(fields | spelled))


def test_what_is_held_is_named_until_it_is_let_go():
    claimed_jobs = ClaimedJobs()
    (entry,), replaced = claimed_jobs.take([a_claim()], 5.0)
    assert (entry.key, entry.taken_s, replaced) == ("j1:t1", 5.0, [])
    assert [key_of(held) for held in claimed_jobs.named()] == ["j1:t1"]
    assert claimed_jobs.let_go("j1:t1") is entry
    assert claimed_jobs.let_go("j1:t1") is None
    assert len(claimed_jobs) == 0


def test_the_same_claim_taken_twice_is_one():
    claimed_jobs = ClaimedJobs()
    claimed_jobs.take([a_claim()], 5.0)
    assert claimed_jobs.take([a_claim()], 6.0) == ([], [])
    assert len(claimed_jobs) == 1


def test_a_newer_claim_replaces_the_older_one_of_the_same_job():
    claimed_jobs = ClaimedJobs()
    claimed_jobs.take([a_claim()], 5.0)
    (entry,), replaced = claimed_jobs.take([a_claim(token="t2")], 6.0)
    assert replaced == ["j1:t1"]
    assert claimed_jobs.get("j1:t1") is None
    assert claimed_jobs.get("j1:t2") is entry
    assert claimed_jobs.let_go("j1:t1") is None
    assert len(claimed_jobs) == 1


def test_a_cancel_finds_the_held_job():
    claimed_jobs = ClaimedJobs()
    (entry,), _ = claimed_jobs.take([a_claim()], 5.0)
    assert claimed_jobs.ask_cancel("j1") == "j1:t1"
    assert entry.cancel_asked


def test_a_cancel_that_comes_before_the_claims_answer_waits_for_it():
    claimed_jobs = ClaimedJobs()
    assert claimed_jobs.ask_cancel("j1") is None
    (entry, other), _ = claimed_jobs.take([a_claim(), a_claim("j2")], 5.0)
    assert entry.cancel_asked
    assert not other.cancel_asked


def test_a_claim_may_say_itself_that_it_was_canceled():
    (entry,), _ = ClaimedJobs().take([a_claim(cancel_requested=True)], 5.0)
    assert entry.cancel_asked


def test_cancels_of_jobs_that_never_come_do_not_pile_up():
    claimed_jobs = ClaimedJobs()
    for number in range(10_000):
        claimed_jobs.ask_cancel(f"gone{number}")
    assert len(claimed_jobs._early_cancels) <= 256
    (entry,), _ = claimed_jobs.take([a_claim("gone9999")], 5.0)
    assert entry.cancel_asked

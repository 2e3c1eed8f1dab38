"""Tests the timeline of a job: which stages it has, when they began, and how long they took."""

from typing import Any

from shared.views.timeline import timeline

BEGAN_S = 1_790_000_000.0
NO_WAIT = {"own_ms": 0, "turn_ms": 0, "paused_ms": 0, "requeued_ms": 0}


def a_job(**fields: Any) -> dict[str, Any]:
    """Return the JSON of a job that was admitted at BEGAN_S."""
    job: dict[str, Any] = {"status": "queued", "created_at": BEGAN_S, "started_at": None, "ended_at": None}
    return job | {"attempts": 0, "usage": None, "error": None, "finish_reason": None, "waited": NO_WAIT} | fields


def steps_of(job: dict[str, Any], now_s: float = 60.0) -> list[tuple[str, int | None, int | None]]:
    return [(step.what, step.at_ms, step.took_ms) for step in timeline(job, 1000 * (BEGAN_S + now_s))]


def test_an_ended_job_has_every_stage_and_their_times_add_up():
    usage = {"start_ms": 50, "prefill_ms": 450, "decode_ms": 2_500, "prompt_tokens": 40, "completion_tokens": 9}
    job = a_job(
        status="succeeded",
        finish_reason="stop",
        started_at=BEGAN_S + 2,
        ended_at=BEGAN_S + 5,
        attempts=1,
        usage=usage,
        waited=NO_WAIT | {"own_ms": 1_500, "turn_ms": 500},
    )
    assert steps_of(job) == [
        ("admitted", 0, None),
        ("waited", 0, 1_500),
        ("waited", 1_500, 500),
        ("claimed", 2_000, None),
        ("prepared", 2_000, 50),
        ("prefill", 2_050, 450),
        ("decode", 2_500, 2_500),
        ("ended", 5_000, None),
    ]
    assert timeline(job, 0)[-1].why == "succeeded (stop)"


def test_a_job_that_expired_in_its_queue_was_never_claimed():
    error = {"code": "deadline_exceeded", "message": "", "stage": "queue"}
    waited = NO_WAIT | {"own_ms": 1_000, "turn_ms": 4_000}
    job = a_job(status="expired", ended_at=BEGAN_S + 5, error=error, waited=waited)
    assert [what for what, _, _ in steps_of(job)] == ["admitted", "waited", "waited", "ended"]
    assert timeline(job, 0)[-1].why == "expired (deadline_exceeded)"


def test_earlier_attempts_are_the_time_between_the_first_and_the_last_claim_without_the_waits():
    waited = NO_WAIT | {"turn_ms": 1_000, "requeued_ms": 3_000}
    job = a_job(status="running", started_at=BEGAN_S + 20, attempts=2, waited=waited)
    assert steps_of(job, now_s=25) == [
        ("admitted", 0, None),
        ("waited", 0, 1_000),
        ("ran before", 1_000, 16_000),
        ("requeued", None, 3_000),
        ("claimed", 20_000, None),
        ("running", 20_000, 5_000),
    ]


def test_a_job_that_is_back_in_its_queue_says_so():
    job = a_job(attempts=1, waited=NO_WAIT | {"requeued_ms": 700})
    assert steps_of(job) == [("admitted", 0, None), ("requeued", None, 700)]


def test_a_paused_job_does_not_claim_to_know_when_its_answer_began():
    usage = {"start_ms": 0, "prefill_ms": 100, "decode_ms": 200, "prompt_tokens": 4, "cached_tokens": 3}
    job = a_job(
        status="succeeded",
        started_at=BEGAN_S,
        ended_at=BEGAN_S + 2,
        attempts=1,
        usage=usage,
        waited=NO_WAIT | {"paused_ms": 1_700},
    )
    assert ("decode", None, 200) in steps_of(job)
    assert ("paused", None, 1_700) in steps_of(job)
    (prefill,) = [step for step in timeline(job, 0) if step.what == "prefill"]
    assert prefill.why == "4 prompt tokens, 3 of them reused"


def test_a_clock_behind_that_of_the_store_shows_no_negative_times():
    job = a_job(status="running", started_at=BEGAN_S, attempts=1)
    assert steps_of(job, now_s=-3)[-1] == ("running", 0, 0)


def test_a_job_of_a_door_that_does_not_say_how_long_it_waited_shows_its_last_claim():
    usage = {"start_ms": 0, "prefill_ms": 100, "decode_ms": 900, "prompt_tokens": 4}
    ended = a_job(status="succeeded", started_at=BEGAN_S + 2, ended_at=BEGAN_S + 3, attempts=2, usage=usage)
    del ended["waited"]
    steps = [("claimed", 2_000, None), ("prefill", 2_000, 100), ("decode", 2_100, 900), ("ended", 3_000, None)]
    assert steps_of(ended) == [("admitted", 0, None), *steps]
    queued = a_job()
    del queued["waited"]
    assert steps_of(queued) == [("admitted", 0, None)]


def test_a_job_without_the_time_of_its_admission_has_no_stages():
    assert steps_of({"id": "j1", "status": "succeeded"}) == []

"""The parts of a job's time add up to it, to the millisecond, whatever the clocks of store and worker measured."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shared.jobs.job import JobView, Usage
from shared.jobs.states import JobState
from shared.views.time_parts import time_parts, tokens_per_s

BEGAN_MS = 1_790_000_000_000


def a_view(**fields: Any) -> JobView:
    """Return a job that was admitted at BEGAN_MS, and that waits."""
    values: dict[str, Any] = {
        "id": "a",
        "tenant": "blue",
        "model": "m",
        "state": JobState.QUEUED,
        "admitted_ms": BEGAN_MS,
        "deadline_at_ms": BEGAN_MS + 60_000,
        "started_ms": None,
        "ended_ms": None,
        "deadline_ms": 60_000,
        "deadline_source": "body",
        "attempts": 0,
        "cancel_requested": False,
        "prompt_tokens": 10,
        "max_tokens": 20,
        "finish_reason": "",
        "code": "",
        "stage": "",
        "worker": "",
        "text": None,
        "usage": None,
        "message": "",
        "position": None,
        "now_ms": BEGAN_MS + 10_000,
    }
    return JobView(**(values | fields))


def parts_of(view: JobView, **more: int) -> dict[str, int]:
    return {part.kind: part.ms for part in time_parts(view, **more)}


def test_an_ended_job_has_its_waits_its_attempt_and_what_the_hand_over_took():
    view = a_view(
        state=JobState.SUCCEEDED,
        head_ms=BEGAN_MS + 1_000,
        first_claim_ms=BEGAN_MS + 1_500,
        started_ms=BEGAN_MS + 1_500,
        ended_ms=BEGAN_MS + 5_000,
        paused_ms=700,
        usage=Usage(10, 4, 20, 300, 2_400, 340),
        attempts=1,
    )
    assert parts_of(view, retrieval_ms=12) == {
        "retrieval": 12,
        "own": 1_000,
        "turn": 500,
        "paused": 700,
        "prepared": 40,
        "prefill": 300,
        "decode": 2_400,
        "handover": 60,
    }
    assert {part.kind: part.why for part in time_parts(view)}["prefill"] == "10 tokens, 4 of them reused"


def test_earlier_attempts_and_the_waits_between_them_are_parts_of_their_own():
    view = a_view(
        state=JobState.RUNNING,
        head_ms=BEGAN_MS,
        first_claim_ms=BEGAN_MS + 1_000,
        started_ms=BEGAN_MS + 6_000,
        requeued_ms=1_500,
        attempts=2,
    )
    assert parts_of(view) == {"turn": 1_000, "earlier": 3_500, "requeued": 1_500, "running": 4_000}


def test_a_job_that_was_never_claimed_has_only_waited():
    view = a_view(state=JobState.EXPIRED, head_ms=BEGAN_MS + 300, ended_ms=BEGAN_MS + 900)
    assert parts_of(view) == {"own": 300, "turn": 600}


times = st.none() | st.integers(-500, 8_000)
sums = st.integers(0, 9_000)


@given(
    marks=st.lists(st.integers(0, 9_000), min_size=4, max_size=4),
    reached=st.integers(0, 4),
    waits=st.tuples(sums, sums, sums, times, times),
    worker=st.tuples(times, times, times),
    retrieval_ms=st.integers(0, 500),
)
def test_the_parts_of_any_job_add_up_to_its_time(marks, reached, waits, worker, retrieval_ms):
    head, first, last, end = (BEGAN_MS + mark if place < reached else None for place, mark in enumerate(sorted(marks)))
    prefill_ms, decode_ms, ttft_ms = worker
    paused_ms, requeued_ms, _, paused_since, requeued_since = waits
    view = a_view(
        head_ms=head,
        first_claim_ms=first,
        started_ms=last,
        ended_ms=end,
        paused_ms=paused_ms,
        requeued_ms=requeued_ms,
        paused_since_ms=None if paused_since is None else BEGAN_MS + paused_since,
        requeued_since_ms=None if requeued_since is None else BEGAN_MS + requeued_since,
        usage=Usage(5, 0, 5, prefill_ms, decode_ms, ttft_ms),
    )
    parts = time_parts(view, retrieval_ms=retrieval_ms)
    until_ms = view.now_ms if end is None else end
    assert sum(part.ms for part in parts) == until_ms - BEGAN_MS + retrieval_ms
    assert all(part.ms > 0 for part in parts)
    assert len({part.kind for part in parts}) == len(parts)


def test_a_rate_is_unknown_without_a_time_or_tokens():
    assert tokens_per_s(20, 500) == 40
    assert tokens_per_s(20, 0) is tokens_per_s(20, None) is tokens_per_s(0, 5) is None

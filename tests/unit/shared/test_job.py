"""Tests the ids, claims and endings of jobs."""

import json
import re

import pytest

from shared.jobs.job import ClaimedJob, ClaimRef, Ending, Usage, new_job_id
from shared.jobs.outcomes import Outcome


def test_job_ids_are_unique_and_have_22_characters_that_rq_allows():
    ids = {new_job_id() for _ in range(1_000)}
    assert len(ids) == 1_000
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{22}", job_id) for job_id in ids)


def test_a_result_holds_text_usage_and_message_as_plain_json():
    ending = Ending(
        "i", "t", Outcome.SUCCEEDED, text='ö\n"', message="m", usage=Usage(1, 2, 3), extra={"embeddings": 1}
    )
    assert json.loads(ending.result_json()) == {
        "text": 'ö\n"',
        "usage": {
            "prompt_tokens": 1,
            "cached_tokens": 2,
            "completion_tokens": 3,
            "prefill_ms": None,
            "decode_ms": None,
            "ttft_ms": None,
        },
        "message": "m",
        "embeddings": 1,
    }
    assert "ö" in ending.result_json()


def test_a_result_is_the_same_text_each_time_that_a_settle_is_repeated():
    logprobs = [["a", -0.5, [["a", -0.5], ["b", -1.5]]]]
    extra = {"logprobs": logprobs, "candidates": [{"mean_logprob": -0.5, "logprobs": logprobs}]}
    ending = Ending("i", "t", Outcome.SUCCEEDED, text="a", usage=Usage(1, 0, 1), extra=extra)
    assert ending.result_json() == ending.result_json()


def test_a_claimed_job_is_referred_to_by_its_id_and_its_claim_token():
    claimed = ClaimedJob("i", "t", "blue", "m", {}, 1, 1_000, None, 1, 1)
    assert claimed.held == ClaimRef("i", "t")


def test_a_reference_to_a_claim_cannot_be_changed():
    held = ClaimRef("i", "t")
    with pytest.raises(AttributeError):
        held.token = "other"  # type: ignore[misc]  # the test is that this fails

"""A job's ids and endings as they are handed around."""

import json
import re
from dataclasses import FrozenInstanceError

import pytest

from shared.jobs.job import Claimed, Ending, Held, Usage, new_job_id
from shared.jobs.outcomes import Outcome


def test_ids_are_unguessable_and_fit_rqs_alphabet():
    ids = {new_job_id() for _ in range(1_000)}
    assert len(ids) == 1_000
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{22}", job_id) for job_id in ids)


def test_a_result_holds_text_usage_and_message_as_plain_json():
    ending = Ending("i", "t", Outcome.SUCCEEDED, text='ö\n"', message="m", usage=Usage(1, 2, 3), extra={"logprobs": 1})
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
        "logprobs": 1,
    }
    assert "ö" in ending.result_json()


def test_what_is_held_is_the_claims_id_and_token():
    claimed = Claimed("i", "t", "blue", "m", {}, 1, 1_000, None, 1, 1)
    assert claimed.held == Held("i", "t")


def test_a_job_that_is_handed_on_cannot_be_changed():
    held = Held("i", "t")
    with pytest.raises(FrozenInstanceError):
        held.token = "other"  # type: ignore[misc]  # that it is refused is the point

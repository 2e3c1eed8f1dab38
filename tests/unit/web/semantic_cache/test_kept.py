"""The stored form of an answer: what it keeps of a job, and what the view of a later request has."""

from dataclasses import replace

import pytest

from shared.jobs.job import Usage
from web.api.deadline import RequestDeadline
from web.jobs.generation import GenerationRequest
from web.openai.chat_answers import usage
from web.semantic_cache.kept import Facts, KeptAnswer, answer_of, load, view_of

REQUEST = GenerationRequest(
    payload={"prompt": "hello"}, deadline=RequestDeadline(1_000, "default"), max_tokens=8, default_max_tokens=8
)
FACTS = Facts(similarity=0.9, age_s=1, now_ms=5_000)


def test_the_answer_of_a_job_that_has_thought_counts_no_tokens_again():
    ended = view_of(KeptAnswer("hello", "m", "answer", "stop"), "blue", REQUEST, FACTS)
    ended = replace(ended, extra={"reasoning_tokens": 5, "stop_sequence": "x"})
    kept = answer_of("hello", ended, REQUEST)
    assert kept is not None
    found = load(kept.dump())
    assert found == kept
    later = view_of(kept, "blue", REQUEST, FACTS)
    assert later.extra == {"stop_sequence": "x"}
    assert usage(ended)["completion_tokens_details"] == {"reasoning_tokens": 5}
    assert usage(later) == {
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "total_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@pytest.mark.parametrize(("tokens", "is_kept"), [(8, True), (7, False)])
def test_an_answer_that_the_context_has_cut_is_not_kept(tokens: int, is_kept: bool):
    ended = view_of(KeptAnswer("hello", "m", "answer", "length"), "blue", REQUEST, FACTS)
    kept = answer_of("hello", replace(ended, usage=Usage(completion_tokens=tokens)), REQUEST)
    assert (kept is not None) == is_kept

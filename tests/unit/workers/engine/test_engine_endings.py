"""Tests of the ends of answers: end tokens, tokens and texts of the job's own, and the minimum that holds them off."""

import pytest

from workers.engine.events import JobRejected

#: A bias that makes a token the most likely one everywhere.
ALWAYS = 100
GREEDY = {"prompt": "the same prompt", "temperature": 0, "max_tokens": 12}


@pytest.fixture
def end(backend):
    """A token with which the model ends an answer."""
    return min(backend._vocab.end_tokens)


@pytest.fixture
def word(backend):
    """A token with text."""
    return int(backend.tokenize("zezu")[-1])


def answer(driven, **fields):
    """Run one job of a new tenant, which reuses no prefix, and return its end."""
    key = str(len(driven.ended))
    driven.submit(key, GREEDY | fields, tenant=key)
    driven.run_until_idle()
    return driven.ended[key]


def likely(*tokens):
    return {"logit_bias": {str(token): ALWAYS for token in tokens}}


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_an_answer_continues_to_its_length_if_end_tokens_are_ignored(driven, end, temperature):
    ended = answer(driven, **likely(end), temperature=temperature)
    assert (ended.finish_reason, ended.usage.completion_tokens) == ("stop", 0)
    ended = answer(driven, **likely(end), temperature=temperature, ignore_eos=True)
    assert (ended.finish_reason, ended.usage.completion_tokens) == ("length", 12)


@pytest.mark.parametrize("least", [1, 7, 12])
def test_the_end_token_ends_an_answer_as_soon_as_it_has_its_minimum_of_tokens(driven, end, least):
    ended = answer(driven, **likely(end), min_tokens=least)
    reason = "length" if least == GREEDY["max_tokens"] else "stop"
    assert (ended.finish_reason, ended.usage.completion_tokens) == (reason, least)


def test_a_token_of_the_jobs_own_ends_the_answer_and_is_no_part_of_it(driven, word):
    ended = answer(driven, **likely(word), stop_token_ids=[word])
    assert (ended.finish_reason, ended.text, ended.usage.completion_tokens) == ("stop", "", 0)
    assert answer(driven, **likely(word), stop_token_ids=[word], min_tokens=3).usage.completion_tokens == 3


def test_an_end_token_that_the_job_names_itself_ends_the_answer_even_if_end_tokens_are_ignored(driven, end):
    ended = answer(driven, **likely(end), ignore_eos=True, stop_token_ids=[end])
    assert (ended.finish_reason, ended.usage.completion_tokens) == ("stop", 0)


def test_a_stop_string_counts_only_in_the_text_after_the_minimum(driven, word):
    piece = "zu"
    repeated = answer(driven, **likely(word)).text
    assert repeated.count(piece) == 12
    assert answer(driven, **likely(word), stop=piece).usage.completion_tokens == 1
    late = answer(driven, **likely(word), stop=piece, min_tokens=5)
    assert (late.finish_reason, late.usage.completion_tokens) == ("stop", 6)
    assert repeated.startswith(late.text)
    assert late.text.count(piece) == 5
    assert late.extra["stop_sequence"] == piece


@pytest.mark.parametrize("fields", [{"ignore_eos": True}, {"min_tokens": 12}])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_an_answer_that_is_complete_in_its_format_ends_all_the_same(driven, fields, temperature):
    form = {"type": "choice", "choice": ["ba", "dedi"]}
    ended = answer(driven, response_format=form, temperature=temperature, **fields)
    assert (ended.outcome, ended.finish_reason) == ("succeeded", "stop")
    assert ended.text in form["choice"]


def test_an_answer_that_continues_after_its_first_tokens_counts_them_for_its_minimum(driven, end, word):
    driven.submit("0", GREEDY | likely(end) | {"min_tokens": 4}, answer=(word, word, word))
    while driven.engine.step():
        pass
    assert driven.ended["0"].usage.completion_tokens == 4


def test_ignored_end_tokens_change_neither_the_other_tokens_nor_the_log_probabilities(driven):
    for fields in ({"temperature": 0}, {"temperature": 1.0, "seed": 5}):
        plain = answer(driven, **fields, logprobs=3)
        ignoring = answer(driven, **fields, logprobs=3, ignore_eos=True)
        assert plain.finish_reason == "length"
        assert plain.text == ignoring.text
        for (_, one, likely_ones), (_, other, likely_others) in zip(
            plain.extra["logprobs"], ignoring.extra["logprobs"], strict=True
        ):
            # In a shared cache, the same job gets cells at another place, which changes the last digits.
            assert one == pytest.approx(other, abs=1e-3)
            assert dict(likely_ones) == pytest.approx(dict(likely_others), abs=1e-3)


def test_a_stop_token_that_the_vocabulary_lacks_is_rejected(driven, backend):
    with pytest.raises(JobRejected) as rejected:
        driven.submit("0", GREEDY | {"stop_token_ids": [1, backend.n_vocab]})
    assert (rejected.value.code, rejected.value.param) == ("invalid_value", "stop_token_ids")

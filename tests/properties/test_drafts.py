"""Tests of drafts for random texts and costs: what is drafted has occurred, and nobody loses by it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.answer.lookup import PromptLookup
from workers.engine.running.drafter import LEAST_SPEED, MAX_LENGTH, draft_lengths
from workers.engine.sizing import MAX_DRAFTS

_few_tokens = st.lists(st.integers(0, 4), max_size=60)
_acceptances = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12)


def _lookup(prompt: list[int], answer: list[int]) -> PromptLookup:
    lookup = PromptLookup(np.array(prompt, np.int32), 2 * len(answer))
    for token in answer:
        lookup.add(token)
    return lookup


def _continuations(text: list[int], n: int, length: int) -> list[list[int]]:
    """Return what would follow each earlier occurrence of the last `n` tokens, if the text repeated itself."""
    found = []
    for end in range(n, len(text)):
        if text[end - n : end] == text[-n:]:
            longer = list(text)
            for i in range(length):
                longer.append(longer[end + i])
            found.append(longer[len(text) :])
    return found


@given(_few_tokens, _few_tokens, st.integers(1, MAX_LENGTH))
def test_a_draft_is_what_followed_when_the_last_two_tokens_occurred_before(prompt, answer, length):
    draft = _lookup(prompt, answer).draft(length)
    text = prompt + answer
    if draft:
        assert draft in _continuations(text, 2, length)


@given(_few_tokens, _few_tokens)
def test_the_places_are_the_same_no_matter_which_tokens_were_known_when_the_lookup_began(prompt, answer):
    one, other = _lookup(prompt, answer), PromptLookup(np.array(prompt + answer, np.int32), len(answer))
    assert (one._pairs, one._triples) == (other._pairs, other._triples)


@given(_few_tokens, _few_tokens, st.lists(st.integers(0, 60)), st.integers(1, MAX_LENGTH))
def test_the_answer_may_be_looked_at_after_any_of_its_tokens(prompt, answer, ends, length):
    each, some = _lookup(prompt, answer), PromptLookup(np.array(prompt, np.int32), 2 * len(answer))
    for end in [*sorted(ends), len(answer)]:
        some.follow(answer[:end])
    assert (some.acceptance, some.draft(length)) == (each.acceptance, each.draft(length))


@pytest.mark.parametrize("period", [3, 7, 40])
def test_a_text_that_repeats_itself_is_drafted(period):
    text = [1000 + 37 * i for i in range(period)]
    lookup = _lookup(text, text * 3)
    assert lookup.acceptance > 0.5
    assert lookup.draft(MAX_LENGTH) == (text * MAX_LENGTH)[:MAX_LENGTH]


def test_a_text_without_repetitions_is_not_drafted():
    lookup = _lookup(list(range(1000)), list(range(1000, 2000)))
    assert (lookup.acceptance, lookup.draft(4)) == (0.0, [])


def test_the_acceptance_falls_when_the_text_no_longer_repeats_the_prompt():
    text = list(range(100))
    lookup = _lookup(text, text[:50])
    assert lookup.acceptance > 0.9
    for start in range(0, 90, 3):
        # The beginning of each piece is that of the prompt, its end is not.
        for token in (text[start], text[start + 1], 1000):
            lookup.add(token)
    assert lookup.acceptance < 0.1


def test_a_prompt_of_a_million_tokens_takes_as_much_memory_as_one_of_forty_thousand():
    sizes = []
    for n in (40_000, 1_000_000):
        lookup = PromptLookup(np.arange(n, dtype=np.int32), 100)
        sizes.append(len(lookup._pairs) + len(lookup._triples) + len(lookup._tokens))
    assert sizes[0] == sizes[1] < 200_000


@given(_acceptances, st.integers(0, 20), st.floats(0.0, 2.0), st.integers(0, MAX_DRAFTS))
def test_drafts_are_expected_to_pay_and_slow_down_nobody_below_the_limit(acceptances, others, cost, room):
    rows = len(acceptances) + others
    lengths = draft_lengths(acceptances, rows, cost, room)
    assert all(0 <= length <= MAX_LENGTH for length in lengths)
    assert sum(lengths) <= room
    slowed = 1 + cost * sum(lengths)
    gains = [sum(a**n for n in range(length + 1)) for a, length in zip(acceptances, lengths, strict=True)]
    assert sum(gains) + others >= rows * slowed * (1 - 1e-9)
    slowest = min([*gains, 1.0]) if others else min(gains)
    assert slowest / slowed >= LEAST_SPEED * (1 - 1e-9)


def test_on_a_cpu_one_sequence_of_four_is_not_drafted_and_alone_it_is():
    """There, a drafted token takes a sixth of the time of a step."""
    assert draft_lengths([0.9], 4, 0.1) == [0]
    assert draft_lengths([0.9], 1, 0.16) == [MAX_LENGTH]
    assert draft_lengths([0.3], 1, 0.16) == [1]
    assert draft_lengths([0.1], 1, 0.16) == [0]


def test_four_sequences_that_all_repeat_their_prompts_share_the_room():
    assert draft_lengths([0.95] * 4, 4, 0.1) == [MAX_DRAFTS // 4] * 4


@pytest.mark.parametrize("cost", [0.0, 1e-9])
def test_drafts_that_cost_nothing_are_as_long_as_the_room_allows(cost):
    assert draft_lengths([0.5, 0.9], 8, cost) == [MAX_LENGTH, MAX_LENGTH]
    assert draft_lengths([0.5, 0.9], 8, cost, 10) == [5, 5]

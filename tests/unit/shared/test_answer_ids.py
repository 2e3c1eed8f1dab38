"""Tests of the packed ids of an unfinished answer, and of their seal."""

from hypothesis import given
from hypothesis import strategies as st

from shared.jobs.answer_ids import NOTHING, AnswerIds, unpack

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


@given(IDS)
def test_ids_are_the_same_after_packing(ids):
    assert unpack(AnswerIds("t", "f").add(ids, len(ids)).ids) == tuple(ids)


@given(IDS, IDS, IDS)
def test_the_seal_does_not_depend_on_how_the_ids_are_divided(one, two, three):
    at_once = AnswerIds("t", "f").add([*one, *two, *three], len(one) + len(two) + len(three)).seal
    divided = AnswerIds("t", "f", one)
    divided.add(two, len(one) + len(two))
    assert divided.add(three, len(one) + len(two) + len(three)).seal == at_once


@given(IDS, st.integers(0, 39), st.integers(1, 2**32 - 1))
def test_the_seal_is_another_one_for_other_ids_another_claim_and_another_model(ids, at, flip):
    seals = {AnswerIds(token, model).add(ids, len(ids)).seal for token, model in (("t", "f"), ("u", "f"), ("t", "g"))}
    if ids:
        changed = [*ids]
        changed[at % len(ids)] ^= flip
        seals.add(AnswerIds("t", "f").add(changed, len(ids)).seal)
    assert len(seals) == 3 + bool(ids)


def test_an_answer_may_be_repeated_from_its_beginning_but_not_with_a_gap():
    ids = AnswerIds("t", "f", (1, 2))
    assert ids.add([9], 4) == NOTHING
    assert ids.add([1, 2, 3], 3) == AnswerIds("t", "f").add([1, 2, 3], 3)

"""Tests that packed logprobs are exactly those that the engine wrote, and take about a third of the space."""

import json
import random

from hypothesis import given
from hypothesis import strategies as st

from shared.jobs.packed_logprobs import pack, unpack

tokens = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5), st.lists(st.integers(0, 255), max_size=4)
)
numbers = st.one_of(st.just(-9999.0), st.just(0.0), st.floats(-300, 0).map(lambda number: round(number, 6)))
pairs = st.tuples(tokens, numbers).map(list)
answers = st.lists(
    st.tuples(tokens, numbers, st.lists(pairs, max_size=4)).map(list),
    max_size=6,
)


def stored(logprobs):
    return json.loads(json.dumps(pack(logprobs), ensure_ascii=False))


@given(answers)
def test_unpacked_logprobs_equal_those_of_the_engine(logprobs):
    assert unpack(stored(logprobs)) == logprobs


def test_packed_logprobs_take_less_than_half_of_their_json():
    rng = random.Random(1)
    vocabulary = ["".join(rng.choices("abcdefghij", k=rng.randint(1, 8))) for _ in range(30_000)]
    weights = [1 / (rank + 5) for rank in range(len(vocabulary))]

    def entry():
        likeliest = rng.choices(vocabulary, weights, k=20)
        top = [[token, round(-rng.expovariate(0.15), 6)] for token in likeliest]
        return [*top[0], top]

    logprobs = [entry() for _ in range(300)]
    assert 2 * len(json.dumps(pack(logprobs))) < len(json.dumps(logprobs, separators=(",", ":")))
    assert unpack(stored(logprobs)) == logprobs


def test_logprobs_that_an_earlier_version_stored_are_read_as_they_are():
    logprobs = [["a", -0.5, [["a", -0.5], [[226, 130], -1.25]]]]
    assert unpack(logprobs) == logprobs


def test_logprobs_of_a_later_version_are_left_out():
    assert unpack({"version": 99, "data": "x"}) is None
    assert unpack(None) is None

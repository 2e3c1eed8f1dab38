"""Texts to tokens: long ones part by part, and what cannot fit not at all."""

import time

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from tests.support.driven import Driven
from workers.engine.events import JobRejected


@given(words=st.lists(st.sampled_from(["dibo ", "<s>", "</s>", " <s>", "\n", "<unk>", "<", "é"]), max_size=30))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_long_prompts_tokens_are_those_of_its_whole_text(backend, words):
    text = "kufe " * 150 + "".join(words) * 40
    whole = backend._vocab._tokens(text, around=False, control=True, param="prompt")
    assert backend.tokenize(text).tolist() == whole.tolist()


@pytest.mark.parametrize(
    "payload",
    [
        {"prompt": "<s></s>" * 150_000},
        {"messages": [{"role": "user", "content": "<s>" * 300_000}]},
        {"prompt": "\n" * 1_000_000},
        {"messages": [{"role": "user", "content": "ไ" * 300_000}]},
    ],
    ids=["prompt", "messages", "line-breaks", "strange-letters"],
)
def test_a_mib_of_what_is_no_words_is_rejected_in_the_time_that_words_take(backend, payload):
    began = time.process_time()
    with pytest.raises(JobRejected) as rejected:
        Driven(backend).submit("a", payload | {"max_tokens": 1})
    assert rejected.value.code == "context_length_exceeded"
    assert time.process_time() - began < 5


def test_what_no_piece_spells_is_counted_at_least_and_fits_when_it_is_short(backend):
    text = "\n\n ไทย dibo"
    assert 0 < backend._vocab.fewest_tokens(text) <= len(backend.tokenize(text))
    assert backend._vocab.fewest_tokens("dibo kufe 水") == 0

"""Tests of tokenizing: long texts are tokenized in parts, and texts that cannot fit are rejected quickly."""

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from shared.settings.settings import load
from tests.support.cpu_time import cpu_time_below
from tests.support.driven import Driven
from tests.support.gguf_copy import copy_gguf
from workers.demo.vocabulary import SPACE
from workers.engine.events import JobRejected, JobSpec
from workers.engine.llama.backend import load_backend


@given(words=st.lists(st.sampled_from(["dibo ", "<s>", "</s>", " <s>", "\n", "<unk>", "<", "é"]), max_size=30))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_long_prompt_gets_the_same_tokens_as_if_it_were_tokenized_in_one_part(backend, words):
    text = "kufe " * 150 + "".join(words) * 40
    whole = backend._vocab._tokens(text, add_special=False, parse_special=True, param="prompt")
    assert backend.tokenize(text).tolist() == whole.tolist()


@pytest.mark.parametrize(
    "payload",
    [
        {"prompt": "<s></s>" * 150_000},
        {"messages": [{"role": "user", "content": "<s>" * 300_000}]},
        {"prompt": "\n" * 1_000_000},
        {"messages": [{"role": "user", "content": "ไ" * 300_000}]},
    ],
    ids=["prompt", "messages", "line-breaks", "letters-outside-the-vocabulary"],
)
def test_a_megabyte_of_text_that_is_not_words_is_rejected_within_seconds(backend, payload):
    with cpu_time_below(5), pytest.raises(JobRejected) as rejected:
        Driven(backend).submit("a", payload | {"max_tokens": 1})
    assert rejected.value.code == "context_length_exceeded"


def test_a_text_may_have_more_tokens_than_bytes(model_path, tmp_path):
    """The vocabulary lacks the mark for a space, so each space becomes the three bytes of that mark."""
    path = tmp_path / "spaceless.gguf"
    copy_gguf(model_path, path, pieces={SPACE: "no space"})
    backend = load_backend(load({}, None, device="cpu", max_batch_size=1, kv_cells=512, threads=1), path)
    try:
        spec = JobSpec("a", "blue", {"prompt": " " * 60}, 1, 1e9)
        assert backend.prepare(spec).prompt_tokens >= 180
    finally:
        backend.close()


def test_the_minimum_token_count_of_a_text_is_never_above_its_real_count(backend):
    text = "\n\n ไทย dibo"
    assert 0 < backend._vocab.min_tokens(text) <= len(backend.tokenize(text))
    assert backend._vocab.min_tokens("dibo kufe 水") == 0

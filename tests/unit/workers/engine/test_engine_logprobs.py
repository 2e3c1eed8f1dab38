"""Tests of logprobs: they are those of the model alone, independent of other jobs and of the sampling settings."""

import contextlib
import math

import llama_cpp
import numpy as np
import pytest

from shared.jobs.outcomes import EndCode
from workers.engine.events import JobRejected, JobSpec
from workers.engine.llama.logprobs import IMPOSSIBLE, Logprobs

PROMPT = "dibo kufe moza"


def run_job(driven, key="a", **payload):
    """Run one job to its end. Return its Ended event."""
    driven.submit(key, {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, **payload})
    driven.run_until_idle()
    return driven.ended[key]


def test_logprobs_equal_those_of_the_model_alone(driven, model_path):
    with contextlib.closing(
        llama_cpp.Llama(str(model_path), n_ctx=512, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False)
    ) as llama:
        alone = llama(PROMPT, max_tokens=12, temperature=0, logprobs=5)["choices"][0]["logprobs"]
    driven.submit("other", {"prompt": "another one", "max_tokens": 20, "temperature": 0})
    tokens = run_job(driven, logprobs=5).extra["logprobs"]
    assert [token for token, _, _ in tokens] == alone["tokens"]
    np.testing.assert_allclose([logprob for _, logprob, _ in tokens], alone["token_logprobs"], atol=1e-3)
    for (_, _, top), expected in zip(tokens, alone["top_logprobs"], strict=True):
        assert {token: pytest.approx(logprob, abs=1e-3) for token, logprob in top} == {
            token: expected[token] for token, _ in top
        }
        assert [logprob for _, logprob in top] == sorted((logprob for _, logprob in top), reverse=True)


def test_a_greedy_token_is_the_first_of_its_top_tokens(driven):
    tokens = run_job(driven, logprobs=3).extra["logprobs"]
    assert len(tokens) > 1
    for token, logprob, top in tokens:
        assert top[0] == [token, logprob]
        assert len(top) == 3
        assert logprob <= 0


def test_sampling_settings_do_not_change_the_logprobs(driven):
    plain = run_job(driven, "plain", logprobs=0, max_tokens=1).extra["logprobs"][0]
    token = plain[0]
    for key, sampling in {
        "hot": {"temperature": 5.0, "seed": 1},
        "cut": {"temperature": 1.0, "top_k": 1},
        "json": {"response_format": {"type": "json_object"}},
    }.items():
        first = run_job(driven, key, logprobs=20, max_tokens=1, **sampling).extra["logprobs"][0]
        assert [token, plain[1]] in first[2]
    assert run_job(driven, "none").extra == {}


def test_tokens_after_a_stop_string_are_not_reported(driven):
    whole = run_job(driven, "whole", logprobs=0)
    stop = whole.text.split()[1]
    cut = run_job(driven, "cut", logprobs=0, stop=[stop])
    tokens = [token for token, _, _ in cut.extra["logprobs"]]
    assert 0 < len(tokens) < len(whole.extra["logprobs"])
    assert "".join(tokens).startswith(cut.text)


@pytest.mark.parametrize("value", [-1, 21, "3", 1.0, True])
def test_an_invalid_number_of_logprobs_is_rejected(driven, value):
    with pytest.raises(JobRejected, match="logprobs=") as caught:
        driven.engine.prepare(JobSpec("a", "blue", {"prompt": "x", "logprobs": value}, 4, math.inf))
    assert (caught.value.code, caught.value.param) == (EndCode.INVALID_VALUE, "logprobs")


def test_tokens_that_are_only_part_of_a_character_are_reported_as_bytes():
    logprobs = Logprobs(1, *[lambda token: "é".encode()[token : token + 1]] * 2)
    for token in (0, 1):
        logprobs.add(np.array([0.0, -np.inf], np.float32), token)
    assert logprobs.for_text("é") == [[[195], 0.0, [[[195], 0.0]]], [[169], IMPOSSIBLE, [[[195], 0.0]]]]
    assert logprobs.for_text("") == []


def test_tokens_that_add_no_text_do_not_push_out_the_last_tokens():
    """The tokens without text are a control token and a byte that begins no character."""
    pieces = {0: b"a", 1: b"", 2: b"\xff", 3: b"b"}
    logprobs = Logprobs(0, lambda token: pieces[token] or b"<|control|>", pieces.__getitem__)
    for token in (0, 1, 2, 3, 3):
        logprobs.add(np.zeros(4, np.float32), token)
    assert [token for token, _, _ in logprobs.for_text("abb")] == ["a", "<|control|>", [255], "b", "b"]
    assert [token for token, _, _ in logprobs.for_text("ab")] == ["a", "<|control|>", [255], "b"]

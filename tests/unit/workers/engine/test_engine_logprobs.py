"""Logprobs: what the model alone says of each token, whatever the company and the sampling."""

import contextlib
import math

import llama_cpp
import numpy as np
import pytest

from shared.jobs.outcomes import EndCode
from workers.engine.events import JobRejected, JobSpec
from workers.engine.llama.logprobs import IMPOSSIBLE, Logprobs

PROMPT = "dibo kufe moza"


def said(driven, key="a", **payload):
    driven.submit(key, {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, **payload})
    driven.run_dry()
    return driven.ended[key]


def test_they_are_those_of_the_model_alone(driven, model_path):
    with contextlib.closing(llama_cpp.Llama(str(model_path), n_ctx=512, logits_all=True, verbose=False)) as llama:
        alone = llama(PROMPT, max_tokens=12, temperature=0, logprobs=5)["choices"][0]["logprobs"]
    driven.submit("mate", {"prompt": "another one", "max_tokens": 20, "temperature": 0})
    told = said(driven, logprobs=5).extra["logprobs"]
    assert [token for token, _, _ in told] == alone["tokens"]
    np.testing.assert_allclose([number for _, number, _ in told], alone["token_logprobs"], atol=1e-3)
    for (_, _, top), expected in zip(told, alone["top_logprobs"], strict=True):
        assert {token: pytest.approx(number, abs=1e-3) for token, number in top} == {
            token: expected[token] for token, _ in top
        }
        assert [number for _, number in top] == sorted((number for _, number in top), reverse=True)


def test_a_greedy_token_is_the_first_of_its_likeliest(driven):
    for token, number, top in said(driven, logprobs=3).extra["logprobs"]:
        assert top[0] == [token, number]
        assert len(top) == 3
        assert number <= 0


def test_sampling_does_not_change_what_the_model_holds_likely(driven):
    plain = said(driven, "plain", logprobs=0, max_tokens=1).extra["logprobs"][0]
    token = plain[0]
    for key, sampling in {
        "hot": {"temperature": 5.0, "seed": 1},
        "cut": {"temperature": 1.0, "top_k": 1},
        "json": {"response_format": {"type": "json_object"}},
    }.items():
        first = said(driven, key, logprobs=20, max_tokens=1, **sampling).extra["logprobs"][0]
        assert [token, plain[1]] in first[2]
    assert said(driven, "none").extra == {}


def test_tokens_behind_a_stop_string_are_not_told(driven):
    whole = said(driven, "whole", logprobs=0)
    stop = whole.text.split()[1]
    cut = said(driven, "cut", logprobs=0, stop=[stop])
    tokens = [token for token, _, _ in cut.extra["logprobs"]]
    assert 0 < len(tokens) < len(whole.extra["logprobs"])
    assert "".join(tokens).startswith(cut.text)


@pytest.mark.parametrize("wanted", [-1, 21, "3", 1.0, True])
def test_what_is_no_number_of_tokens_is_rejected(driven, wanted):
    with pytest.raises(JobRejected, match="logprobs=") as caught:
        driven.engine.prepare(JobSpec("a", "blue", {"prompt": "x", "logprobs": wanted}, 4, math.inf))
    assert (caught.value.code, caught.value.param) == (EndCode.INVALID_VALUE, "logprobs")


def test_bytes_that_are_no_text_by_themselves_are_told_as_bytes():
    logprobs = Logprobs(1, *[lambda token: "é".encode()[token : token + 1]] * 2)
    for token in (0, 1):
        logprobs.add(np.array([0.0, -np.inf], np.float32), token)
    assert logprobs.of("é") == [[[195], 0.0, [[[195], 0.0]]], [[169], IMPOSSIBLE, [[[195], 0.0]]]]
    assert logprobs.of("") == []


def test_tokens_that_add_nothing_to_the_text_take_none_from_its_end():
    """A control token in mid-answer, and a byte that begins no character."""
    pieces = {0: b"a", 1: b"", 2: b"\xff", 3: b"b"}
    logprobs = Logprobs(0, lambda token: pieces[token] or b"<|control|>", pieces.__getitem__)
    for token in (0, 1, 2, 3, 3):
        logprobs.add(np.zeros(4, np.float32), token)
    assert [token for token, _, _ in logprobs.of("abb")] == ["a", "<|control|>", [255], "b", "b"]
    assert [token for token, _, _ in logprobs.of("ab")] == ["a", "<|control|>", [255], "b"]

"""Tests with a model whose memory cannot drop the end of a sequence: it is computed again, or its job fails."""

import contextlib

import pytest
from llama_cpp import llama_cpp

from shared.settings.settings import load
from tests.support.driven import Driven, step_times
from tests.support.odd_models import write_odd_model
from workers.engine.llama.backend import load_backend

PROMPT = "dibo kufe moza talu dibo kufe moza talu dibo"


@pytest.fixture(scope="module")
def backend(model_path, tmp_path_factory):
    """A model whose layers have recurrent memory, except for one with attention."""
    path = tmp_path_factory.mktemp("hybrid") / "hybrid.gguf"
    write_odd_model(model_path, path, "lfm2")
    settings = load({}, None, device="cpu", threads=1, max_batch_size=4, kv_cells=4096, n_ctx=1024)
    with contextlib.closing(load_backend(settings, path)) as backend:
        yield backend


def greedy(prompt, max_tokens=8):
    return {"prompt": prompt, "temperature": 0, "max_tokens": max_tokens}


def answer_alone(backend, prompt):
    with contextlib.closing(Driven(backend, reuse=False)) as driven:
        driven.submit("alone", greedy(prompt))
        driven.run_until_idle()
        return driven.ended["alone"].text


@pytest.fixture
def reusing(backend, monkeypatch):
    """An engine that tries to reuse prefixes of such a model."""
    monkeypatch.setattr(backend, "reuses", True)
    with contextlib.closing(Driven(backend)) as driven:
        yield driven


def test_a_model_that_cannot_drop_tokens_is_not_drafted(backend):
    expected = answer_alone(backend, PROMPT)
    with contextlib.closing(Driven(backend, fit=step_times(draft_ms=0.0), speculates=True)) as driven:
        driven.submit("a", greedy(PROMPT))
        driven.run_until_idle()
        assert driven.ended["a"].text == expected
        assert driven.engine.stats.drafts_accepted == driven.engine.stats.drafts_rejected == 0


@pytest.mark.parametrize("while_it_runs", [False, True])
def test_a_prefix_that_cannot_be_cut_out_is_computed_again(backend, reusing, while_it_runs):
    other = f"{PROMPT} suke"
    expected = answer_alone(backend, other)
    reusing.submit("first", greedy(f"{PROMPT} zovo nafu", 40))
    for _ in range(5):
        reusing.engine.step()
    if not while_it_runs:
        reusing.run_until_idle()
    reusing.submit("second", greedy(other))
    reusing.run_until_idle()
    ended = reusing.ended["second"]
    assert (ended.text, ended.usage.cached_tokens) == (expected, 0)
    assert reusing.engine.stats.cached_tokens == 0


def test_sequences_that_cannot_be_restored_after_a_failed_step_fail_and_the_others_continue(backend, monkeypatch):
    expected = answer_alone(backend, PROMPT)
    decode, fails = llama_cpp.llama_decode, []

    def computes_and_fails(ctx, batch):
        code = decode(ctx, batch)
        return fails.pop() if fails else code

    monkeypatch.setattr(llama_cpp, "llama_decode", computes_and_fails)
    with contextlib.closing(Driven(backend)) as driven:
        for key in ("one", "other"):
            driven.submit(key, greedy(f"{PROMPT} zovo nafu", 40))
        for _ in range(5):
            driven.engine.step()
        driven.submit("begins", greedy(PROMPT))
        fails.append(-3)
        driven.run_until_idle()
        assert driven.ended["begins"].text == expected
        for lost in (driven.ended["one"], driven.ended["other"]):
            assert (lost.outcome, lost.code) == ("failed", "engine_error")
            assert "could not be restored" in lost.message
        driven.submit("later", greedy(PROMPT))
        driven.run_until_idle()
        assert driven.ended["later"].text == expected

"""Tests that no draft is left in a slot, whatever pauses, ends or fails between two steps or in one."""

import contextlib
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_cpp import llama_cpp

from tests.support.drafted import PAYLOADS, PROMPT, alone, check_no_drafts, check_same, drafting, payload_of, tokens_of
from workers.engine.sequence import SequenceState


@pytest.mark.parametrize("kind", ["greedy", "logprobs", "grammar", "penalties"])
def test_jobs_that_pause_are_the_same_with_drafts(backend, kind):
    expected, tokens = alone(backend, payload_of(kind))
    with contextlib.closing(drafting(backend)) as driven:
        for i in range(5):
            driven.submit(str(i), payload_of(kind))
        driven.run_with_pauses(5, random.Random(kind))
        for i in range(5):
            check_same(driven.ended[str(i)], expected)
            assert tokens_of(driven, str(i)) == tokens


def test_a_job_that_continues_on_another_worker_is_drafted_too(backend):
    expected, tokens = alone(backend, payload_of("greedy"))
    for n in (1, 20, 47):
        with contextlib.closing(drafting(backend)) as driven:
            driven.submit("a", payload_of("greedy"), answer=tuple(tokens[:n]), attempt=2)
            while driven.engine.step():
                check_no_drafts(driven)
            check_same(driven.ended["a"], expected)
            assert tokens[:n] + tokens_of(driven, "a") == tokens
            assert driven.engine.stats.drafts_accepted > 0 or n == 47


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6))
def test_whatever_happens_between_steps_no_draft_is_left_and_every_whole_answer_is_the_same(backend, answers, seed):
    """Jobs come, pause, resume, are canceled, expire and are computed in calls that fail, in any order."""
    dice, decode, failing = random.Random(seed), llama_cpp.llama_decode, []
    with pytest.MonkeyPatch.context() as patch, contextlib.closing(drafting(backend)) as driven:
        patch.setattr(
            llama_cpp, "llama_decode", lambda ctx, batch: decode(ctx, batch) or (failing.pop() if failing else 0)
        )
        kinds: dict[str, str] = {}
        paused: set[str] = set()
        while len(kinds) < 12 or len(driven.ended) < len(kinds):
            if len(kinds) < 12 and dice.random() < 0.4:
                key, kind = str(len(kinds)), dice.choice(list(PAYLOADS))
                kinds[key] = kind
                driven.submit(key, payload_of(kind))
            for key in sorted(sequence.key for sequence in driven.engine._running.values()):
                if dice.random() < 0.05:
                    driven.engine.cancel(key)
                elif dice.random() < 0.05 and driven.engine.pause(key):
                    paused.add(key)
            for key in sorted(paused):
                if dice.random() < 0.4 and driven.engine.resume(key):
                    paused.discard(key)
            # A whole call fails, and then each of its sequences is computed alone, without drafts.
            failing[:] = [1] if dice.random() < 0.1 and len(driven.engine._running) > 1 else []
            driven.engine.step()
            check_no_drafts(driven)
        driven.check_empty()
        for key, ended in driven.ended.items():
            if ended.outcome == "succeeded":
                check_same(ended, answers[kinds[key]])
            else:
                # A sequence that was alone in a call that failed has failed.
                assert ended.outcome in {"canceled", "failed"}
                assert answers[kinds[key]].text.startswith(ended.text)


@pytest.fixture
def answers(backend):
    """The end of each kind of job when it runs alone without drafts."""
    return {kind: alone(backend, payload_of(kind))[0] for kind in PAYLOADS}


def test_a_call_that_fails_with_drafts_is_repeated_without_them(backend, monkeypatch):
    expected, _ = alone(backend, payload_of("greedy"))
    decode = llama_cpp.llama_decode

    def fails_with_drafts(ctx, batch):
        code = decode(ctx, batch)
        return -3 if batch.n_tokens > 1 and batch.pos[0] > 60 else code

    monkeypatch.setattr(llama_cpp, "llama_decode", fails_with_drafts)
    with contextlib.closing(drafting(backend)) as driven:
        driven.submit("a", payload_of("greedy"))
        while driven.engine.step():
            check_no_drafts(driven)
        driven.check_empty()
        check_same(driven.ended["a"], expected)


def test_a_model_that_does_not_drop_a_draft_computes_the_answer_again_and_drafts_no_more(backend, monkeypatch):
    payload = payload_of("hot")
    expected, tokens = alone(backend, payload)
    with contextlib.closing(drafting(backend)) as driven:
        set_prefix = backend.set_prefix

        def cannot_drop(slot, source, n):
            if slot == source and n and driven.engine._running[slot].state is SequenceState.DECODE:
                backend.clear_slot(slot)
                return 0
            return set_prefix(slot, source, n)

        monkeypatch.setattr(backend, "set_prefix", cannot_drop)
        driven.submit("a", payload)
        stats = driven.engine.stats
        while not stats.drafts_rejected:
            assert driven.engine.step()
        drafted = stats.drafts_accepted + stats.drafts_rejected
        driven.run_until_idle()
        check_same(driven.ended["a"], expected)
        assert tokens_of(driven, "a") == tokens
        assert stats.drafts_accepted + stats.drafts_rejected == drafted
        assert driven.ended["a"].usage.again_tokens > driven.ended["a"].usage.prompt_tokens


def test_a_prefix_that_a_drafted_answer_left_is_reused_for_what_it_holds(backend):
    expected, _ = alone(backend, payload_of("greedy"))
    follow_up = {"prompt": PROMPT + expected.text, "max_tokens": 8, "temperature": 0}
    after, _ = alone(backend, follow_up)
    for steps in range(2, 12):
        with contextlib.closing(drafting(backend)) as driven:
            driven.submit("a", payload_of("greedy"))
            for _ in range(steps):
                driven.engine.step()
            driven.engine.cancel("a")
            driven.submit("b", follow_up)
            while driven.engine.step():
                check_no_drafts(driven)
            driven.check_empty()
            check_same(driven.ended["b"], after)
            assert driven.ended["b"].usage.cached_tokens > 0

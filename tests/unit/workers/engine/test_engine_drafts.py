"""Tests that drafted tokens change no answer and leave nothing behind, whatever ends, pauses or fails in between."""

import contextlib
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_cpp import llama_cpp

from shared.candidates import read_candidates
from shared.settings.settings import load
from tests.support.driven import Driven, step_times
from workers.engine.events import Text
from workers.engine.llama.backend import load_backend
from workers.engine.sequence import SequenceState

_PROMPT = "dibo kufe mala resi tanu bopa gesi dibo kufe mala resi tanu"
_LENGTH = 48
#: The model has random weights. With these few tokens, its answers repeat themselves.
_FEW = {"logit_bias": dict.fromkeys(("668", "765", "842", "870"), 100.0)}
_SCHEMA = {"type": "array", "items": {"type": "string", "maxLength": 3}}
_PAYLOADS = {
    "greedy": {"temperature": 0},
    "seeded": {"seed": 7, "temperature": 0.3},
    "hot": {"seed": -3, "temperature": 4.0, "top_p": 1.0, "top_k": 0},
    "penalties": {"seed": 5, "repeat_penalty": 1.2, "presence_penalty": 0.1, "temperature": 0.3},
    "greedy penalties": {"temperature": 0, "repeat_penalty": 1.05},
    "varied": {"temperature": 0, "logit_bias": {"300": 3.0, "301": -5.0}},
    "stop string": {"temperature": 0, "stop": ["zz", "qq"]},
    "grammar": {"temperature": 0, "response_format": {"type": "json_schema", "json_schema": {"schema": _SCHEMA}}},
    "logprobs": {"temperature": 0, "logprobs": 2},
    "min_tokens": {"temperature": 0, "min_tokens": 40, "stop": ["a"]},
    "ignore_eos": {"seed": 3, "temperature": 0.2, "ignore_eos": True},
}


def _payload(kind: str, **fields) -> dict:
    return {
        "prompt": _PROMPT,
        "max_tokens": _LENGTH,
        **({} if kind == "grammar" else _FEW),
        **_PAYLOADS[kind],
        **fields,
    }


def _drafting(backend, clock=None, **settings) -> Driven:
    """Return an engine for which drafts take no time, so that it drafts whenever the last tokens have occurred."""
    return Driven(backend, clock, fit=step_times(draft_ms=0.0), speculates=True, **settings)


def _alone(backend, payload: dict):
    """Return the end of a job that runs alone without drafts, and the ids of its answer's tokens."""
    with contextlib.closing(Driven(backend, reuse=False)) as driven:
        driven.submit("alone", payload)
        driven.run_until_idle()
        return driven.ended["alone"], _tokens(driven, "alone")


def _tokens(driven: Driven, key: str) -> list[int]:
    events = [event for event in driven.events if isinstance(event, Text) and event.key == key]
    return [token for event in events for token in event.tokens]


def _check_same(ended, expected) -> None:
    assert (ended.outcome, ended.finish_reason, ended.text) == ("succeeded", expected.finish_reason, expected.text)
    assert ended.usage.completion_tokens == expected.usage.completion_tokens
    for one, other in zip(ended.extra.get("logprobs", []), expected.extra.get("logprobs", []), strict=True):
        assert one[:2] == [other[0], pytest.approx(other[1], abs=1e-3)]


def _check_no_drafts(driven: Driven) -> None:
    """Check that each slot holds the tokens that its sequence has, and no draft."""
    driven.engine._table.check()
    memory = driven.engine.backend._memory
    for slot, sequence in driven.engine._running.items():
        assert sequence.n_drafted == 0
        assert llama_cpp.llama_memory_seq_pos_max(memory, slot) == sequence.n_past - 1


@pytest.mark.parametrize("kind", _PAYLOADS)
def test_an_answer_is_the_same_with_drafts_and_takes_fewer_steps_if_some_are_accepted(backend, kind):
    expected, tokens = _alone(backend, _payload(kind))
    with contextlib.closing(_drafting(backend)) as driven:
        driven.submit("a", _payload(kind))
        driven.run_until_idle()
        _check_same(driven.ended["a"], expected)
        assert _tokens(driven, "a") == tokens
        # One step computes the prompt, and each accepted draft saves one.
        stats, ended = driven.engine.stats, driven.ended["a"]
        ends_by_token = ended.finish_reason == "stop" and len(tokens) == ended.usage.completion_tokens
        assert stats.steps + stats.drafts_accepted in {len(tokens), len(tokens) + ends_by_token}
        if kind == "greedy":
            assert stats.drafts_accepted > _LENGTH / 4


@pytest.mark.parametrize("seed", range(12))
def test_the_answer_of_each_seed_is_the_same_with_drafts(backend, seed):
    """So the distribution of the answers is the same: it is that of the seeds."""
    payload = _payload("greedy", seed=seed, temperature=0.5 + 0.1 * seed)
    expected, _ = _alone(backend, payload)
    with contextlib.closing(_drafting(backend)) as driven:
        driven.submit("a", payload)
        driven.run_until_idle()
        _check_same(driven.ended["a"], expected)


def test_jobs_beside_each_other_are_the_same_with_drafts(backend):
    expected = {kind: _alone(backend, _payload(kind))[0] for kind in _PAYLOADS}
    with contextlib.closing(_drafting(backend)) as driven:
        for kind in _PAYLOADS:
            driven.submit(kind, _payload(kind))
        while driven.engine.step():
            _check_no_drafts(driven)
        driven.check_empty()
        for kind, ended in driven.ended.items():
            _check_same(ended, expected[kind])
        # With a split cache, only a job that runs alone is drafted.
        assert driven.engine.stats.drafts_accepted > 0 or backend.compact


@pytest.mark.parametrize("length", [1, 2, 3, *range(24, 32)])
def test_max_tokens_holds_in_the_middle_of_a_draft(backend, length):
    expected, _ = _alone(backend, _payload("greedy", max_tokens=length))
    with contextlib.closing(_drafting(backend)) as driven:
        driven.submit("a", _payload("greedy", max_tokens=length))
        while driven.engine.step():
            _check_no_drafts(driven)
        driven.check_empty()
        _check_same(driven.ended["a"], expected)
        assert driven.ended["a"].usage.completion_tokens == length


@pytest.mark.parametrize("at", range(22, 30))
def test_an_answer_ends_at_a_stop_token_or_a_stop_string_in_the_middle_of_a_draft(backend, at):
    _, tokens = _alone(backend, _payload("greedy"))
    text = backend.piece(tokens[at]) + backend.piece(tokens[at + 1])
    stops = [{"stop_token_ids": [tokens[at]]}, {"stop": [text.decode("utf-8", "ignore").strip() or "zz"]}]
    for stop in stops:
        payload = _payload("greedy", min_tokens=20, **stop)
        expected, _ = _alone(backend, payload)
        with contextlib.closing(_drafting(backend)) as driven:
            driven.submit("a", payload)
            while driven.engine.step():
                _check_no_drafts(driven)
            driven.check_empty()
            _check_same(driven.ended["a"], expected)


@pytest.mark.parametrize("kind", ["greedy", "grammar", "stop string"])
def test_candidates_are_the_same_with_drafts(backend, kind):
    n = 4
    expected = [_alone(backend, _payload(kind, seed=i, temperature=0.4))[0] for i in range(n)]
    for slots_for_others in (0, backend.slots - 1):
        with contextlib.closing(_drafting(backend)) as driven:
            for i in range(slots_for_others):
                driven.submit(f"other {i}", _payload("greedy"))
            driven.submit("a", _payload(kind, seed=0, temperature=0.4, n=n, max_tokens=n * _LENGTH))
            driven.run_until_idle()
            texts = [candidate.text for candidate in read_candidates(driven.ended["a"].text, n)]
            assert texts == [ended.text for ended in expected]


@pytest.mark.parametrize("kind", ["greedy", "logprobs", "grammar", "penalties"])
def test_jobs_that_pause_are_the_same_with_drafts(backend, kind):
    expected, tokens = _alone(backend, _payload(kind))
    with contextlib.closing(_drafting(backend)) as driven:
        for i in range(5):
            driven.submit(str(i), _payload(kind))
        driven.run_with_pauses(5, random.Random(kind))
        for i in range(5):
            _check_same(driven.ended[str(i)], expected)
            assert _tokens(driven, str(i)) == tokens


def test_a_job_that_goes_on_on_another_worker_is_drafted_too(backend):
    expected, tokens = _alone(backend, _payload("greedy"))
    for n in (1, 20, 47):
        with contextlib.closing(_drafting(backend)) as driven:
            driven.submit("a", _payload("greedy"), answer=tuple(tokens[:n]), attempt=2)
            while driven.engine.step():
                _check_no_drafts(driven)
            _check_same(driven.ended["a"], expected)
            assert tokens[:n] + _tokens(driven, "a") == tokens
            assert driven.engine.stats.drafts_accepted > 0 or n == 47


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6))
def test_whatever_happens_between_steps_no_draft_is_left_and_every_whole_answer_is_the_same(backend, answers, seed):
    """Jobs come, pause, go on, are canceled, expire and are computed in calls that fail, in any order."""
    dice, decode, failing = random.Random(seed), llama_cpp.llama_decode, []
    with pytest.MonkeyPatch.context() as patch, contextlib.closing(_drafting(backend)) as driven:
        patch.setattr(
            llama_cpp, "llama_decode", lambda ctx, batch: decode(ctx, batch) or (failing.pop() if failing else 0)
        )
        kinds: dict[str, str] = {}
        paused: set[str] = set()
        while len(kinds) < 12 or len(driven.ended) < len(kinds):
            if len(kinds) < 12 and dice.random() < 0.4:
                key, kind = str(len(kinds)), dice.choice(list(_PAYLOADS))
                kinds[key] = kind
                driven.submit(key, _payload(kind))
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
            _check_no_drafts(driven)
        driven.check_empty()
        for key, ended in driven.ended.items():
            if ended.outcome == "succeeded":
                _check_same(ended, answers[kinds[key]])
            else:
                # A sequence that was alone in a call that failed has failed.
                assert ended.outcome in {"canceled", "failed"}
                assert answers[kinds[key]].text.startswith(ended.text)


@pytest.fixture
def answers(backend):
    """The end of each kind of job when it runs alone without drafts."""
    return {kind: _alone(backend, _payload(kind))[0] for kind in _PAYLOADS}


def test_a_call_that_fails_with_drafts_is_repeated_without_them(backend, monkeypatch):
    expected, _ = _alone(backend, _payload("greedy"))
    decode = llama_cpp.llama_decode

    def fails_with_drafts(ctx, batch):
        code = decode(ctx, batch)
        return -3 if batch.n_tokens > 1 and batch.pos[0] > 60 else code

    monkeypatch.setattr(llama_cpp, "llama_decode", fails_with_drafts)
    with contextlib.closing(_drafting(backend)) as driven:
        driven.submit("a", _payload("greedy"))
        while driven.engine.step():
            _check_no_drafts(driven)
        driven.check_empty()
        _check_same(driven.ended["a"], expected)


def test_a_model_that_does_not_drop_a_draft_computes_the_answer_again_and_drafts_no_more(backend, monkeypatch):
    payload = _payload("hot")
    expected, tokens = _alone(backend, payload)
    with contextlib.closing(_drafting(backend)) as driven:
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
        _check_same(driven.ended["a"], expected)
        assert _tokens(driven, "a") == tokens
        assert stats.drafts_accepted + stats.drafts_rejected == drafted
        assert driven.ended["a"].usage.again_tokens > driven.ended["a"].usage.prompt_tokens


@pytest.mark.parametrize("slots", [1, 2])
def test_a_context_that_is_full_to_the_last_cell_has_room_for_the_drafts(model_path, slots):
    cells = 96
    chosen = load({}, None, device="cpu", threads=1, max_batch_size=slots, kv_cells=slots * cells, n_ctx=cells)
    with contextlib.closing(load_backend(chosen, model_path)) as backend:
        payload = _payload("greedy", ignore_eos=True)
        with contextlib.closing(Driven(backend)) as plain, contextlib.closing(_drafting(backend)) as driven:
            for each in (plain, driven):
                _submit_longest(each, "0", payload)
                if slots > 1:
                    each.submit("1", payload | {"max_tokens": 8})
                each.run_until_idle()
            ended = driven.ended["0"]
            _check_same(ended, plain.ended["0"])
            assert ended.usage.prompt_tokens + ended.usage.completion_tokens == cells
            assert driven.engine.stats.drafts_accepted > 0


def _submit_longest(driven: Driven, key: str, payload: dict) -> None:
    """Submit a job whose answer may have all cells that its prompt leaves."""
    tokens = len(
        driven.engine.backend.tokenize(payload["prompt"], add_special=True, parse_special=False, param="prompt")
    )
    driven.submit(key, payload | {"max_tokens": driven.engine.backend.n_ctx - tokens})


def test_a_prefix_that_a_drafted_answer_left_is_reused_for_what_it_holds(backend):
    expected, _ = _alone(backend, _payload("greedy"))
    follow_up = {"prompt": _PROMPT + expected.text, "max_tokens": 8, "temperature": 0}
    after, _ = _alone(backend, follow_up)
    for steps in range(2, 12):
        with contextlib.closing(_drafting(backend)) as driven:
            driven.submit("a", _payload("greedy"))
            for _ in range(steps):
                driven.engine.step()
            driven.engine.cancel("a")
            driven.submit("b", follow_up)
            while driven.engine.step():
                _check_no_drafts(driven)
            driven.check_empty()
            _check_same(driven.ended["b"], after)
            assert driven.ended["b"].usage.cached_tokens > 0


def test_one_of_four_jobs_is_not_drafted_if_that_slowed_down_the_others(backend):
    cpu = step_times(base_ms=10.0, row_ms=2.0, draft_ms=2.0)
    with contextlib.closing(Driven(backend, fit=cpu, speculates=True)) as driven:
        driven.submit("repeats", _payload("greedy"))
        for i in range(3):
            driven.submit(str(i), {"prompt": f"zovo {i}", "seed": i, "temperature": 5.0, "top_k": 0, "max_tokens": 200})
        while "repeats" not in driven.ended:
            driven.engine.step()
        stats = driven.engine.stats
        assert (stats.drafts_accepted, stats.drafts_rejected) == (0, 0)


def test_an_answer_that_repeats_nothing_is_not_drafted_on_a_cpu(backend):
    cpu = step_times(base_ms=10.0, row_ms=2.0, draft_ms=2.0)
    with contextlib.closing(Driven(backend, fit=cpu, speculates=True)) as driven:
        driven.submit("a", {"prompt": "zovo", "seed": 1, "temperature": 5.0, "top_k": 0, "max_tokens": 300})
        driven.run_until_idle()
        stats = driven.engine.stats
        assert stats.drafts_rejected * 2.0 / 12.0 <= 0.5 + 0.01 * 300 + stats.drafts_accepted + 8


def test_a_draft_that_makes_a_step_longer_than_the_target_is_not_computed(backend):
    slow = step_times(base_ms=1e6, row_ms=1.0, draft_ms=50.0)
    with contextlib.closing(Driven(backend, fit=slow, speculates=True, step_target_ms=120.0)) as driven:
        driven.submit("a", _payload("greedy"))
        most = 0
        while driven.engine.step():
            stats = driven.engine.stats
            drafted = stats.drafts_accepted + stats.drafts_rejected
            most, before = max(most, drafted - most), drafted
        assert before > 0
        assert most <= before


def test_without_the_setting_nothing_is_drafted(backend):
    with contextlib.closing(Driven(backend, fit=step_times(draft_ms=0.0))) as driven:
        driven.submit("a", _payload("greedy"))
        driven.run_until_idle()
        assert driven.engine.stats.drafts_accepted == driven.engine.stats.drafts_rejected == 0

"""Tests that drafted tokens change no answer and no limit, and that they are computed only where they pay."""

import contextlib

import pytest

from shared.candidates import read_candidates
from shared.settings.settings import load
from tests.support.drafted import (
    LENGTH,
    PAYLOADS,
    alone,
    check_no_drafts,
    check_same,
    drafting,
    payload_of,
    tokens_of,
)
from tests.support.driven import Driven, step_times
from workers.engine.llama.backend import load_backend


@pytest.mark.parametrize("kind", PAYLOADS)
def test_an_answer_is_the_same_with_drafts_and_takes_fewer_steps_if_some_are_accepted(backend, kind):
    expected, tokens = alone(backend, payload_of(kind))
    with contextlib.closing(drafting(backend)) as driven:
        driven.submit("a", payload_of(kind))
        driven.run_until_idle()
        check_same(driven.ended["a"], expected)
        assert tokens_of(driven, "a") == tokens
        # One step computes the prompt, and each accepted draft saves one.
        stats, ended = driven.engine.stats, driven.ended["a"]
        ends_by_token = ended.finish_reason == "stop" and len(tokens) == ended.usage.completion_tokens
        assert stats.steps + stats.drafts_accepted in {len(tokens), len(tokens) + ends_by_token}
        if kind == "greedy":
            assert stats.drafts_accepted > LENGTH / 4


@pytest.mark.parametrize("seed", range(12))
def test_the_answer_of_each_seed_is_the_same_with_drafts(backend, seed):
    """So the distribution of the answers is the same: it is that of the seeds."""
    payload = payload_of("greedy", seed=seed, temperature=0.5 + 0.1 * seed)
    expected, _ = alone(backend, payload)
    with contextlib.closing(drafting(backend)) as driven:
        driven.submit("a", payload)
        driven.run_until_idle()
        check_same(driven.ended["a"], expected)


def test_jobs_beside_each_other_are_the_same_with_drafts(backend):
    expected = {kind: alone(backend, payload_of(kind))[0] for kind in PAYLOADS}
    with contextlib.closing(drafting(backend)) as driven:
        for kind in PAYLOADS:
            driven.submit(kind, payload_of(kind))
        while driven.engine.step():
            check_no_drafts(driven)
        driven.check_empty()
        for kind, ended in driven.ended.items():
            check_same(ended, expected[kind])
        # With a split cache, only a job that runs alone is drafted.
        assert driven.engine.stats.drafts_accepted > 0 or backend.compact


@pytest.mark.parametrize("length", [1, 2, 3, *range(24, 32)])
def test_max_tokens_holds_in_the_middle_of_a_draft(backend, length):
    expected, _ = alone(backend, payload_of("greedy", max_tokens=length))
    with contextlib.closing(drafting(backend)) as driven:
        driven.submit("a", payload_of("greedy", max_tokens=length))
        while driven.engine.step():
            check_no_drafts(driven)
        driven.check_empty()
        check_same(driven.ended["a"], expected)
        assert driven.ended["a"].usage.completion_tokens == length


@pytest.mark.parametrize("at", range(22, 30))
def test_an_answer_ends_at_a_stop_token_or_a_stop_string_in_the_middle_of_a_draft(backend, at):
    _, tokens = alone(backend, payload_of("greedy"))
    text = backend.piece(tokens[at]) + backend.piece(tokens[at + 1])
    stops = [{"stop_token_ids": [tokens[at]]}, {"stop": [text.decode("utf-8", "ignore").strip() or "zz"]}]
    for stop in stops:
        payload = payload_of("greedy", min_tokens=20, **stop)
        expected, _ = alone(backend, payload)
        with contextlib.closing(drafting(backend)) as driven:
            driven.submit("a", payload)
            while driven.engine.step():
                check_no_drafts(driven)
            driven.check_empty()
            check_same(driven.ended["a"], expected)


@pytest.mark.parametrize("kind", ["greedy", "grammar", "stop string"])
def test_candidates_are_the_same_with_drafts(backend, kind):
    n = 4
    expected = [alone(backend, payload_of(kind, seed=i, temperature=0.4))[0] for i in range(n)]
    for slots_for_others in (0, backend.slots - 1):
        with contextlib.closing(drafting(backend)) as driven:
            for i in range(slots_for_others):
                driven.submit(f"other {i}", payload_of("greedy"))
            driven.submit("a", payload_of(kind, seed=0, temperature=0.4, n=n, max_tokens=n * LENGTH))
            driven.run_until_idle()
            texts = [candidate.text for candidate in read_candidates(driven.ended["a"].text, n)]
            assert texts == [ended.text for ended in expected]


@pytest.mark.parametrize("slots", [1, 2])
def test_a_context_that_is_full_to_the_last_cell_has_room_for_the_drafts(model_path, slots):
    cells = 96
    chosen = load({}, None, device="cpu", threads=1, max_batch_size=slots, kv_cells=slots * cells, n_ctx=cells)
    with contextlib.closing(load_backend(chosen, model_path)) as backend:
        payload = payload_of("greedy", ignore_eos=True)
        with contextlib.closing(Driven(backend)) as plain, contextlib.closing(drafting(backend)) as driven:
            for each in (plain, driven):
                _submit_longest(each, "0", payload)
                if slots > 1:
                    each.submit("1", payload | {"max_tokens": 8})
                each.run_until_idle()
            ended = driven.ended["0"]
            check_same(ended, plain.ended["0"])
            assert ended.usage.prompt_tokens + ended.usage.completion_tokens == cells
            assert driven.engine.stats.drafts_accepted > 0


def _submit_longest(driven: Driven, key: str, payload: dict) -> None:
    """Submit a job whose answer may have all cells that its prompt leaves."""
    tokens = len(
        driven.engine.backend.tokenize(payload["prompt"], add_special=True, parse_special=False, param="prompt")
    )
    driven.submit(key, payload | {"max_tokens": driven.engine.backend.n_ctx - tokens})


#: Step times as on a CPU, where a drafted token takes a sixth of the time of a step with one row.
_CPU = {"base_ms": 10.0, "row_ms": 2.0, "draft_ms": 2.0}


def _drafted(driven: Driven) -> int:
    return driven.engine.stats.drafts_accepted + driven.engine.stats.drafts_rejected


def test_one_of_four_jobs_is_not_drafted_if_that_slowed_down_the_others_and_is_drafted_alone(backend):
    with contextlib.closing(Driven(backend, fit=step_times(**_CPU), speculates=True)) as driven:
        driven.submit("repeats", payload_of("greedy"))
        for i in range(3):
            driven.submit(str(i), {"prompt": f"zovo {i}", "seed": i, "temperature": 5.0, "top_k": 0, "max_tokens": 200})
        while "repeats" not in driven.ended:
            driven.engine.step()
        assert _drafted(driven) == 0
        driven.run_until_idle()
        driven.submit("alone", payload_of("greedy"))
        driven.run_until_idle()
        assert driven.engine.stats.drafts_accepted > 0


def test_drafts_lengthen_an_answer_that_repeats_nothing_by_no_more_than_they_may(backend):
    with contextlib.closing(Driven(backend, fit=step_times(**_CPU), speculates=True)) as driven:
        payload = payload_of("hot", max_tokens=300)
        driven.submit("a", payload)
        while driven.engine.step():
            for sequence in driven.engine._running.values():
                # The last draft was begun when less was lost, and cost at most eight sixths of a step.
                assert -sequence.drafts_gained <= 0.5 + 0.005 * len(sequence.answer) + 8 / 6


def test_drafts_add_no_more_to_a_step_than_the_target_allows(backend):
    slow = step_times(base_ms=1e6, row_ms=1.0, draft_ms=50.0)
    with contextlib.closing(Driven(backend, fit=slow, speculates=True, step_target_ms=120.0)) as driven:
        driven.submit("a", payload_of("greedy"))
        before = 0
        while driven.engine.step():
            # Two drafted tokens add 100 ms, and nine tenths of the target are 108 ms.
            assert _drafted(driven) - before <= 2
            before = _drafted(driven)
        assert before > 0


def test_without_the_setting_nothing_is_drafted(backend):
    with contextlib.closing(Driven(backend, fit=step_times(draft_ms=0.0))) as driven:
        driven.submit("a", payload_of("greedy"))
        driven.run_until_idle()
        assert _drafted(driven) == 0

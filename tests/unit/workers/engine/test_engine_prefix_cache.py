"""Tests of prefix reuse: a tenant's computed prefix is reused, only by that tenant, and blocks no other job."""

import contextlib
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.driven import Driven
from tests.support.examples import examples
from workers.engine.events import JobSpec
from workers.engine.prefix_cache import (
    MIN_REUSED_TOKENS,
    CachedTokens,
    PrefixCache,
    Scope,
    SlotAssignment,
    common_prefix_length,
)
from workers.engine.slot_cells import Slots

pytestmark = pytest.mark.thorough

SYSTEM = "You are a keeper of gates and answer in one short line, whatever anybody asks of you. "

#: In nats. A difference that rounding can cause. The two likeliest tokens of a random model are usually 0.5 apart.
TIE_LOGPROB_GAP = 1e-3


def _tokens(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def _run(first: int, n: int = 100) -> np.ndarray:
    return np.arange(first, first + n, dtype=np.int32)


@pytest.fixture
def scene():
    """A prefix cache over four slots and 1000 cells, and the list of slots whose cells were cleared."""
    cleared: list[int] = []
    slots = Slots(4, 1000)
    return SimpleNamespace(slots=slots, cleared=cleared, cache=PrefixCache(slots, cleared.append, compact=True))


def _run_and_end(scene, slot: int, tenant: str, tokens: np.ndarray) -> None:
    """Run a sequence that fills the slot with `tokens`, and end it."""
    scene.slots.take(len(tokens), slot)
    scene.cache.give_back(slot, CachedTokens(Scope(tenant), tokens))


def test_the_common_prefix_length_of_two_token_lists():
    assert common_prefix_length(_tokens(1, 2, 3), _tokens(1, 2, 4, 5)) == 2
    assert common_prefix_length(_tokens(1, 2), _tokens(1, 2, 3)) == 2
    assert common_prefix_length(_tokens(), _tokens(1)) == 0


def test_a_job_gets_the_slot_that_keeps_its_tenants_longest_common_prefix(scene):
    _run_and_end(scene, 1, "blue", _run(0, 20))
    _run_and_end(scene, 2, "blue", _run(0, 50))
    assert scene.cache.take(Scope("blue"), _run(0), 200, []) == SlotAssignment(2, 2, 50)
    assert scene.cleared == []


def test_the_last_token_of_a_prompt_is_always_computed(scene):
    _run_and_end(scene, 0, "blue", _run(0))
    assert scene.cache.take(Scope("blue"), _run(0), 200, []) == SlotAssignment(0, 0, 99)


def test_tokens_that_another_tenant_computed_are_not_reused(scene):
    _run_and_end(scene, 0, "red", _run(0))
    assert scene.cache.take(Scope("blue"), _run(0), 200, []).reused == 0


def test_a_common_prefix_of_a_few_tokens_is_not_reused(scene):
    _run_and_end(scene, 3, "blue", _run(0, MIN_REUSED_TOKENS - 1))
    assert scene.cache.take(Scope("blue"), _run(0), 200, []) == SlotAssignment(0, 0)


def test_the_prefix_of_a_running_sequence_is_copied_to_a_neighboring_slot(scene):
    scene.slots.take(200, 2)
    assignment = scene.cache.take(Scope("blue"), _run(0), 200, [(2, CachedTokens(Scope("blue"), _run(0, 40)))])
    assert assignment == SlotAssignment(1, 2, 40)


def test_a_job_gets_a_slot_beside_running_ones_and_copies_its_prefix_from_a_distant_slot(scene):
    _run_and_end(scene, 3, "blue", _run(0))
    scene.slots.take(200, 0)
    assert scene.cache.take(Scope("blue"), _run(0), 200, []) == SlotAssignment(1, 3, 99)
    assert scene.cache.kept == {3: 100}


def test_a_kept_slot_much_longer_than_the_common_prefix_is_copied_from_and_left_whole(scene):
    _run_and_end(scene, 0, "blue", _run(0, 400))
    assert scene.cache.take(Scope("blue"), _run(0, 50), 100, []) == SlotAssignment(1, 0, 49)
    assert scene.cache.kept == {0: 400}


def test_without_an_empty_slot_the_least_recently_used_one_is_evicted(scene):
    for slot, tenant in enumerate("abcd"):
        _run_and_end(scene, slot, tenant, _run(0))
    assert scene.cache.take(Scope("a"), _run(0), 150, []) == SlotAssignment(0, 0, 99)
    scene.cache.give_back(0, CachedTokens(Scope("a"), _run(0)))
    assert scene.cache.take(Scope("e"), _run(0), 150, []) == SlotAssignment(1, 1)
    assert sorted(scene.cache.kept) == [0, 2, 3]


def test_needed_cells_are_evicted_from_the_least_recently_used_slot_first(scene):
    _run_and_end(scene, 0, "a", _run(0, 300))
    _run_and_end(scene, 1, "b", _run(0, 300))
    _run_and_end(scene, 2, "c", _run(0, 300))
    assert scene.cache.take(Scope("d"), _run(500), 350, []) == SlotAssignment(3, 3)
    assert scene.cleared == [0]
    scene.slots.check_integrity(running=1)


def test_without_cells_for_a_copy_a_job_takes_the_slot_that_keeps_its_prefix(scene):
    _run_and_end(scene, 0, "blue", _run(0, 400))
    assert scene.cache.take(Scope("blue"), _run(0, 101), 900, []) == SlotAssignment(0, 0, 100)
    scene.slots.check_integrity(running=1)


@given(st.data())
def test_the_accounting_is_correct_after_any_jobs_and_every_job_that_fits_gets_its_cells(data):
    cleared: list[int] = []
    slots = Slots(4, 300)
    cache = PrefixCache(slots, cleared.append, compact=data.draw(st.booleans()))
    held: dict[int, CachedTokens] = {}
    for _ in range(data.draw(st.integers(0, 30))):
        if held and data.draw(st.booleans()):
            slot = data.draw(st.sampled_from(sorted(held)))
            cache.give_back(slot, data.draw(st.sampled_from([held.pop(slot), None])))
        else:
            tenant, n = data.draw(st.sampled_from(["a", "b"])), data.draw(st.integers(1, 120))
            prompt = _run(data.draw(st.integers(0, 1)), n)
            if slots.fits(n + 10):
                mates = [(slot, known) for slot, known in held.items() if known.scope == Scope(tenant)]
                before = {slot: known.scope for slot, known in (*held.items(), *cache._kept.items())}
                assignment = cache.take(Scope(tenant), prompt, n + 10, mates)
                assert assignment.slot not in held
                assert assignment.reused == 0 or (
                    before[assignment.source] == Scope(tenant) and assignment.source not in cleared
                )
                assert assignment.reused < n
                held[assignment.slot] = CachedTokens(Scope(tenant), prompt)
        cleared.clear()
        slots.check_integrity(running=len(held))
        assert slots._kept == cache.kept


def test_with_a_split_cache_jobs_of_one_adapter_lie_side_by_side_with_room_for_more():
    cache = PrefixCache(Slots(12, 1200), lambda _slot: None, compact=True)
    held: dict[str, set[int]] = {"a": set(), "b": set(), "c": set()}
    for adapter in "abcbacabcabc":
        assignment = cache.take(Scope("red", adapter), None, 100, (), held[adapter])
        held[adapter].add(assignment.slot)
    # At most one of them had to leave the others, because its neighbours were taken.
    parts = sum(slot + 1 not in slots for slots in held.values() for slot in slots)
    assert parts <= 4, held


def _ask(driven: Driven, key: str, tenant: str, payload: dict) -> None:
    spec = JobSpec(key, tenant, payload, payload["max_tokens"], 1e12)
    driven.engine.submit(driven.engine.prepare(spec))


def _greedy(prompt: str, max_tokens: int = 12) -> dict:
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0}


def test_the_second_job_with_a_system_prompt_computes_only_its_own_words(driven):
    _ask(driven, "1", "blue", _greedy(SYSTEM + "bado keli"))
    driven.run_until_idle()
    before = driven.engine.stats.prompt_tokens
    _ask(driven, "2", "blue", _greedy(SYSTEM + "mupa?"))
    driven.run_until_idle()
    usage = driven.ended["2"].usage
    assert usage.cached_tokens > 30
    assert driven.engine.stats.prompt_tokens - before == usage.prompt_tokens - usage.cached_tokens
    assert driven.engine.stats.cached_tokens == usage.cached_tokens


def test_the_next_turn_of_a_chat_reuses_the_whole_previous_turn(driven):
    _ask(driven, "1", "blue", _greedy(SYSTEM, 40))
    driven.run_until_idle()
    first = driven.ended["1"]
    _ask(driven, "2", "blue", _greedy(SYSTEM + first.text + " and then"))
    driven.run_until_idle()
    assert driven.ended["2"].usage.cached_tokens > first.usage.prompt_tokens + 20


def test_another_tenant_computes_the_same_prompt_again(driven):
    _ask(driven, "1", "red", _greedy(SYSTEM))
    driven.run_until_idle()
    _ask(driven, "2", "blue", _greedy(SYSTEM))
    driven.run_until_idle()
    assert driven.ended["2"].usage.cached_tokens == 0
    assert driven.ended["2"].text == driven.ended["1"].text


def test_the_next_job_reuses_the_prompt_of_a_job_that_still_runs(driven):
    _ask(driven, "1", "blue", _greedy(SYSTEM + "bado", 60))
    while not driven.streamed("1"):
        driven.engine.step()
    _ask(driven, "2", "blue", _greedy(SYSTEM + "keli", 60))
    driven.run_until_idle()
    assert driven.ended["2"].usage.cached_tokens > 30


def test_a_failed_sequence_leaves_nothing_to_reuse(driven, backend):
    job = driven.engine.prepare(JobSpec("bad", "blue", _greedy(SYSTEM), 12, 1e12))
    tokens = job.prompt.copy()
    tokens[-1] = backend.n_vocab + 5
    driven.engine.submit(replace(job, prompt=tokens))
    driven.run_until_idle()
    assert driven.ended["bad"].outcome == "failed"
    assert driven.engine._table._prefixes.kept == {}


def _texts(dice: random.Random) -> list[str]:
    """Prompts with a common beginning: some continue where others end."""
    words = ["bado", "keli", "mupa", "soni", "tiva"]
    return [SYSTEM * dice.randint(0, 2) + " ".join(dice.choices(words, k=dice.randint(1, 30))) for _ in range(8)]


def _is_tie(backend, prompt: str, n: int, one: str, other: str) -> bool:
    """Whether the two answers first differ at a token whose two best candidates the model alone holds equally likely.

    In a shared cache, sums are computed in the order of the cells, so the last digits depend on where sequences lie.
    """
    with contextlib.closing(Driven(backend, reuse=False)) as driven:
        _ask(driven, "alone", "a", _greedy(prompt, n) | {"logprobs": 2})
        driven.run_until_idle()
    text = ""
    for token, _, top in driven.ended["alone"].extra["logprobs"]:
        text += token
        if not (one.startswith(text) and other.startswith(text)):
            return top[0][1] - top[1][1] < TIE_LOGPROB_GAP
    return False


# Found at random: here two tokens have the logits 12.465689 and 12.465654.
@example(seed=56848, chunk=1)
@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), chunk=st.sampled_from([1, 7, 64, 512]))
def test_answers_are_the_same_with_and_without_reuse_even_if_other_jobs_are_canceled(backend, seed, chunk):
    dice = random.Random(seed)
    texts = _texts(dice)
    jobs = {
        str(i): (dice.choice("ab"), dice.choice(texts), dice.randint(1, 24), dice.randint(0, 9), dice.random() < 0.3)
        for i in range(12)
    }
    answers = []
    for reuse in (False, True):
        with contextlib.closing(Driven(backend, prefill_chunk=chunk, reuse=reuse)) as driven:
            for key, (tenant, prompt, n, steps, cancels) in jobs.items():
                _ask(driven, key, tenant, _greedy(prompt, n))
                for _ in range(steps):
                    driven.engine.step()
                if cancels:
                    driven.engine.cancel(key)
            driven.run_until_idle()
            answers.append(driven)
    without, with_reuse = answers
    assert set(with_reuse.ended) == set(jobs)
    for key, ended in with_reuse.ended.items():
        other = without.ended[key]
        if {ended.outcome, other.outcome} == {"succeeded"}:
            same = (ended.text, ended.finish_reason) == (other.text, other.finish_reason)
            assert same or _is_tie(backend, jobs[key][1], jobs[key][2], ended.text, other.text)
        else:
            assert ended.text.startswith(other.text) or other.text.startswith(ended.text)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_mix_of_jobs_runs_out_of_cells(backend, data):
    """Many more jobs than fit, of any length: each waits for its cells, and no decode fails because one is missing."""
    longest = min(backend.n_ctx, backend.cells)
    with contextlib.closing(Driven(backend, prefill_chunk=512)) as driven:
        n_jobs = data.draw(st.integers(1, 24))
        for i in range(n_jobs):
            prompt = ("ba " * data.draw(st.sampled_from([1, 40, 400, longest // 3])))[: longest * 2]
            payload = _greedy(f"{i % 3} {prompt}", 4)
            job = driven.engine.prepare(JobSpec(str(i), data.draw(st.sampled_from("abc")), payload, 4, 1e12))
            # Cells are reserved for `max_tokens`, here up to those of the longest job, though the job ends earlier.
            most_tokens = longest - job.prompt_tokens
            max_tokens = data.draw(st.sampled_from([4, most_tokens // 2, most_tokens]))
            driven.engine.submit(replace(job, max_tokens=max_tokens))
            for _ in range(data.draw(st.integers(0, 3))):
                driven.engine.step()
                driven.engine._table.check()
            if data.draw(st.booleans()) or max_tokens > 40:
                driven.engine.cancel(str(data.draw(st.integers(0, i))))
        for i in range(n_jobs):
            driven.engine.cancel(str(i))
        driven.run_until_idle()
    assert {ended.outcome for ended in driven.ended.values()} <= {"succeeded", "canceled"}
    assert len(driven.ended) == n_jobs

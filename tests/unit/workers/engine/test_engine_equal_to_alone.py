"""Tests that a greedy answer is the one that llama.cpp alone gives, token for token, beside any other jobs."""

import contextlib
import random
from dataclasses import replace
from functools import cache

import llama_cpp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.driven import Driven
from tests.support.examples import examples
from workers.engine.events import JobSpec

pytestmark = pytest.mark.thorough

_SYLLABLES = [a + b for a in "bdfghklmnprstvz" for b in "aeiou"]


def _prompt(seed: int) -> str:
    dice = random.Random(seed)
    words = ["".join(dice.choices(_SYLLABLES, k=dice.randint(1, 4))) for _ in range(dice.choice([1, 5, 20, 90]))]
    return " ".join(words)


_PROMPTS = [*map(_prompt, range(21)), "héllo 水猫 🙂", "control <s> tokens </s> spelled", " leading\nand trailing \n"]


@pytest.fixture(scope="session")
def reference(model_path):
    """A function that returns the answer of `llama_cpp.Llama`: text, finish reason, answer tokens, prompt tokens."""
    llama = llama_cpp.Llama(str(model_path), n_ctx=2048, n_threads=1, n_threads_batch=1, verbose=False)

    @cache
    def answer(prompt: str, max_tokens: int, stop: tuple[str, ...] = ()) -> tuple[str, str, int, int]:
        result = llama(prompt, max_tokens=max_tokens, temperature=0, stop=list(stop))
        choice, usage = result["choices"][0], result["usage"]
        return choice["text"], choice["finish_reason"], usage["completion_tokens"], usage["prompt_tokens"]

    yield answer
    llama.close()


def _greedy(prompt: str, max_tokens: int, **fields) -> dict:
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **fields}


def _answer(ended) -> tuple[str, str, int, int]:
    return ended.text, ended.finish_reason, ended.usage.completion_tokens, ended.usage.prompt_tokens


def test_the_reference_answers_differ_from_one_another(reference):
    answers = {reference(prompt, 30)[0] for prompt in _PROMPTS}
    assert len(answers) == len(_PROMPTS)
    assert sum(len(set(answer.split())) >= 5 for answer in answers) > len(answers) / 2


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_twenty_four_different_jobs_in_eight_slots_get_their_reference_answers(backend, reference, chunk):
    driven = Driven(backend, prefill_chunk=chunk)
    dice = random.Random(chunk)
    jobs = {str(i): (prompt, dice.randint(1, 50)) for i, prompt in enumerate(_PROMPTS)}
    assert len(jobs) == 24
    for key, (prompt, n) in jobs.items():
        driven.submit(key, _greedy(prompt, n))
    driven.run_until_idle()
    assert {key: _answer(ended) for key, ended in driven.ended.items()} == {
        key: reference(*job) for key, job in jobs.items()
    }


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_arrivals_and_cancels_at_any_step_do_not_change_the_answers_of_other_jobs(backend, reference, data):
    with contextlib.closing(Driven(backend, prefill_chunk=data.draw(st.sampled_from([1, 7, 64, 512])))) as driven:
        jobs, canceled = {}, set()
        for i in range(data.draw(st.integers(1, 16))):
            jobs[str(i)] = (data.draw(st.sampled_from(_PROMPTS)), 40)
            driven.submit(str(i), _greedy(*jobs[str(i)]))
            for _ in range(data.draw(st.integers(0, 12))):
                driven.engine.step()
            if data.draw(st.booleans()):
                key = data.draw(st.sampled_from(sorted(jobs)))
                canceled.add(key)
                driven.engine.cancel(key)
        driven.run_until_idle()
    assert set(driven.ended) == set(jobs)
    for key, ended in driven.ended.items():
        expected = reference(*jobs[key])
        if ended.outcome == "canceled":
            assert key in canceled
            assert expected[0].startswith(ended.text)
        else:
            assert _answer(ended) == expected


def test_a_stop_string_across_tokens_ends_the_answer_as_in_the_reference(driven, reference):
    jobs = {}
    for i, prompt in enumerate(_PROMPTS):
        text = reference(prompt, 40)[0]
        half = len(text) // 2
        jobs[str(i)] = (prompt, 40, (text[half : half + 5],))
        driven.submit(str(i), _greedy(prompt, 40, stop=list(jobs[str(i)][2])))
    driven.run_until_idle()
    assert {key: _answer(ended) for key, ended in driven.ended.items()} == {
        key: reference(*job) for key, job in jobs.items()
    }
    assert all(ended.finish_reason == "stop" for ended in driven.ended.values())


def test_an_empty_prompt_gets_its_reference_answer_which_counts_one_answer_token_more(driven, reference):
    driven.submit("a", _greedy("", 20))
    driven.run_until_idle()
    text, reason, n, prompt_tokens = reference("", 21)
    assert _answer(driven.ended["a"]) == (text, reason, n - 1, prompt_tokens)


def test_a_chat_gets_its_reference_answer(driven, model_path):
    with contextlib.closing(
        llama_cpp.Llama(str(model_path), n_ctx=2048, n_threads=1, n_threads_batch=1, verbose=False)
    ) as llama:
        for i, prompt in enumerate(_PROMPTS[:4]):
            messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": prompt}]
            driven.submit(str(i), {"messages": messages, "max_tokens": 20, "temperature": 0})
            driven.run_until_idle()
            result = llama.create_chat_completion(messages, max_tokens=20, temperature=0)
            ended = driven.ended[str(i)]
            assert ended.text == result["choices"][0]["message"]["content"]
            assert ended.usage.prompt_tokens == result["usage"]["prompt_tokens"]


def test_a_sequence_with_an_invalid_token_fails_and_the_others_get_their_reference_answers(driven, backend, reference):
    driven.submit("other", _greedy(_PROMPTS[0], 30))
    driven.engine.step()
    broken = driven.engine.prepare(_spec("bad", _greedy(_PROMPTS[1], 30)))
    tokens = broken.prompt.copy()
    tokens[-1] = backend.n_vocab + 5
    driven.engine.submit(replace(broken, prompt=tokens))
    driven.submit("late other", _greedy(_PROMPTS[2], 30))
    driven.run_until_idle()
    assert (driven.ended["bad"].outcome, driven.ended["bad"].code) == ("failed", "engine_error")
    assert "llama_decode returned -1" in driven.ended["bad"].message
    assert _answer(driven.ended["other"]) == reference(_PROMPTS[0], 30)
    assert _answer(driven.ended["late other"]) == reference(_PROMPTS[2], 30)


def _spec(key: str, payload: dict):
    return JobSpec(key, "blue", payload, payload["max_tokens"], 1e12)

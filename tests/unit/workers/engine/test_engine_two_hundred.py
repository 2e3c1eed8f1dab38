"""Two hundred random prompts in random company: each greedy answer is what the model alone gives, token for token."""

import contextlib
import random
from typing import NamedTuple

import llama_cpp
import pytest
from conftest import Driven

from workers.engine.events import Ended

_SYLLABLES = [a + b for a in "bdfghklmnprstvz" for b in "aeiou"]
JOBS = 200


class Asked(NamedTuple):
    prompt: str
    max_tokens: int


class Told(NamedTuple):
    text: str
    finish_reason: str
    completion_tokens: int
    prompt_tokens: int


def _words(dice: random.Random, n: int) -> str:
    return " ".join("".join(dice.choices(_SYLLABLES, k=dice.randint(1, 4))) for _ in range(n))


def _asked() -> list[Asked]:
    """Half the prompts stand alone, half go on from one of a few beginnings, as behind a system prompt."""
    dice = random.Random(200)
    beginnings = [_words(dice, dice.randint(12, 16)) for _ in range(5)]
    jobs = []
    for i in range(JOBS):
        own = _words(dice, dice.choice([1, 2, 5, 12]))
        prompt = own if i % 2 else f"{dice.choice(beginnings)} {own}"
        jobs.append(Asked(prompt, dice.choice([1, 4, 12, 24])))
    return jobs


ASKED = _asked()


@pytest.fixture(scope="module")
def alone(model_path) -> list[Told]:
    """What `llama_cpp.Llama` answers to each, one after another."""
    path = str(model_path)
    with contextlib.closing(llama_cpp.Llama(path, n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)) as llama:
        told = []
        for prompt, max_tokens in ASKED:
            said = llama(prompt, max_tokens=max_tokens, temperature=0)
            choice, usage = said["choices"][0], said["usage"]
            told.append(
                Told(choice["text"], choice["finish_reason"], usage["completion_tokens"], usage["prompt_tokens"])
            )
        return told


def _told(ended: Ended) -> Told:
    counts = ended.counts
    return Told(ended.text, ended.finish_reason, counts.completion_tokens, counts.prompt_tokens)


def test_the_two_hundred_prompts_and_their_answers_differ(alone):
    assert len({asked.prompt for asked in ASKED}) == JOBS
    long = [told.text for told in alone if told.completion_tokens >= 12]
    assert len(long) > JOBS / 3
    assert len(set(long)) > 0.9 * len(long)


@pytest.mark.parametrize("reuse", [False, True], ids=["anew", "reuse"])
@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_two_hundred_prompts_in_random_company_with_cancels_are_answered_as_alone(backend, alone, chunk, reuse):
    dice = random.Random(f"{chunk} {reuse} {backend.facts.cache}")
    with contextlib.closing(Driven(backend, prefill_chunk=chunk, reuse=reuse)) as driven:
        order = dice.sample(range(JOBS), JOBS)
        submitted: list[str] = []
        canceled: set[str] = set()
        while order:
            for _ in range(min(len(order), dice.choice([1, 2, 5, 12]))):
                at = order.pop()
                submitted.append(str(at))
                driven.submit(str(at), ASKED[at]._asdict() | {"temperature": 0})
            for _ in range(dice.randint(0, 20)):
                driven.engine.step()
            inside = sorted(set(submitted) - set(driven.ended))
            if inside and dice.random() < 0.3:
                canceled.add(key := dice.choice(inside))
                driven.engine.cancel(key)
        driven.run_dry()
        ended = driven.ended
    assert len(ended) == JOBS
    unwanted = {key for key, end in ended.items() if end.outcome == "canceled"}
    assert unwanted <= canceled
    assert 5 <= len(unwanted) < JOBS / 2
    for key, end in ended.items():
        whole = alone[int(key)]
        if key in unwanted:
            assert whole.text.startswith(end.text)
        else:
            assert _told(end) == whole
    assert any(end.counts.cached_tokens > 0 for end in ended.values()) is reuse

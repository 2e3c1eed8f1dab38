"""Two hundred random prompts in random company: each greedy answer is what the model alone gives, token for token."""

import contextlib
import random
from typing import NamedTuple

import llama_cpp
import pytest

from tests.support.driven import Driven
from workers.engine.events import Ended

_SYLLABLES = [a + b for a in "bdfghklmnprstvz" for b in "aeiou"]
JOBS = 200
#: More than are used: some are left out.
_OFFERED = 240
#: In nats. Random weights now and then hold two tokens equally likely to five digits, which rounding then decides,
#: and rounding depends on the company. Such prompts are left out.
_LIKELIER = 1e-3


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
    for i in range(_OFFERED):
        own = _words(dice, dice.choice([1, 2, 5, 12]))
        prompt = own if i % 2 else f"{dice.choice(beginnings)} {own}"
        jobs.append(Asked(prompt, dice.choice([1, 4, 12, 24])))
    return jobs


@pytest.fixture(scope="module")
def alone(model_path) -> dict[Asked, Told]:
    """What `llama_cpp.Llama` answers to each, one after another."""
    path = str(model_path)
    llama = llama_cpp.Llama(path, n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False, logits_all=True)
    told: dict[Asked, Told] = {}
    with contextlib.closing(llama):
        for asked in _asked():
            said = llama(asked.prompt, max_tokens=asked.max_tokens, temperature=0, logprobs=2)
            choice, usage = said["choices"][0], said["usage"]
            tops = [sorted(top.values()) for top in choice["logprobs"]["top_logprobs"]]
            if all(top[-1] - top[-2] > _LIKELIER for top in tops if len(top) > 1):
                told[asked] = Told(
                    choice["text"], choice["finish_reason"], usage["completion_tokens"], usage["prompt_tokens"]
                )
    return dict(list(told.items())[:JOBS])


def _told(ended: Ended) -> Told:
    usage = ended.usage
    return Told(ended.text, ended.finish_reason, usage.completion_tokens, usage.prompt_tokens)


def test_the_two_hundred_prompts_and_their_answers_differ(alone):
    assert len({asked.prompt for asked in alone}) == len(alone) == JOBS
    long = [told.text for told in alone.values() if told.completion_tokens >= 12]
    assert len(long) > JOBS / 3
    assert len(set(long)) > 0.9 * len(long)


@pytest.mark.parametrize("reuse", [False, True], ids=["anew", "reuse"])
@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_two_hundred_prompts_in_random_company_with_cancels_are_answered_as_alone(backend, alone, chunk, reuse):
    dice = random.Random(f"{chunk} {reuse} {backend.facts.cache}")
    asked = list(alone)
    with contextlib.closing(Driven(backend, prefill_chunk=chunk, reuse=reuse)) as driven:
        order = dice.sample(range(JOBS), JOBS)
        submitted: list[str] = []
        canceled: set[str] = set()
        while order:
            for _ in range(min(len(order), dice.choice([1, 2, 5, 12]))):
                at = order.pop()
                submitted.append(str(at))
                driven.submit(str(at), asked[at]._asdict() | {"temperature": 0})
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
        whole = alone[asked[int(key)]]
        if key in unwanted:
            assert whole.text.startswith(end.text)
        else:
            assert _told(end) == whole
    assert any(end.usage.cached_tokens > 0 for end in ended.values()) is reuse

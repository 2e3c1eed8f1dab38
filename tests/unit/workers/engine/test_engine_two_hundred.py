"""Tests that 200 random prompts with random arrivals each get the greedy answer that llama.cpp alone gives."""

import contextlib
import random
from typing import NamedTuple

import llama_cpp
import pytest

from tests.support.driven import Driven
from workers.engine.events import Ended

pytestmark = pytest.mark.long

_SYLLABLES = [a + b for a in "bdfghklmnprstvz" for b in "aeiou"]
JOBS = 200
#: More prompts than are used, because ambiguous ones are left out.
_CANDIDATES = 240
#: In nats. A random model sometimes gives two tokens probabilities that agree to five digits. Rounding then decides,
#: and it depends on the other sequences of the step. A prompt with a smaller gap than this is left out.
_MIN_LOGPROB_GAP = 1e-3


class Request(NamedTuple):
    prompt: str
    max_tokens: int


class Answer(NamedTuple):
    text: str
    finish_reason: str
    completion_tokens: int
    prompt_tokens: int


def _words(dice: random.Random, n: int) -> str:
    return " ".join("".join(dice.choices(_SYLLABLES, k=dice.randint(1, 4))) for _ in range(n))


def _random_requests() -> list[Request]:
    """Half the prompts share nothing; the other half continue one of five beginnings, as after a system prompt."""
    dice = random.Random(200)
    beginnings = [_words(dice, dice.randint(12, 16)) for _ in range(5)]
    requests = []
    for i in range(_CANDIDATES):
        own = _words(dice, dice.choice([1, 2, 5, 12]))
        prompt = own if i % 2 else f"{dice.choice(beginnings)} {own}"
        requests.append(Request(prompt, dice.choice([1, 4, 12, 24])))
    return requests


@pytest.fixture(scope="module")
def reference(model_path) -> dict[Request, Answer]:
    """The answer of `llama_cpp.Llama` to each request, computed one after another."""
    path = str(model_path)
    llama = llama_cpp.Llama(path, n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False, logits_all=True)
    answers: dict[Request, Answer] = {}
    with contextlib.closing(llama):
        for request in _random_requests():
            result = llama(request.prompt, max_tokens=request.max_tokens, temperature=0, logprobs=2)
            choice, usage = result["choices"][0], result["usage"]
            tops = [sorted(top.values()) for top in choice["logprobs"]["top_logprobs"]]
            if all(top[-1] - top[-2] > _MIN_LOGPROB_GAP for top in tops if len(top) > 1):
                answers[request] = Answer(
                    choice["text"], choice["finish_reason"], usage["completion_tokens"], usage["prompt_tokens"]
                )
    return dict(list(answers.items())[:JOBS])


def _answer(ended: Ended) -> Answer:
    usage = ended.usage
    return Answer(ended.text, ended.finish_reason, usage.completion_tokens, usage.prompt_tokens)


def test_the_two_hundred_prompts_and_their_answers_differ(reference):
    assert len({request.prompt for request in reference}) == len(reference) == JOBS
    long = [answer.text for answer in reference.values() if answer.completion_tokens >= 12]
    assert len(long) > JOBS / 3
    assert len(set(long)) > 0.9 * len(long)


@pytest.mark.parametrize("reuse", [False, True], ids=["no-reuse", "reuse"])
@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_two_hundred_prompts_with_random_arrivals_and_cancels_get_their_reference_answers(
    backend, reference, chunk, reuse
):
    dice = random.Random(f"{chunk} {reuse} {backend.facts.cache}")
    requests = list(reference)
    with contextlib.closing(Driven(backend, prefill_chunk=chunk, reuse=reuse)) as driven:
        order = dice.sample(range(JOBS), JOBS)
        submitted: list[str] = []
        canceled: set[str] = set()
        while order:
            for _ in range(min(len(order), dice.choice([1, 2, 5, 12]))):
                at = order.pop()
                submitted.append(str(at))
                driven.submit(str(at), requests[at]._asdict() | {"temperature": 0})
            for _ in range(dice.randint(0, 20)):
                driven.engine.step()
            unfinished = sorted(set(submitted) - set(driven.ended))
            if unfinished and dice.random() < 0.3:
                canceled.add(key := dice.choice(unfinished))
                driven.engine.cancel(key)
        driven.run_until_idle()
        ended = driven.ended
    assert len(ended) == JOBS
    ended_by_cancel = {key for key, end in ended.items() if end.outcome == "canceled"}
    assert ended_by_cancel <= canceled
    assert 5 <= len(ended_by_cancel) < JOBS / 2
    for key, end in ended.items():
        expected = reference[requests[int(key)]]
        if key in ended_by_cancel:
            assert expected.text.startswith(end.text)
        else:
            assert _answer(end) == expected
    assert any(end.usage.cached_tokens > 0 for end in ended.values()) is reuse

"""Tests in the time of a simulated device that drafts pay where answers repeat prompts, and cost little elsewhere."""

import contextlib
import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.clock import ManualClock
from tests.support import device_queue
from tests.support.device_queue import BATCH_S, DeviceQueue
from tests.support.driven import NEVER_S, Driven
from workers.engine.backend import Prepared
from workers.engine.events import Ended, JobSpec
from workers.engine.llama.backend import LlamaBackend
from workers.engine.llama.calibration import calibrate
from workers.engine.sampling import Sampling

pytestmark = pytest.mark.thorough

#: A cache that is shared, so that several sequences are drafted beside each other.
shared_cache = pytest.mark.parametrize("backend", [("shared", 4096)], indirect=True, ids=["shared"])
_LENGTH = 300
_Text = tuple[list[int], list[int]]


def _text(seed: int, repeated: int, own: int) -> _Text:
    """Return a prompt, and an answer that alternates `repeated` tokens of it with `own` other ones."""
    dice = random.Random(seed)
    prompt = [dice.randrange(300, 1000) for _ in range(_LENGTH)]
    answer: list[int] = []
    while len(answer) < _LENGTH:
        answer += prompt[len(answer) : len(answer) + repeated]
        answer += [dice.randrange(300, 1000) for _ in range(own)]
    return prompt, answer[:_LENGTH]


def _times_s(backend: LlamaBackend, texts: list[_Text], *, speculates: bool, token_s: float) -> list[float]:
    """Return how long each answer takes on the device, from the end of the prompts on. The answers are given."""
    with pytest.MonkeyPatch.context() as patch:
        clock = ManualClock()
        patch.setattr(device_queue, "TOKEN_S", token_s)
        DeviceQueue(patch, clock)
        Driven(backend, clock)  # clears the slots, which another test may have used
        _, fit = calibrate(backend, clock)
        given: dict[int, Iterator[int]] = {}
        open_slot, sample = backend.open_slot, backend.sample

        def open_given(slot, job, *rest):
            given[slot] = iter(texts[int(job.spec.key)][1])
            open_slot(slot, job, *rest)

        def sample_given(row, known=None):
            sample(row, known)
            return next(given[row.slot])

        patch.setattr(backend, "open_slot", open_given)
        patch.setattr(backend, "sample", sample_given)
        with contextlib.closing(Driven(backend, clock, fit=fit, speculates=speculates, reuse=False)) as driven:
            for i, (prompt, answer) in enumerate(texts):
                job = JobSpec(str(i), "blue", {}, len(answer), NEVER_S)
                sampling = Sampling(temperature=0.0, ignore_eos=True)
                tokens = np.array(prompt, np.int32)
                driven.engine.submit(Prepared(job, len(prompt), len(answer), sampling, tokens))
            while driven.engine.stats.prompt_tokens < sum(len(prompt) for prompt, _ in texts):
                driven.engine.step()
            began_s, ends_s = clock.monotonic(), {}
            while driven.engine.step():
                for event in driven.events:
                    if isinstance(event, Ended):
                        ends_s.setdefault(event.key, clock.monotonic() - began_s)
            return [ends_s[str(i)] for i in range(len(texts))]


def _speeds(backend: LlamaBackend, texts: list[_Text], token_s: float) -> list[float]:
    """Return how many times as fast each answer is with drafts."""
    off = _times_s(backend, texts, speculates=False, token_s=token_s)
    on = _times_s(backend, texts, speculates=True, token_s=token_s)
    return [without / with_drafts for without, with_drafts in zip(off, on, strict=True)]


@shared_cache
@pytest.mark.parametrize(("token_s", "speed"), [(BATCH_S / 100, 4.0), (BATCH_S / 6, 2.0)])
def test_an_answer_that_repeats_its_prompt_is_several_times_as_fast(backend, token_s, speed):
    assert _speeds(backend, [_text(1, _LENGTH, 0)], token_s)[0] > speed


@shared_cache
def test_an_answer_that_repeats_its_prompt_only_at_its_end_is_soon_drafted(backend):
    prompt, own = _text(1, 0, _LENGTH)
    # Without drafts it has 300 steps. The last 100 tokens are a third of these, and with drafts a few.
    assert _speeds(backend, [(prompt, own[:200] + prompt[:100])], BATCH_S / 100)[0] > 1.2


@shared_cache
def test_four_answers_that_repeat_their_prompts_are_all_faster(backend):
    assert min(_speeds(backend, [_text(i, 40, 2) for i in range(4)], BATCH_S / 10)) > 1.2


@shared_cache
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 24), st.integers(1, 12)), min_size=1, max_size=4),
    share=st.sampled_from([0.005, 0.1, 0.3, 1.0]),
)
def test_no_answer_is_slower_than_97_hundredths_of_its_speed_without_drafts(backend, texts, share):
    """Also if a text is made so that drafts begin to look good just before they are wrong, beside any other texts."""
    assert min(_speeds(backend, list(itertools.starmap(_text, texts)), share * BATCH_S)) >= 0.97

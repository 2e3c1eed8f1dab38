"""Tests that the demo model gives the same greedy answers beside other jobs as in llama.cpp alone."""

import contextlib
import random

import llama_cpp
import pytest

from shared.settings.settings import load
from tests.support.driven import Driven
from tools.demo_model.stories import a_story
from workers.demo import demo_model_path
from workers.engine.llama.backend import load_backend

pytestmark = pytest.mark.thorough

_DICE = random.Random(5)
#: Text, finish reason and number of answer tokens.
Answer = tuple[str, str, int]
#: The beginnings of stories, each with the most tokens to generate.
JOBS = [(" ".join(a_story(_DICE).split()[: _DICE.randint(1, 40)]), _DICE.randint(5, 60)) for _ in range(24)]


@pytest.fixture(scope="module")
def reference() -> list[Answer]:
    """The answers of `llama_cpp.Llama` to the jobs."""
    path = str(demo_model_path())
    with contextlib.closing(llama_cpp.Llama(path, n_ctx=2048, n_threads=1, n_threads_batch=1, verbose=False)) as llama:
        answers = []
        for prompt, n in JOBS:
            result = llama(prompt, max_tokens=n, temperature=0)
            choice = result["choices"][0]
            answers.append((choice["text"], choice["finish_reason"], result["usage"]["completion_tokens"]))
        return answers


@pytest.mark.parametrize("cells", [8192, 16384], ids=["shared", "split"])
@pytest.mark.parametrize("chunk", [7, 512])
def test_the_demo_model_in_eight_slots_gives_its_reference_answers(
    reference: list[Answer], cells: int, chunk: int
) -> None:
    settings = load({}, None, device="cpu", max_batch_size=8, kv_cells=cells, threads=1)
    with contextlib.closing(load_backend(settings, demo_model_path())) as backend:
        driven = Driven(backend, prefill_chunk=chunk)
        for i, (prompt, n) in enumerate(JOBS):
            driven.submit(str(i), {"prompt": prompt, "max_tokens": n, "temperature": 0})
        driven.run_until_idle()
        ended = [driven.ended[str(i)] for i in range(len(JOBS))]
        assert [(one.text, one.finish_reason, one.usage.completion_tokens) for one in ended] == reference

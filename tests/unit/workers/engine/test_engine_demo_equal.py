"""The model that `up` serves answers in any company what it answers alone, token for token."""

import contextlib
import random

import llama_cpp
import pytest

from shared.settings.settings import load
from tests.support.driven import Driven
from tools.demo_model.stories import a_story
from workers.demo import demo_model_path
from workers.engine.llama.backend import load_backend

_DICE = random.Random(5)
Told = tuple[str, str, int]
#: Beginnings of stories and how much is to be told.
JOBS = [(" ".join(a_story(_DICE).split()[: _DICE.randint(1, 40)]), _DICE.randint(5, 60)) for _ in range(24)]


@pytest.fixture(scope="module")
def alone() -> list[Told]:
    """What `llama_cpp.Llama` tells: (text, finish reason, tokens)."""
    path = str(demo_model_path())
    with contextlib.closing(llama_cpp.Llama(path, n_ctx=2048, n_threads=1, n_threads_batch=1, verbose=False)) as llama:
        told = []
        for prompt, n in JOBS:
            said = llama(prompt, max_tokens=n, temperature=0)
            choice = said["choices"][0]
            told.append((choice["text"], choice["finish_reason"], said["usage"]["completion_tokens"]))
        return told


@pytest.mark.parametrize("cells", [8192, 16384], ids=["shared", "split"])
@pytest.mark.parametrize("chunk", [7, 512])
def test_the_demo_model_in_eight_slots_answers_as_alone(alone: list[Told], cells: int, chunk: int) -> None:
    settings = load({}, None, device="cpu", max_batch_size=8, kv_cells=cells, threads=1)
    with contextlib.closing(load_backend(settings, demo_model_path())) as backend:
        driven = Driven(backend, prefill_chunk=chunk)
        for i, (prompt, n) in enumerate(JOBS):
            driven.submit(str(i), {"prompt": prompt, "max_tokens": n, "temperature": 0})
        driven.run_dry()
        ended = [driven.ended[str(i)] for i in range(len(JOBS))]
        assert [(one.text, one.finish_reason, one.usage.completion_tokens) for one in ended] == alone

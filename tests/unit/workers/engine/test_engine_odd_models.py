"""Models with experts and with a sliding window answer as when they are used directly."""

import contextlib

import pytest
from llama_cpp import Llama

from shared.settings.settings import load
from tests.support.driven import Driven
from tests.support.odd_models import write_odd_model
from workers.engine.llama.backend import load_backend

# In these answers, the two best tokens are never closer than .007, so that rounding does not decide between them. The
# prompts for the model with a window of 64 tokens have more tokens than that with their answers.
PROMPTS = {
    "qwen3moe": ("once upon a time ", "rike vonu pona ", "the old mill " * 12),
    "gemma3": ("once upon a time " * 8, "dibo kufe " * 12),
}


@pytest.mark.parametrize("architecture", PROMPTS)
def test_jobs_side_by_side_are_answered_as_by_the_model_alone(model_path, tmp_path, architecture):
    path = tmp_path / "odd.gguf"
    write_odd_model(model_path, path, architecture)
    prompts = PROMPTS[architecture]
    llama = Llama(str(path), n_ctx=2048, n_threads=1, n_threads_batch=1, verbose=False)
    expected = [llama(prompt, max_tokens=24, temperature=0)["choices"][0]["text"] for prompt in prompts]
    llama.close()
    with contextlib.closing(load_backend(load({}, None, device="cpu", threads=1), path)) as backend:
        driven = Driven(backend)
        for number, prompt in enumerate(prompts):
            driven.submit(str(number), {"prompt": prompt, "temperature": 0, "max_tokens": 24})
        driven.run_until_idle()
        assert [driven.ended[str(number)].text for number in range(len(prompts))] == expected

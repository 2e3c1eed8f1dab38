"""A model with experts is served: its answers over HTTP are those of the model used directly."""

from pathlib import Path

import pytest

from tests.support.odd_models import write_odd_model
from tests.support.processes import Stage
from tests.support.served import Served
from workers.demo.random_gguf import write_random_model

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

pytestmark = pytest.mark.ways("direct", reason="the answers do not depend on the way to the door")

# In these answers, the two best tokens are never closer than .007, so that rounding does not decide between them.
PROMPTS = ("once upon a time ", "rike vonu pona ", "the old mill " * 8, "the old mill " * 12)


def test_a_model_with_experts_answers_as_the_model_used_directly(tmp_path: Path) -> None:
    write_random_model(tmp_path / "vocabulary.gguf")
    path = tmp_path / "experts.gguf"
    write_odd_model(tmp_path / "vocabulary.gguf", path, "qwen3moe")
    with Stage(tmp_path, PENSTOCK_ENGINE="llama", PENSTOCK_MODEL=str(path), PENSTOCK_ADMISSION="bounds") as stage:
        stage.worker()
        with Served(stage) as served:
            jobs = [
                served.submit(prompt=prompt, max_tokens=24, temperature=0, deadline_ms=100_000) for prompt in PROMPTS
            ]
            assert [job.status_code for job in jobs] == [202] * len(PROMPTS), [job.text for job in jobs]
            found = stage.ended(*(job.json()["id"] for job in jobs), timeout_s=90)
        stage.assert_sound()
    llama = llama_cpp.Llama(str(path), n_ctx=2_048, n_threads=1, n_threads_batch=1, verbose=False)
    expected = [llama(prompt, max_tokens=24, temperature=0)["choices"][0]["text"] for prompt in PROMPTS]
    llama.close()
    assert [job.text for job in found] == expected
    assert len(set(expected)) == len(PROMPTS)

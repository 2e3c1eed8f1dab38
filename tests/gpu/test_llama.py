"""Tests the engine on a GPU: where it places the model, what it reports about that, and what it answers.

The tests are skipped if the installed llama-cpp-python sees no GPU. On a machine with a GPU, run
`make install GPU=cuda && make test PYTEST=tests/gpu`.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.errors import ModelError
from shared.settings.settings import Settings, load
from workers.engine.events import Ended, Event, JobSpec
from workers.engine.factory import make_engine
from workers.engine.llama.devices import Device, choose, describe, gpus
from workers.engine.loop import Engine

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

from llama_cpp import _ggml  # noqa: E402 - it is imported only if it is installed

from workers.demo.random_gguf import write_random_model  # noqa: E402 - it needs the engine's packages
from workers.engine.llama import kv_memory  # noqa: E402 - it needs llama_cpp
from workers.engine.llama.backend import LlamaBackend  # noqa: E402 - it needs llama_cpp
from workers.engine.sizing import GPU_SPARE_BYTES  # noqa: E402 - it belongs to the imports above

llama_cpp.llama_backend_init()
GPUS: list[Device] = gpus(_ggml.libggml)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not GPUS, reason="this build of llama-cpp-python sees no GPU: make install GPU=cuda"),
]

PROMPTS = [" ".join(words) for words in itertools.permutations(["dibo", "kufe", "moza", "talu"], 4)]
TOKENS = 40


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a random llama model with four layers, in 16-bit floats as GPUs compute with."""
    path = tmp_path_factory.mktemp("model") / "gpu.gguf"
    write_random_model(path, n_embd=256, n_layer=4, n_head=8, n_head_kv=4, n_ff=768, file_type="f16")
    return path


def settings(**overrides: object) -> Settings:
    return load({}, None, **({"max_batch_size": 8, "kv_cells": 8192} | overrides))


@contextlib.contextmanager
def engine(path: Path, events: list[Event], *, index: int = 0, **overrides: object) -> Iterator[Engine]:
    made = make_engine(settings(**overrides), events.append, model_path=path, index=index)
    yield made
    made.backend.close()


def answers(path: Path, **overrides: object) -> list[str]:
    """Return the greedy answers to all prompts, which run together in up to eight slots."""
    events: list[Event] = []
    with engine(path, events, **overrides) as made:
        for i, prompt in enumerate(PROMPTS):
            payload = {"prompt": prompt, "temperature": 0, "max_tokens": TOKENS}
            made.submit(made.prepare(JobSpec(str(i), "blue", payload, TOKENS, 1e12)))
        while made.step():
            pass
        made.check_idle()
    ended = {event.key: event for event in events if isinstance(event, Ended)}
    assert {one.outcome for one in ended.values()} == {"succeeded"}
    return [ended[str(i)].text for i in range(len(PROMPTS))]


def test_every_layer_is_placed_on_the_gpu_and_its_memory_is_reported(path: Path) -> None:
    with engine(path, [], device="0") as made:
        facts = made.backend.facts
        assert facts.layers_offloaded == facts.layers == 5
        assert GPUS[0].name in facts.device
        assert min(facts.weights_bytes, facts.kv_bytes, facts.compute_bytes) > 0
        assert facts.warning == ""
        assert "5 of 5 layers on a GPU" in facts.sentence()


def test_device_auto_chooses_the_gpu_with_the_worker_s_index(path: Path) -> None:
    for index in range(len(GPUS)):
        with engine(path, [], index=index, device="auto") as made:
            assert made.backend.facts.device == f"{GPUS[index].name} ({GPUS[index].description})"


def test_the_settings_for_the_cpu_and_for_the_number_of_gpu_layers_are_obeyed(path: Path) -> None:
    with engine(path, [], device="cpu") as made:
        assert (made.backend.facts.device, made.backend.facts.layers_offloaded) == ("CPU", 0)
    with engine(path, [], device="0", n_gpu_layers=2) as made:
        assert made.backend.facts.layers_offloaded == 2


def test_a_device_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ModelError, match="sees 0 is "):
        choose(str(len(GPUS)), GPUS)


def test_a_device_with_enough_memory_has_cells_for_the_longest_job_in_every_slot(path: Path) -> None:
    made = make_engine(load({}, None, device="0"), print, model_path=path)
    backend = made.backend
    assert isinstance(backend, LlamaBackend)
    assert (backend.slots, backend.n_ctx, backend.cells) == (16, 2048, 16 * 2048)
    backend.close()


def test_cells_fill_the_memory_that_is_free_after_the_weights_except_what_is_kept_free(path: Path, monkeypatch) -> None:
    """The device reports 16 MiB more free memory than is kept free; a cell of this model takes 2 KiB."""

    def with_little_memory(ggml: object, handle: int) -> Device:
        return dataclasses.replace(describe(ggml, handle), free_bytes=GPU_SPARE_BYTES + (16 << 20))

    monkeypatch.setattr(kv_memory, "describe", with_little_memory)
    made = make_engine(load({}, None, device="0"), print, model_path=path)
    assert made.backend.cells == 8192
    made.backend.close()


def assert_few_differ(our_answers: list[str], expected: list[str]) -> None:
    """A GPU adds in another order if it computes several rows, which may decide between two equally likely tokens."""
    differing = [i for i, (ours, theirs) in enumerate(zip(our_answers, expected, strict=True)) if ours != theirs]
    assert len(differing) <= len(PROMPTS) // 4, f"{len(differing)} of {len(PROMPTS)} differ: {differing}"


@pytest.mark.parametrize("chunk", [16, 64, 512])
def test_answers_that_run_together_are_those_of_one_slot(path: Path, chunk: int) -> None:
    alone = answers(path, device="0", max_batch_size=1)
    assert len(set(alone)) == len(PROMPTS)
    assert_few_differ(answers(path, device="0", prefill_chunk=chunk), alone)


def test_one_slot_gives_the_same_answers_as_llama_cpp(path: Path) -> None:
    one_slot = answers(path, device="0", max_batch_size=1)
    with contextlib.closing(
        llama_cpp.Llama(
            str(path),
            n_ctx=2048,
            n_gpu_layers=-1,
            split_mode=llama_cpp.LLAMA_SPLIT_MODE_NONE,
            main_gpu=0,
            flash_attn=True,
            verbose=False,
        )
    ) as llama:
        assert_few_differ(
            one_slot, [llama(prompt, max_tokens=TOKENS, temperature=0)["choices"][0]["text"] for prompt in PROMPTS]
        )

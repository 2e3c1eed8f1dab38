"""Tests of the seeded random model: a valid llama model whose answers depend on the whole prompt."""

from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import pytest
from gguf import quants

from workers.demo.random_gguf import write_random_model


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("random") / "random.gguf"
    write_random_model(path)
    return path


@pytest.fixture(scope="module")
def llama(random_model: Path) -> llama_cpp.Llama:
    return llama_cpp.Llama(str(random_model), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)


def greedy_answer(llama: llama_cpp.Llama, prompt: str, max_tokens: int = 40) -> str:
    answer = llama.create_completion(prompt, max_tokens=max_tokens, temperature=0)
    return str(answer["choices"][0]["text"])


def test_the_same_seed_writes_the_same_bytes_and_another_seed_different_ones(
    tmp_path: Path, random_model: Path
) -> None:
    write_random_model(tmp_path / "again.gguf", seed=1)
    write_random_model(tmp_path / "other.gguf", seed=2)

    assert (tmp_path / "again.gguf").read_bytes() == random_model.read_bytes()
    assert (tmp_path / "other.gguf").read_bytes() != random_model.read_bytes()


def test_the_default_model_is_small_and_carries_its_name(random_model: Path, llama: llama_cpp.Llama) -> None:
    assert random_model.stat().st_size < 3_000_000
    assert llama.metadata["general.name"] == "penstock-demo"
    assert llama.metadata["llama.context_length"] == "2048"


def test_different_prompts_get_different_answers_of_full_length(llama: llama_cpp.Llama) -> None:
    prompts = ["Once upon a time", "Twice upon a time", "Once upon a time, ", "x", "y", ""]
    results = [llama.create_completion(prompt, max_tokens=64, temperature=0) for prompt in prompts]

    assert len({result["choices"][0]["text"] for result in results}) == len(prompts)
    assert {result["choices"][0]["finish_reason"] for result in results} == {"length"}


def test_an_answer_depends_on_the_beginning_of_the_prompt_and_not_only_on_its_end(llama: llama_cpp.Llama) -> None:
    ending = " there was a gate above a turbine"

    assert greedy_answer(llama, "a" + ending) != greedy_answer(llama, "b" + ending)


def test_any_text_is_unchanged_after_tokenizing_and_detokenizing(llama: llama_cpp.Llama) -> None:
    text = "bado héllo 猫\n\ttab 🦊 <0x41> ▁".replace("▁", "|")

    assert llama.detokenize(llama.tokenize(text.encode(), add_bos=False)).decode() == text


def test_a_chat_is_rendered_through_the_models_own_template(llama: llama_cpp.Llama) -> None:
    answer = llama.create_chat_completion([{"role": "user", "content": "ba"}], max_tokens=5, temperature=0)

    # <s> <|user|> ba </s> <|assistant|>
    assert answer["usage"]["prompt_tokens"] == 5


def test_a_model_with_f16_weights_answers(tmp_path: Path, random_model: Path) -> None:
    path = tmp_path / "halves.gguf"
    write_random_model(path, file_type="f16", name="halves")
    halves = llama_cpp.Llama(str(path), n_ctx=128, n_threads=1, n_threads_batch=1, verbose=False)

    assert path.stat().st_size < random_model.stat().st_size
    assert halves.metadata["general.name"] == "halves"
    assert len(greedy_answer(halves, "x", max_tokens=8)) > 0


def test_q8_0_weights_equal_the_f32_weights_of_the_same_seed_within_rounding(
    tmp_path: Path, random_model: Path
) -> None:
    # The file is only read, because llama.cpp built by GCC 12 crashes on quantized weights (SIGSEGV) on a CPU with AMX.
    path = tmp_path / "bytes.gguf"
    write_random_model(path, file_type="q8_0")
    exact = {tensor.name: tensor for tensor in gguf.GGUFReader(random_model).tensors}

    for tensor in gguf.GGUFReader(path).tensors:
        expected = exact[tensor.name].data
        restored = quants.dequantize(tensor.data, tensor.tensor_type)
        # A block's step is its largest value / 127; the value is off by half a step, and its scale is a float16.
        np.testing.assert_allclose(restored, expected, atol=float(np.abs(expected).max()) * 0.006)
    assert llama_cpp.Llama(str(path), vocab_only=True, verbose=False).n_vocab() == 1024


def test_a_model_of_a_larger_shape_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "larger.gguf"
    write_random_model(path, file_type="f16", n_vocab=8192, n_layer=2, n_embd=576, n_head=9, n_head_kv=3, n_ff=1536)
    larger = llama_cpp.Llama(str(path), n_ctx=64, n_threads=1, n_threads_batch=1, verbose=False)

    assert larger.n_vocab() == 8192
    assert larger.n_embd() == 576
    assert len(greedy_answer(larger, "x", max_tokens=2)) > 0


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"n_vocab": 300}, r"n_vocab 300 is not in \d+\.\.\d+"),
        ({"n_embd": 65}, "n_embd 65 is not an even multiple of n_head 4"),
        ({"n_head_kv": 3}, "n_head 4 is not a multiple of n_head_kv 3"),
        ({"file_type": "q4_0"}, "file_type 'q4_0' is not one of f32, f16, q8_0"),
        ({"n_embd": 48, "file_type": "q8_0"}, "n_embd 48 is not a multiple of 32"),
        ({"n_layer": 0}, "n_layer is 0"),
    ],
)
def test_an_invalid_size_is_named_in_the_error_and_no_file_is_written(
    tmp_path: Path, sizes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        write_random_model(tmp_path / "never.gguf", **sizes)

    assert list(tmp_path.iterdir()) == []

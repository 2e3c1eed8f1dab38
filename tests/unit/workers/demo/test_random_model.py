"""The seeded random model is a real llama, the same for the same seed, and answers by the whole prompt."""

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
    return llama_cpp.Llama(str(random_model), n_ctx=512, n_threads=1, verbose=False)


def greedy_answer(llama: llama_cpp.Llama, prompt: str, max_tokens: int = 40) -> str:
    answer = llama.create_completion(prompt, max_tokens=max_tokens, temperature=0)
    return str(answer["choices"][0]["text"])


def test_the_same_seed_writes_the_same_bytes_and_another_seed_others(tmp_path: Path, random_model: Path) -> None:
    write_random_model(tmp_path / "again.gguf", seed=1)
    write_random_model(tmp_path / "other.gguf", seed=2)

    assert (tmp_path / "again.gguf").read_bytes() == random_model.read_bytes()
    assert (tmp_path / "other.gguf").read_bytes() != random_model.read_bytes()


def test_the_default_model_is_small_and_says_its_name(random_model: Path, llama: llama_cpp.Llama) -> None:
    assert random_model.stat().st_size < 3_000_000
    assert llama.metadata["general.name"] == "penstock-demo"
    assert llama.metadata["llama.context_length"] == "2048"


def test_different_prompts_get_different_answers_of_full_length(llama: llama_cpp.Llama) -> None:
    prompts = ["Once upon a time", "Twice upon a time", "Once upon a time, ", "x", "y", ""]
    results = [llama.create_completion(prompt, max_tokens=64, temperature=0) for prompt in prompts]

    assert len({result["choices"][0]["text"] for result in results}) == len(prompts)
    assert {result["choices"][0]["finish_reason"] for result in results} == {"length"}


def test_an_answer_depends_on_how_the_prompt_began_not_only_on_how_it_ended(llama: llama_cpp.Llama) -> None:
    ending = " there was a gate above a turbine"

    assert greedy_answer(llama, "a" + ending) != greedy_answer(llama, "b" + ending)


def test_any_text_survives_the_vocabulary(llama: llama_cpp.Llama) -> None:
    text = "bado héllo 猫\n\ttab 🦊 <0x41> ▁".replace("▁", "|")

    assert llama.detokenize(llama.tokenize(text.encode(), add_bos=False)).decode() == text


def test_a_chat_is_rendered_through_the_models_own_template(llama: llama_cpp.Llama) -> None:
    answer = llama.create_chat_completion([{"role": "user", "content": "ba"}], max_tokens=5, temperature=0)

    # <s> <|user|> ba </s> <|assistant|>
    assert answer["usage"]["prompt_tokens"] == 5


def test_f16_weights_answer_too(tmp_path: Path, random_model: Path) -> None:
    path = tmp_path / "halves.gguf"
    write_random_model(path, file_type="f16", name="halves")
    halves = llama_cpp.Llama(str(path), n_ctx=128, n_threads=1, verbose=False)

    assert path.stat().st_size < random_model.stat().st_size
    assert halves.metadata["general.name"] == "halves"
    assert len(greedy_answer(halves, "x", max_tokens=8)) > 0


def test_q8_0_weights_are_those_of_the_same_seed_within_their_rounding(tmp_path: Path, random_model: Path) -> None:
    # Read, not run: builds of llama.cpp by GCC 12 end in SIGSEGV on quantized weights where the CPU has AMX.
    path = tmp_path / "bytes.gguf"
    write_random_model(path, file_type="q8_0")
    exact = {tensor.name: tensor for tensor in gguf.GGUFReader(random_model).tensors}

    for tensor in gguf.GGUFReader(path).tensors:
        expected = exact[tensor.name].data
        restored = quants.dequantize(tensor.data, tensor.tensor_type)
        # A block's step is its largest value / 127; the value is off by half a step, and its scale is a float16.
        np.testing.assert_allclose(restored, expected, atol=float(np.abs(expected).max()) * 0.006)
    assert llama_cpp.Llama(str(path), vocab_only=True, verbose=False).n_vocab() == 1024


def test_the_shape_of_a_larger_family_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "larger.gguf"
    write_random_model(path, file_type="f16", n_vocab=8192, n_layer=2, n_embd=576, n_head=9, n_head_kv=3, n_ff=1536)
    larger = llama_cpp.Llama(str(path), n_ctx=64, n_threads=1, verbose=False)

    assert larger.n_vocab() == 8192
    assert larger.n_embd() == 576
    assert len(greedy_answer(larger, "x", max_tokens=2)) > 0


@pytest.mark.parametrize(
    ("sizes", "complaint"),
    [
        ({"n_vocab": 300}, r"n_vocab 300 is not in \d+\.\.\d+"),
        ({"n_embd": 65}, "n_embd 65 is no even multiple of n_head 4"),
        ({"n_head_kv": 3}, "n_head 4 is no multiple of n_head_kv 3"),
        ({"file_type": "q4_0"}, "file_type 'q4_0' is none of f32, f16, q8_0"),
        ({"n_embd": 48, "file_type": "q8_0"}, "n_embd 48 is no multiple of 32"),
        ({"n_layer": 0}, "n_layer is 0"),
    ],
)
def test_a_size_that_cannot_be_is_named_and_nothing_is_written(
    tmp_path: Path, sizes: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        write_random_model(tmp_path / "never.gguf", **sizes)

    assert list(tmp_path.iterdir()) == []

"""Tests which files of a Hugging Face repository a model name selects."""

import pytest

from shared.errors import ModelError
from shared.jobs.model_name import HubName
from workers.model.hf_files import choose

REPO = [
    "README.md",
    "config.json",
    "mmproj-F16.gguf",
    "m-Q4_K_M.gguf",
    "m-Q4_K.gguf",
    "m-IQ4_XS.gguf",
    "m-q8_0.gguf",
    "BF16/m-BF16-00002-of-00002.gguf",
    "BF16/m-BF16-00001-of-00002.gguf",
    "m-F32-00001-of-00003.gguf",
    "m-F32-00003-of-00003.gguf",
]


@pytest.mark.parametrize(
    ("selector", "files"),
    [
        ("Q4_K_M", ["m-Q4_K_M.gguf"]),
        ("Q4_K", ["m-Q4_K.gguf"]),
        ("q4_k", ["m-Q4_K.gguf"]),
        ("Q8_0", ["m-q8_0.gguf"]),
        ("m-IQ4_XS.gguf", ["m-IQ4_XS.gguf"]),
        ("BF16", ["BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf"]),
        ("m-BF16-00002-of-00002.gguf", ["BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf"]),
    ],
)
def test_a_quantization_or_a_file_name_selects_one_model_with_all_its_parts(selector, files):
    assert choose(HubName("org/repo", selector), REPO) == files


def test_a_repo_with_one_model_needs_no_selector():
    assert choose(HubName("org/repo"), ["x.gguf", "mmproj-x.gguf", "README.md"]) == ["x.gguf"]


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("", "org/repo matches several models: BF16/m-BF16-00001-of-00002.gguf, m-F32"),
        ("m", "org/repo:m matches several models: "),
        ("Q4_XS", "contains no model 'Q4_XS'; it contains BF16/m-BF16"),
        ("mmproj-F16.gguf", "contains no model"),
        ("F32", "of the 3 parts of m-F32 these are missing: 00002"),
    ],
)
def test_a_selector_that_does_not_match_exactly_one_complete_model_is_refused_with_the_reason(selector, message):
    with pytest.raises(ModelError) as caught:
        choose(HubName("org/repo", selector), REPO)
    assert message in str(caught.value)


def test_a_repo_without_a_gguf_file_is_refused():
    with pytest.raises(ModelError, match="contains no GGUF file"):
        choose(HubName("org/repo"), ["model.safetensors"])

"""Tests that a prompt in pieces becomes the tokens of its text, without a space between two pieces.

With VOCABULARIES=FOLDER, they also run on the files ggml-vocab-*.gguf in it, which are in llama.cpp's source.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_cpp import llama_cpp

from tests.support.gguf_copy import copy_gguf
from workers.demo import demo_model_path
from workers.engine.events import JobSpec
from workers.engine.llama.vocabulary import Vocabulary

FOLDER = os.environ.get("VOCABULARIES")
FILES = [] if FOLDER is None else sorted(Path(FOLDER).glob("ggml-vocab-*.gguf"))


@pytest.fixture(scope="module", params=["random", "with-a-space-in-front", "demo", *FILES], ids=str)
def vocabulary(
    request: pytest.FixtureRequest, model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Vocabulary]:
    spaced = tmp_path_factory.mktemp("spaced") / "m.gguf"
    copy_gguf(model_path, spaced, adds_space=True)
    paths = {"random": model_path, "with-a-space-in-front": spaced, "demo": demo_model_path()}
    path = paths.get(request.param, request.param)
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    yield Vocabulary(llama_cpp, model)
    llama_cpp.llama_model_free(model)


@pytest.mark.parametrize(
    "pieces",
    [
        ["a <", "/s> b"],
        ["a <", "/s><", "/s> b"],
        ["dibo<", "unk>", " kufe"],
        ["x <", "s> and <", "/s>\n"],
        ["héllo <", "/s> 水猫 🙂"],
        ["one", "two", " three", "\nfour", ""],
    ],
    ids="".join,
)
def test_the_tokens_of_a_prompt_in_pieces_joined_are_the_prompt(vocabulary, pieces):
    text = vocabulary.text(vocabulary.tokenize_pieces(pieces)).decode()
    whole = vocabulary.text(vocabulary.tokenize(pieces[0])).decode() + "".join(pieces[1:])
    assert text == whole


def test_the_name_of_a_control_token_in_a_message_reaches_the_model_as_it_is(backend):
    for text in ("a </s> b", "</s>", "a<s>b</s>c", "two </s></s> in a row"):
        body = {"messages": [{"role": "user", "content": text}]}
        prompt = backend.prepare(JobSpec("a", "blue", body, 1, 1e12)).prompt
        assert text.encode() in b"".join(map(backend.piece, prompt.tolist()))

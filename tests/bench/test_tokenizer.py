"""Tests that the trainer's tokenizer and llama.cpp split a text into the same tokens."""

from itertools import islice
from pathlib import Path

import gguf
import llama_cpp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.demo_model.documents import documents
from tools.demo_model.tokenizer import Tokenizer, learn_pieces
from workers.demo import demo_model_path
from workers.demo.random_gguf import write_random_model
from workers.demo.vocabulary import FIRST_PIECE_ID, Vocabulary, vocabulary_of


def vocabulary_in(path: Path) -> Vocabulary:
    pieces = gguf.GGUFReader(path).fields["tokenizer.ggml.tokens"].contents()
    return vocabulary_of(pieces[FIRST_PIECE_ID:])


@pytest.fixture(scope="module")
def trained() -> tuple[Tokenizer, llama_cpp.Llama]:
    path = demo_model_path()
    return Tokenizer(vocabulary_in(path)), llama_cpp.Llama(str(path), vocab_only=True, verbose=False)


def llama_tokens(llama: llama_cpp.Llama, text: str) -> list[int]:
    return list(llama.tokenize(text.encode(), add_bos=False, special=False))


def test_every_training_text_has_the_same_tokens_as_in_llama_cpp(trained: tuple[Tokenizer, llama_cpp.Llama]) -> None:
    tokenizer, llama = trained
    parts = [part.content for document in islice(documents(77), 300) for part in document]
    texts = [text for text in parts if isinstance(text, str)]

    assert len(texts) > 300
    for text in texts:
        assert tokenizer.encode(text) == llama_tokens(llama, text)


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60))
def test_any_text_has_the_same_tokens_as_in_llama_cpp(trained: tuple[Tokenizer, llama_cpp.Llama], text: str) -> None:
    tokenizer, llama = trained

    assert tokenizer.encode(text) == llama_tokens(llama, text)


@given(
    words=st.lists(
        st.sampled_from(
            ["the", "▁the", "", "was", "time▁", "\n", "Once,upon", '"Fern\'s"', "12", "3rd", "_x_", "🙂", "▁"]
        )
    )
)
def test_spaces_and_punctuation_in_unusual_places_have_the_same_tokens_as_in_llama_cpp(
    trained: tuple[Tokenizer, llama_cpp.Llama], words: list[str]
) -> None:
    tokenizer, llama = trained
    text = " ".join(words) + "."

    assert tokenizer.encode(text) == llama_tokens(llama, text)


def test_a_newly_written_vocabulary_gives_the_same_tokens_as_in_llama_cpp(tmp_path: Path) -> None:
    write_random_model(tmp_path / "random.gguf")
    llama = llama_cpp.Llama(str(tmp_path / "random.gguf"), vocab_only=True, verbose=False)
    tokenizer = Tokenizer(vocabulary_in(tmp_path / "random.gguf"))

    for text in ("badu gafe, kobo!", "Once upon a time", "héllo 猫", "  two  spaces  "):
        assert tokenizer.encode(text) == llama_tokens(llama, text)


def test_frequent_pairs_are_merged_first_and_words_are_never_merged_with_each_other() -> None:
    pieces = learn_pieces(["the gate the gate the mill"] * 3, 102)

    # "th" and "he" both occur three times in each text; the first in alphabetical order is merged first.
    assert pieces[:5] == ["he", "the", "at", "ate", "gate"]
    assert pieces[-2:] == ["▁gate", "▁the"]
    assert not [piece for piece in pieces if "▁" in piece[1:]]
    assert pieces == learn_pieces(["the gate the gate the mill"] * 3, 102)


def test_a_name_that_no_text_contains_has_the_same_pieces_after_a_space_as_after_a_quotation_mark() -> None:
    texts = [part.content for document in islice(documents(5), 60) for part in document if part.learned]
    pieces = learn_pieces([text for text in texts if isinstance(text, str)], 300)
    vocabulary = vocabulary_of(pieces)
    tokenizer = Tokenizer(vocabulary)
    (space,) = tokenizer.encode(" ")

    for name in ("Zorvath", "Quimper", "xylo7", "Bratwurst", "42", "Ooty"):
        assert tokenizer.encode(f" {name}") == [space, *tokenizer.encode(name)]


def test_texts_that_contain_too_few_pieces_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the texts hold only \d+ of 5000 pieces"):
        learn_pieces(["the gate"], 5000)


def test_a_piece_that_occurs_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        vocabulary_of(["a", "b", "a"])

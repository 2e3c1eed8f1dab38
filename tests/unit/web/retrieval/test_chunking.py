"""Texts are divided into chunks that cover them, are never too long, overlap, and end at good places."""

import math
import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.jobs.cost import TOKENS_PER_BYTE
from tests.support.cpu_time import cpu_time_below
from tests.support.examples import examples
from web.retrieval.chunking import MIN_TOKENS, Chunk, divide, fitting_tokens

PARTS = (
    *("word", " ", " ", "\n", "\n\n", "\r\n", "\r", "\t", ". ", "! ", "Dr. X", "e.g. this", "a.b.c", "…", "»"),
    *("# Title\n", "## Part\n\n", "Name\n====\n", "Name\n----\n", "```\n", "~~~ text\n", "| a | b |\n", "- item\n"),
    *("1. first\n", "x" * 40, "漢字。", "Ünïcödé", "e\u0301\u0302", "\U0001f469\u200d\U0001f52c"),
    *("\u2028", "\x0c", "\ud800", "\0"),
)
TEXTS = st.one_of(st.text(max_size=300), st.lists(st.sampled_from(PARTS), max_size=120).map("".join))
COUNTS: dict[str, Callable[[str], float]] = {
    "characters": len,
    "words and marks": lambda text: len(re.findall(r"\w+|[^\w\s]", text)),
    "bytes": lambda text: max(1, round(len(text.encode(errors="replace")) * TOKENS_PER_BYTE)),
    # Odd estimates must not make the division endless.
    "more for a whole": lambda text: len(text) ** 1.2 / 2,
    "nothing": lambda _: 0,
}


def words(text: str) -> int:
    return len(text.split())


def texts_of(chunks: list[Chunk]) -> list[str]:
    return [chunk.text for chunk in chunks]


@given(TEXTS, st.sampled_from(sorted(COUNTS)), st.integers(MIN_TOKENS, 80), st.integers(0, 60))
@example("x" * 500, "characters", 16, 8)
@example("e" + "\u0301" * 300, "characters", 16, 8)
@example("a" + " " * 400 + "b", "characters", 16, 4)
@example("\r\n" * 60 + "a" + "\r\n" * 60, "bytes", 16, 8)
@settings(max_examples=examples(250))
def test_chunks_cover_a_text_in_order_and_none_is_too_long(text: str, name: str, most: int, overlap: int) -> None:
    count = COUNTS[name]
    chunks = list(divide(text, count, most, overlap))
    covered = 0
    for chunk in chunks:
        assert text[chunk.start : chunk.end] == chunk.text
        assert chunk.text.strip()
        assert count(chunk.text) <= most or len(chunk.text) == 1
        assert chunk.tokens >= count(chunk.text)
        assert not text[covered : chunk.start].strip()
        assert chunk.end > covered
        covered = chunk.end
    assert not text[covered:].strip()
    assert all(one.start <= other.start for one, other in pairwise(chunks))


@given(TEXTS, st.integers(MIN_TOKENS, 80), st.integers(0, 100))
@settings(max_examples=examples(150))
def test_a_chunk_begins_with_at_most_the_overlap(text: str, most: int, overlap: int) -> None:
    for one, other in pairwise(divide(text, len, most, overlap)):
        assert one.end - other.start <= min(overlap, most // 2)


@given(st.lists(st.integers(1, 9), min_size=60, max_size=200), st.integers(40, 120))
@settings(max_examples=examples(60))
def test_a_chunk_begins_with_at_least_half_of_the_overlap(lengths: list[int], most: int) -> None:
    text = " ".join("x" * length for length in lengths)
    overlap = most // 3
    pairs = list(pairwise(divide(text, len, most, overlap)))
    assert pairs
    for one, other in pairs:
        # A space is at the end of the first one, and is not part of it.
        assert one.end + 1 - other.start >= overlap / 2


def test_without_an_overlap_each_word_is_in_one_chunk() -> None:
    text = "one two three four five. " * 40
    assert " ".join(texts_of(list(divide(text, words, 16, 0)))).split() == text.split()


def test_chunks_end_at_paragraphs_then_at_sentences_then_at_words() -> None:
    sentence = "This is one sentence of eight words here."
    paragraphs = "\n\n".join(" ".join([sentence] * 2) for _ in range(6))
    assert all(chunk.text.startswith("This") for chunk in divide(paragraphs, words, 40, 0))
    assert [words(chunk.text) for chunk in divide(paragraphs, words, 40, 0)] == [32, 32, 32]

    one_paragraph = " ".join([sentence] * 12)
    assert {chunk.text[-5:] for chunk in divide(one_paragraph, words, 30, 10)} == {"here."}

    no_sentence = " ".join(f"word{number}" for number in range(200))
    assert {word for chunk in divide(no_sentence, words, 30, 10) for word in chunk.text.split()} == set(
        no_sentence.split()
    )


def test_a_text_without_spaces_is_cut_between_characters_and_not_before_an_accent() -> None:
    chunks = list(divide("e\u0301" * 300, len, 20, 6))
    assert all(len(chunk.text) <= 20 and chunk.text[0] == "e" for chunk in chunks)
    family = "\U0001f469\u200d\U0001f52c"
    assert all(chunk.text.startswith("\U0001f469") for chunk in divide(family * 50, len, 18, 6))
    assert all(chunk.text.endswith("。") for chunk in divide("火车早上八点出发。" * 20, len, 36, 9))


def test_a_heading_stays_with_its_text_and_begins_a_chunk() -> None:
    section = "## Budgets\n\nA budget bounds what a tenant spends in a day. It is a number.\n\n"
    text = "# Guide\n\n" + section * 3 + "Limits\n------\n\nA limit bounds each request of a tenant that is sent.\n"
    chunks = list(divide(text, words, 20, 0))
    assert len(chunks) == 4
    for chunk in chunks[1:3]:
        assert chunk.text.startswith("## Budgets\n\nA budget")
        assert chunk.section == "Guide"
    assert (chunks[0].section, chunks[3].section) == ("", "Guide")
    assert chunks[3].text.startswith("Limits\n------\n\nA limit")

    row = "| " + "a row that is longer than a chunk " * 5 + "|"
    assert next(divide("## Table\n\n" + row, words, 20, 0)).text.startswith("## Table\n\n| ")


def test_the_middle_of_a_section_has_the_titles_above_it() -> None:
    text = "# A\n## B\n#### C #\n" + "Some words of text. " * 40 + "\n## D\n" + "Other words. " * 40
    chunks = list(divide(text, words, 30, 5))
    assert [chunk.section for chunk in chunks if "Other" in chunk.text[:20]][-1] == "A > D"
    assert "A > B > C" in {chunk.section for chunk in chunks}
    assert chunks[0].section == ""


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_code_and_tables_are_cut_at_ends_of_lines_only(line_end: str) -> None:
    code = ["```python", *(f"value_{number} = compute(number={number}). Or so" for number in range(40)), "```"]
    table = [f"| row {number} | has some words. And more |" for number in range(40)]
    for lines in (["# Code", "", *code], table):
        for chunk in divide(line_end.join(lines), words, 30, 8):
            assert set(chunk.text.split(line_end)) <= set(lines)


def test_the_name_of_a_section_consists_of_its_lowest_titles() -> None:
    titles = [letter * 100 for letter in "abcd"]
    text = "".join(f"{'#' * level} {title}\n" for level, title in enumerate(titles, 1)) + "Some words. " * 40
    assert list(divide(text, words, 30, 5))[-1].section == "d" * 80
    assert list(divide(text.replace("c" * 100, "c"), words, 30, 5))[-1].section == f"c > {'d' * 80}"


def test_indentation_at_the_beginning_of_a_chunk_stays() -> None:
    code = "\n".join(["def main():", *(f"    line = {number} + one" for number in range(40))])
    chunks = list(divide(code, words, 20, 0))
    assert all(chunk.text.startswith("    line") for chunk in chunks[1:])


def test_an_abbreviation_does_not_end_a_sentence() -> None:
    text = "There are many of them, e.g. these and those which are here. " * 10
    assert {chunk.text[:5] for chunk in divide(text, words, 26, 0)} == {"There"}


@pytest.mark.parametrize(
    "part",
    [
        "x",
        " ",
        "x ",
        "\n",
        "a\n",
        "a\n\n",
        "#",
        "# a\n",
        "`",
        "```\n",
        ".",
        ". ",
        "? A",
        "|",
        "- ",
        "漢",
        "-\n",
        "=\n=\n",
    ],
)
def test_the_time_is_linear_in_the_length(part: str) -> None:
    text = part * (60_000 // len(part))
    seen = 0

    def count(piece: str) -> float:
        nonlocal seen
        seen += len(piece)
        return len(piece) * TOKENS_PER_BYTE

    with cpu_time_below(3):
        for _ in divide(text, count, 200, 40):
            pass
    assert seen <= 10 * len(text)


def test_chunks_are_made_as_they_are_asked_for() -> None:
    counted = 0

    def count(piece: str) -> float:
        nonlocal counted
        counted += 1
        return len(piece)

    next(divide("some words. " * 100_000, count, 200, 40))
    assert counted < 200


def test_a_chunk_fits_the_context_of_the_embedding_model_with_a_margin() -> None:
    assert fitting_tokens(200, None) == 200
    assert fitting_tokens(200, 512) == 200
    assert fitting_tokens(500, 512) == math.floor(510 / 1.5)
    assert fitting_tokens(500, 8) == MIN_TOKENS


def test_fewer_tokens_than_a_chunk_needs_are_refused() -> None:
    with pytest.raises(ValueError, match=f"chunk_tokens=15 is less than {MIN_TOKENS}"):
        divide("text", len, 15, 0)
    assert list(divide("", len, 16, 0)) == list(divide(" \r\n\t", len, 16, 0)) == []

"""Tests of the annotations of an answer that cites passages of files."""

import pytest

from web.api.file_search import CitedFile
from web.openai.file_search_answers import MAX_ANNOTATIONS, Annotator, annotations_of

#: The files of passages 1 to 3: the first and the third are of one file.
FILES = [CitedFile("file-a", "a.md"), CitedFile("file-b", "b.md"), CitedFile("file-a", "a.md")]


def cited(text, files=FILES, *, is_last=True, **options):
    annotations = annotations_of(Annotator(files, **options), text, is_last=is_last)
    assert {each["type"] for each in annotations} <= {"file_citation"}
    return [(each["filename"], each["index"]) for each in annotations]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Thirty days [1].", [("a.md", 15)]),
        ("Thirty [1] and noon [2].", [("a.md", 10), ("b.md", 23)]),
        ("Both [1, 2]", [("a.md", 11), ("b.md", 11)]),
        ("Both [1][2]", [("a.md", 8), ("b.md", 11)]),
        ("One file [1;3]", [("a.md", 14)]),
        ("Ünï [2]", [("b.md", 7)]),
    ],
)
def test_each_number_of_a_passage_is_an_annotation_after_it(text, expected):
    assert cited(text) == expected


@pytest.mark.parametrize("text", ["None.", "No passage [4] has [0] this [x] number [2026]", "[ 1 ] [1", "x = {1: 2}"])
def test_an_answer_that_names_no_passage_cites_each_file_once_at_its_end(text):
    assert cited(text) == [("a.md", len(text)), ("b.md", len(text))]
    assert cited(text, is_last=False) == []


def test_an_empty_answer_and_one_without_passages_cite_nothing():
    assert cited("") == []
    assert cited("Yes [1].", []) == []


def test_numbers_in_json_are_no_citations():
    assert cited('{"days": [1]}', reads_marks=False) == [("a.md", 13), ("b.md", 13)]


def test_a_later_message_does_not_repeat_what_an_earlier_one_has_cited():
    annotator = Annotator(FILES)
    assert annotations_of(annotator, "Let me see [2].", is_last=False)
    assert annotations_of(annotator, "So it is.", is_last=True) == []


def test_annotations_and_the_parts_of_a_text_are_bounded():
    assert len(cited("[1][2]" * MAX_ANNOTATIONS)) == MAX_ANNOTATIONS
    text = "[1]" * 10_000
    parts = list(Annotator(FILES).feed(text))
    assert ("".join(part for part, _ in parts), len(parts)) == (text, MAX_ANNOTATIONS + 1)
    assert list(Annotator(FILES).feed("[7]" * 10)) == [("[7]" * 10, [])]

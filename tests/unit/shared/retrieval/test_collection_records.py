"""Tests of collections, documents and queries as values: their bounds, and messages that name field and value."""

import math
from collections.abc import Sequence

import pytest

from shared.retrieval.errors import CollectionMissing, InvalidInput, TooLarge
from shared.retrieval.filters import parse_filter
from shared.retrieval.fusion import fuse_halves, fuse_queries
from shared.retrieval.records import (
    NewChunk,
    NewCollection,
    Passage,
    Query,
    check_chunks,
    check_vector,
    parse_metadata,
    storable,
)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "name='': must be a text of 1 to 128 characters"),
        ({"name": "a\nb"}, "name='a\\nb': must not contain control characters"),
        ({"name": " a"}, "name=' a': must not contain control characters, or spaces at its ends"),
        ({"dimensions": None}, "dimensions=None: a model and its dimensions belong together"),
        ({"model": None}, "dimensions=4: a model and its dimensions belong together"),
        ({"dimensions": 4_001}, "dimensions=4001: must be a whole number from 1 to 4000"),
        ({"language": "klingon"}, "language='klingon': must be one of simple, arabic"),
        ({"chunk_tokens": 8}, "chunk_tokens=8: must be a whole number from 16 to 4096"),
        ({"chunk_tokens": True}, "chunk_tokens=True: must be a whole number"),
        ({"overlap_tokens": 101}, "overlap_tokens=101: must be a whole number from 0 to 100"),
    ],
)
def test_a_collection_with_a_wrong_field_is_refused_by_name(fields, message):
    with pytest.raises(InvalidInput) as refused:
        NewCollection(**({"name": "a", "model": "m", "dimensions": 4} | fields))
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ([], "metadata=[]: must be an object"),
        ({str(key): 1 for key in range(17)}, "metadata='17 keys': may have at most 16 keys"),
        ({"": 1}, "metadata key='': must be a text of 1 to 64 characters"),
        ({"a": None}, "metadata.a=None: must be a text, a number, a boolean or a list of texts"),
        ({"a": math.inf}, "metadata.a=inf: must be a finite number"),
        ({"a": 10**400}, "metadata.a='a large integer': must be a number below 1e308"),
        ({"a": "x" * 513}, "metadata.a='xxx"),
        ({"a": "\0"}, "metadata.a='\\x00': must be a text"),
        ({"a": ["b", 1]}, "metadata.a[1]=1: must be a text"),
        ({"a": ["b"] * 33}, "metadata.a='33 texts': a list may have at most 32 texts"),
        ({"a": ["x" * 512] * 32}, "metadata='16519 bytes': may have at most 16384 bytes as JSON"),
    ],
)
def test_wrong_metadata_is_refused_by_name(metadata, message):
    with pytest.raises(InvalidInput) as refused:
        parse_metadata(metadata)
    assert str(refused.value).startswith(message)


def test_metadata_keeps_its_types():
    given = {"year": 2026, "weight": 0.5, "draft": False, "team": "red", "tags": ["a", "b"]}
    parsed = parse_metadata(given)
    assert parsed == given | {"tags": ("a", "b")}
    assert [type(value) for value in parsed.values()] == [int, float, bool, str, tuple]
    assert parse_metadata(None) == {}
    assert parse_metadata({"n": 2**80}) == {"n": float(2**80)}


@pytest.mark.parametrize("query", [{"k": 0}, {"k": 51}, {"mode": "both"}, {"text": "x" * 8_193}])
def test_a_query_is_bounded(query):
    with pytest.raises(InvalidInput):
        Query(**({"text": "a", "vector": None, "k": 3} | query))


def test_a_query_searches_the_halves_for_which_it_has_something():
    assert Query("a", (1.0,), 3).halves == ("vector", "words")
    assert Query("a", None, 3).halves == ("words",)
    assert Query(" ", (1.0,), 3).halves == ("vector",)
    assert Query("a", (1.0,), 3, mode="words").halves == ("words",)
    assert Query("a", None, 3, mode="vector").halves == ()


def test_chunks_are_bounded_and_their_vectors_have_to_fit():
    check_chunks([NewChunk("a", 1, (1.0, 0.0)), NewChunk("b", 1, None)], 2)
    with pytest.raises(InvalidInput, match=r"chunks\[0\].vector='1 numbers': the collection has vectors of 2"):
        check_chunks([NewChunk("a", 1, (1.0,))], 2)
    with pytest.raises(InvalidInput, match="the collection has no model and so no vectors"):
        check_chunks([NewChunk("a", 1, (1.0,))], None)
    with pytest.raises(InvalidInput, match="must have finite numbers only"):
        check_vector((1.0, math.nan), 2)
    with pytest.raises(InvalidInput, match=r"vector=1e[+]39: must have finite numbers only, of at most 65504"):
        check_vector((1e39, 0.0), 2)
    with pytest.raises(TooLarge, match="chunk 0 has 65537 characters, more than 65536"):
        check_chunks([NewChunk("x" * 65_537, 1, None)], 2)
    with pytest.raises(TooLarge, match="the document has 20001 chunks"):
        check_chunks([NewChunk("x", 1, None)] * 20_001, 2)


def test_characters_that_postgresql_cannot_store_are_replaced():
    assert storable("a\0b\ud800ä") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}ä"


def test_a_name_that_a_client_invents_makes_no_long_message():
    with pytest.raises(InvalidInput) as refused:
        parse_filter({"type": "eq", "key": "a", "value": 1, "x" * 100_000: 1})
    assert len(str(refused.value)) < 500
    assert len(str(CollectionMissing("x" * 100_000))) < 500


def passage(document_id: str, score: float) -> Passage:
    return Passage(document_id, 0, document_id, 1, score, {})


def ids(passages: Sequence[Passage]) -> str:
    return "".join(each.document_id for each in passages)


def test_a_passage_that_is_good_in_both_halves_comes_before_one_that_is_best_in_one():
    vectors = [passage("a", 0.9), passage("b", 0.8), passage("c", 0.5)]
    words = [passage("d", 0.3), passage("b", 0.2)]
    fused = fuse_halves({"vector": vectors, "words": words}, 3)
    assert ids(fused) == "bad"
    assert [each.score for each in fused] == pytest.approx([(0.75 + 3 * 0.2) / 4, 1 / 4, 3 * 0.3 / 4])


def test_passages_that_match_a_query_by_few_of_its_words_do_not_push_out_the_nearest_ones():
    vectors = [passage(name, 0.6 - 0.02 * at) for at, name in enumerate("abcdef")]
    words = [passage(name, 0.1 - 0.001 * at) for at, name in enumerate("uvwxyz")]
    assert ids(fuse_halves({"vector": vectors, "words": words}, 4)) == "abcd"
    # A query whose words a passage has is another matter.
    words[0] = passage("u", 0.5)
    assert ids(fuse_halves({"vector": vectors, "words": words}, 4)) == "uabc"


@pytest.mark.parametrize(("first", "step"), [(0.9, 0.002), (0.6, 0.05)])
def test_how_far_apart_the_similarities_of_a_model_are_does_not_matter(first, step):
    vectors = [passage(name, first - step * at) for at, name in enumerate("abcdefghij" * 5)]
    fused = fuse_halves({"vector": vectors[:10], "words": [passage("j", 0.4), passage("x", 0.1)]}, 3)
    assert ids(fused) == "jab"


def test_vectors_that_are_about_equally_near_count_about_as_much():
    vectors = [passage("a", 0.801), passage("b", 0.8)]
    fused = fuse_halves({"vector": vectors, "words": [passage("c", 0.2)]}, 3)
    assert ids(fused) == "abc"
    assert fuse_halves({"vector": vectors[:1], "words": []}, 3)[0].score == 0.25


def test_one_half_alone_keeps_its_order_and_scores():
    words = [passage("d", 0.5), passage("b", 0.4)]
    assert fuse_halves({"words": words}, 1) == (words[0],)
    assert fuse_halves({"vector": [], "words": words}, 5)[0].document_id == "d"
    assert fuse_halves({"vector": [], "words": []}, 5) == ()


def test_passages_of_several_queries_are_joined_by_their_places_in_each_list():
    first = [passage("a", 0.9), passage("b", 0.8), passage("c", 0.7)]
    second = [passage("d", 0.05), passage("b", 0.04)]
    fused = fuse_queries([first, second], 3)
    assert ids(fused) == "bad"
    assert all(0 < each.score < 1 for each in fused)
    assert fuse_queries([first, first], 1)[0].score == pytest.approx(1)
    assert fuse_queries([first], 1) == (first[0],)
    assert fuse_queries([], 5) == ()

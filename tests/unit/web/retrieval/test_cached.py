"""Tests of the digests and the form of cached passages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.retrieval.filters import parse_filter
from shared.retrieval.records import Passage
from web.retrieval.cached import CachedPassages, load, normalized, query_digest

TEXTS = st.text(st.characters(exclude_categories=("Cs",)))


@given(TEXTS, TEXTS, st.integers(0, 10**6), st.floats(0, 1), st.integers(0, 2**40))
def test_what_is_stored_is_read_back(document, text, ordinal, score, version):
    stored = CachedPassages("id", version, (Passage(document, ordinal, text, 3, score, {}),))
    assert load(stored.dump()) == stored


@pytest.mark.parametrize("text", ["", "null", "[]", '["i", 1]', '["i", "x", []]', '["i", 1, [[1]]]', "{}", "NaN"])
def test_what_another_program_has_spoiled_counts_as_missing(text):
    assert load(text) is None


def test_each_part_of_a_query_changes_its_digest():
    team = parse_filter({"type": "eq", "key": "team", "value": "blue"})
    digests = {
        query_digest("handbook", "leave", None, 6),
        query_digest("handbook2", "leave", None, 6),
        query_digest("handbook", "leave2", None, 6),
        query_digest("handbook", "leave", team, 6),
        query_digest("handbook", "leave", None, 7),
        query_digest("handbook", "leave", None, 6, ("words",)),
        query_digest("handbookleave", "", None, 6),
    }
    assert len(digests) == 7


def test_queries_that_differ_in_white_space_or_in_forms_of_characters_are_equal():
    assert normalized(" how\tmany \n days ") == "how many days"
    assert normalized("e\u0301t\u00e9") == normalized("\u00e9te\u0301")
    assert normalized("Leave") != normalized("leave")
    assert normalized("\u2003 \n") == ""

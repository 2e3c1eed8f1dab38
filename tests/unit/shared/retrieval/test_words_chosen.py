"""Tests of searches by words in large collections: only chunks that can be among the best are ranked."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.retrieval import words
from shared.retrieval.database import Database
from shared.retrieval.words import Choice, Sample, Word, choose
from tests.support.collected import a_database, find, make, put, texts
from tests.support.postgres import execute, rows

MILLION = 1_000_000


def sample(*found: int, chunks: int = MILLION, counted: int = 0, passing: int = 256) -> Sample:
    """Return a sample with a word, called a, b, c …, in each number of its chunks."""
    there = tuple(
        Word(f"'{chr(97 + n)}'", count, count * passing // 256, 0 if count else counted)
        for n, count in enumerate(found)
    )
    return Sample(chunks, 256, passing, there)


def test_all_matching_chunks_are_ranked_if_they_are_few():
    every = Choice("'a' | 'b'", 2_000, (0, 0))
    assert choose(sample(0, 0, counted=20), is_filtered=False) == every
    assert choose(sample(50, 30, chunks=2_001), is_filtered=False) == every
    # Of a collection that needs no sample, all are.
    small = Sample(2_000, 0, 0, (Word("'a'"), Word("'b'")))
    assert choose(small, is_filtered=False).condition == "'a' | 'b'"
    assert choose(small, is_filtered=False).most >= 2_000


def test_a_rare_word_is_enough_and_frequent_ones_only_together():
    chosen = choose(sample(0, 100, 110, 120, chunks=10_000, counted=30), is_filtered=False)
    assert chosen.condition == "'a' | 'b' & 'c' & 'd'"
    # The chunks of the rare word are all ranked and counted; the others are estimated.
    assert chosen.counts == (0, 10_000 * 100 / 256, 10_000 * 110 / 256, 10_000 * 120 / 256)


def test_frequent_words_are_looked_up_only_among_the_chunks_of_rare_ones():
    chosen = choose(sample(1, 100, 120), is_filtered=False)
    assert chosen.condition == "'a' & 'b' & 'c'"


def test_a_sample_is_smaller_for_long_queries_and_in_small_collections():
    assert [words.sample_size(MILLION, count) for count in (0, 12, 24, 1_000)] == [1_024, 1_000, 500, 256]
    assert [words.sample_size(chunks, 6) for chunks in (0, 2_000, 2_400, 10_000)] == [0, 0, 300, 1_024]


def test_words_that_no_chunk_has_do_not_decide():
    frequent = 30, 40, 50
    with_missing = choose(sample(0, 0, 0, 0, 0, 0, 0, *frequent, chunks=10_000), is_filtered=False)
    assert with_missing.condition == "'h' & ('i' | 'j') | 'i' & 'j'"


def test_a_query_of_frequent_words_ranks_a_larger_sample():
    chosen = choose(sample(100, 120, 256), is_filtered=False)
    assert chosen.condition is None
    assert chosen.most == 2_000


def test_a_filter_that_few_chunks_pass_lets_more_chunks_be_compared():
    rare = sample(0, 20, chunks=100_000, counted=90, passing=25)
    assert choose(rare, is_filtered=False).most == 2_000
    assert choose(rare, is_filtered=True).most == 20_000
    assert choose(rare, is_filtered=True).condition == "'a' | 'b'"


@given(
    st.lists(st.integers(0, 256), min_size=1, max_size=48),
    st.integers(2_001, 10**8),
    st.integers(0, 100),
    st.integers(0, 256),
    st.booleans(),
)
def test_what_a_search_by_words_costs_is_bounded(found, chunks, counted, passing, is_filtered):
    given_ = sample(*found, chunks=chunks, counted=counted, passing=passing)
    chosen = choose(given_, is_filtered=is_filtered)
    assert 0 < chosen.most <= 20_000
    assert len(chosen.counts) == len(found)
    mentioned = (chosen.condition or "").count("'") // 2
    assert mentioned <= max(64, len(found))
    if mentioned > 64:
        assert sum(given_.share(word) for word in given_.words) * chunks <= 20_000


def test_a_condition_is_true_for_the_chosen_sets_and_those_that_contain_one():
    taken = words._weighing_most([0.002, 0.02, 0.03, 0.04, 0.1, 0.3], MILLION, 1_000)
    assert 0b1 not in taken
    assert 0b111 in taken
    condition = words._condition([f"has[{bit}]" for bit in range(6)], taken)
    for there in range(1 << 6):
        has = [bool(there >> bit & 1) for bit in range(6)]
        assert eval(condition.replace("&", "and").replace("|", "or"), {"has": has}) == (there in taken)


# --- in a database ----------------------------------------------------------------------------------

CHUNKS = 120


@pytest.fixture(scope="module")
def database(database_url: str) -> Iterator[Database]:
    execute(database_url, f"ALTER DATABASE {urlsplit(database_url).path[1:]} SET enable_sort = off")
    with a_database(database_url, max_indexes=0) as database:
        for tenant in ("red", "blue"):
            make(database, tenant)
            for first in range(0, CHUNKS, 20):
                each = [
                    f"{tenant} all third{n % 3} tenth{n % 10} number{n} {'rare' * (n == 77)}"
                    for n in range(first, first + 20)
                ]
                put(database, tenant, f"d{first}", *each, metadata={"first": first})
        yield database


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a collection of some chunks be a large one."""
    for name, bound in {"_SMALL": 50, "_PART": 3, "_RANKED": 20, "_MOST_RANKED": 40, "_VISITED": 60}.items():
        monkeypatch.setattr(words, name, bound)


def found_numbers(database: Database, query: str, **fields: object) -> list[str]:
    found = texts(find(database, "red", query, mode="words", **fields))  # type: ignore[arg-type]
    assert all(text.startswith("red ") for text in found)
    return [text.split()[4] for text in found]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("number17 tenth7 third2 all", ["number17"]),
        # Words that no chunk has, and one that all have, are of no use.
        ("all missing1 missing2 missing3 missing4 missing5 missing6 missing7 rare", ["number77"]),
        ("rare third2 number5", ["number5", "number77"]),
        ("unknown words", []),
    ],
)
def test_the_best_of_a_large_collection_are_those_of_a_search_of_all_its_chunks(
    database, query, first, request, monkeypatch
):
    every = found_numbers(database, query)
    request.getfixturevalue("small_bounds")
    assert sorted(found_numbers(database, query)[: len(first)]) == first
    assert found_numbers(database, query)[: len(first)] == every[: len(first)]


@pytest.mark.usefixtures("small_bounds")
def test_chunks_with_the_rarest_of_frequent_words_together_are_found(database):
    # Four chunks have both.
    assert set(found_numbers(database, "all third1 tenth4", k=4)) == {"number4", "number34", "number64", "number94"}


@pytest.mark.usefixtures("small_bounds")
def test_words_that_all_chunks_have_find_some(database):
    assert len(found_numbers(database, "all red")) == 5
    assert found_numbers(database, "all blue") == found_numbers(database, "all")


@pytest.mark.usefixtures("small_bounds")
def test_a_filter_holds_for_chunks_that_are_chosen_by_words(database):
    filter_ = {"type": "eq", "key": "first", "value": 60}
    assert set(found_numbers(database, "tenth4", filter_=filter_)) == {"number64", "number74"}
    assert found_numbers(database, "tenth4 rare number5", filter_=filter_)[0] == "number77"


def test_a_sample_is_read_in_the_order_of_its_index(database, database_url):
    number = rows(database_url, "SELECT number FROM penstock.collections WHERE tenant = 'red'")[0][0]
    sql = words._LARGER_SAMPLE.format(number=number, most=40)
    with psycopg.connect(database_url) as connection:
        connection.execute("SET LOCAL ROLE penstock_tenant")
        plan = str(connection.execute(f"EXPLAIN SELECT * FROM {sql} AS sample").fetchall())
    assert "Index Scan using chunks_sample" in plan

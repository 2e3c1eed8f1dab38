"""Tests of searches in a real database: by vectors, by words and by both, with filters, with and without an index."""

import math
import random
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest

from shared.retrieval import indexes
from shared.retrieval.connecting import open_connection
from shared.retrieval.database import Database
from shared.retrieval.errors import CollectionMissing, InvalidInput
from tests.support.collected import DIMENSIONS, a_database, find, make, put, texts, vector
from tests.support.postgres import execute, rows
from tests.support.processes import wait_for

#: From this number of chunks on, collections of these tests get an index.
FROM_CHUNKS = 300


@pytest.fixture(scope="module")
def database(database_url: str) -> Iterator[Database]:
    # Collections of tests are so small that sorting all of their vectors would be cheaper than their index.
    execute(database_url, f"ALTER DATABASE {urlsplit(database_url).path[1:]} SET enable_sort = off")
    with a_database(database_url, index_from_chunks=FROM_CHUNKS, max_indexes=2) as database:
        make(database, "red")
        put(
            *(
                database,
                "red",
                "animals",
                "The cat sleeps on the mat.",
                "Dogs were barking all night.",
                "A cat and a dog.",
            ),
            vectors=[vector(1), vector(0, 1), vector(1, 1)],
            metadata={"year": 2025, "team": "zoo", "tags": ["pet", "fur"]},
        )
        put(
            *(database, "red", "plants", "Oaks grow slowly.", "The mat is made of grass."),
            vectors=[vector(0, 0, 1), None],
            metadata={"year": 2026, "team": "garden"},
        )
        yield database


def test_a_search_by_vector_finds_the_nearest_first(database):
    found = find(database, "red", at=vector(1, 0.1), mode="vector")
    assert texts(found) == [
        *("The cat sleeps on the mat.", "A cat and a dog.", "Dogs were barking all night.", "Oaks grow slowly.")
    ]
    assert found.passages[0].score == pytest.approx(1 / math.hypot(1, 0.1), rel=1e-5)
    assert found.passages[-1].score == 0
    assert [passage.score for passage in found.passages] == sorted((p.score for p in found.passages), reverse=True)
    assert (found.version, found.omitted) == (3, frozenset())
    assert found.passages[0].document_id == "animals"


def test_a_search_by_words_finds_other_forms_of_a_word_and_ranks_rare_words_higher(database):
    assert texts(find(database, "red", "dog", mode="words")) == ["A cat and a dog.", "Dogs were barking all night."]
    # Two chunks have `mat`, and one has `barked`.
    assert texts(find(database, "red", "mat barked", mode="words"))[0] == "Dogs were barking all night."
    assert texts(find(database, "red", "the of and", mode="words")) == []


def test_the_score_of_words_says_how_much_of_the_query_a_passage_matches(database):
    whole, half, little = (
        find(database, "red", query, mode="words").passages[0].score
        for query in ("dogs barking", "dogs barking at unknown visitors", "dogs " + " ".join(map(chr, range(97, 123))))
    )
    assert 0.4 < half < whole < 1
    assert little < half / 2


def test_the_language_of_a_collection_decides_which_words_are_the_same(database):
    make(database, "german", language="german")
    put(database, "german", "1", "Die Häuser der Stadt", "ein ÄRGERLICHES Haus")
    assert len(texts(find(database, "german", "haus"))) == 2
    assert texts(find(database, "german", "ärgerlich")) == ["ein ÄRGERLICHES Haus"]


def test_a_hybrid_search_finds_what_either_half_finds(database):
    found = find(database, "red", "grass", vector(0, 0, 1))
    assert set(texts(found)[:2]) == {"Oaks grow slowly.", "The mat is made of grass."}
    assert all(0 <= passage.score <= 1 for passage in found.passages)
    assert found.omitted == frozenset()
    assert len(find(database, "red", "grass", vector(0, 0, 1), k=1).passages) == 1


@pytest.mark.parametrize(
    ("filter_", "documents"),
    [
        ({"type": "eq", "key": "team", "value": "zoo"}, {"animals"}),
        ({"type": "gte", "key": "year", "value": 2026}, {"plants"}),
        ({"type": "eq", "key": "tags", "value": "fur"}, {"animals"}),
        ({"type": "nin", "key": "tags", "value": ["fur"]}, {"plants"}),
        ({"type": "eq", "key": "team", "value": "zoo' OR true --"}, set()),
    ],
)
@pytest.mark.parametrize("mode", ["hybrid", "vector", "words"])
def test_a_filter_holds_in_every_way_to_search(database, filter_, documents, mode):
    found = find(database, "red", "mat", vector(1, 1, 1), filter_=filter_, mode=mode)
    assert {passage.document_id for passage in found.passages} == documents


@pytest.mark.parametrize(
    "text",
    [
        "'",
        "\\",
        "'; DROP TABLE penstock.chunks; --",
        "cat & | ! ( ) :* <->",
        "\0\ud800",
        "%s %(a)s {0}",
        "\x0117",
        "<b>&amp;",
        "x" * 5_000,
    ],
)
def test_a_hostile_query_is_only_text(database, text):
    find(database, "red", text, mode="words")
    assert "Dogs were barking all night." in texts(find(database, "red", f"{text} barking", mode="words"))


def test_the_mark_of_a_collection_is_no_word_that_a_client_can_search_or_write(database):
    make(database, "marked")
    put(database, "marked", "1", "\x011 \x012 \x013 apple", "plain")
    for number in range(1, 20):
        assert texts(find(database, "marked", f"\x01{number} \x01", mode="words")) in ([], ["\x011 \x012 \x013 apple"])
    assert texts(find(database, "red", "apple", mode="words")) == []


def test_a_query_that_does_not_fit_is_refused_by_name(database):
    with pytest.raises(InvalidInput, match="vector='2 numbers': the collection has vectors of 4"):
        find(database, "red", at=(1.0, 2.0))
    with pytest.raises(InvalidInput, match="a search by vector needs a text or a vector"):
        find(database, "red", "cat", mode="vector")
    make(database, "red", "wordy", model=None, dimensions=None)
    with pytest.raises(InvalidInput, match="has no model and so no vectors"):
        find(database, "red", at=vector(1), name="wordy")
    with pytest.raises(CollectionMissing):
        find(database, "blue", "cat")


def test_a_vector_without_direction_is_found_by_its_words_only(database):
    make(database, "zero")
    put(database, "zero", "1", "nothing", vectors=[vector(0)])
    assert texts(find(database, "zero", at=vector(1))) == []
    assert texts(find(database, "zero", "nothing", vector(0))) == ["nothing"]


# --- indexes ----------------------------------------------------------------------------------------


def fill(database: Database, tenant: str, count: int, seed: int) -> list[tuple[float, ...]]:
    """Load random vectors, a hundred a document, every tenth with the metadata `rare`."""
    random_ = random.Random(seed)
    vectors = [tuple(random_.gauss(0, 1) for _ in range(DIMENSIONS)) for _ in range(count)]
    make(database, tenant)
    for first in range(0, count, 100):
        put(
            *(database, tenant, f"d{first}", *[f"{tenant} number{first + n}" for n in range(100)]),
            vectors=vectors[first : first + 100],
            metadata={"rare": first == 0},
        )
    return vectors


def index_names(url: str) -> set[object]:
    return {
        name
        for (name,) in rows(
            url, "SELECT relname FROM pg_class WHERE relkind = 'i' AND relname LIKE 'chunks_vectors%%' ORDER BY relname"
        )
    }


def number_of(url: str, tenant: str) -> object:
    return rows(url, "SELECT number FROM penstock.collections WHERE tenant = %s AND NOT gone", tenant)[0][0]


def test_a_large_collection_gets_an_index_that_finds_what_an_exact_search_finds(database, database_url):
    vectors = fill(database, "large", FROM_CHUNKS, seed=1)
    name = f"chunks_vectors_{number_of(database_url, 'large')}"
    wait_for(lambda: name in index_names(database_url) and database.notes() == [], "the index to be made")
    assert next(size for size in database.sizes().collections if size.tenant == "large").indexed
    used = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = %s"
    query = (0.3, -0.2, 0.9, 0.1)

    def similarity(number: int) -> float:
        one = vectors[number]
        return sum(a * b for a, b in zip(one, query, strict=True)) / math.hypot(*one) / math.hypot(*query)

    best = sorted(range(FROM_CHUNKS), key=similarity, reverse=True)
    assert texts(find(database, "large", at=query, k=10)) == [f"large number{number}" for number in best[:10]]
    rare = [number for number in best if number < 100]
    filter_ = {"type": "eq", "key": "rare", "value": True}
    found = find(database, "large", at=query, k=10, filter_=filter_)
    assert texts(found) == [f"large number{number}" for number in rare[:10]]
    # More than are among the vectors that the index visits at first.
    found = find(database, "large", at=query, k=50, filter_=filter_)
    assert texts(found) == [f"large number{number}" for number in rare[:50]]

    def was_used() -> bool:
        find(database, "large", at=query)
        return bool(rows(database_url, used, name)[0][0])

    wait_for(was_used, "the statistics to say that searches use the index")


def large(*tenants: str) -> list[indexes.LargeCollection]:
    return [indexes.LargeCollection(number, tenant, 4) for number, tenant in enumerate(tenants)]


@pytest.mark.parametrize(
    ("tenants", "indexed", "order"),
    [
        ("aaabc", (), [0, 3, 4, 1, 2]),
        ("aaab", (0, 1, 2), [0, 3, 1, 2]),
        # An index moves neither within its tenant nor to one that has as many.
        ("aab", (1,), [1, 2, 0]),
        ("ab", (1,), [1, 0]),
        ("aabb", (1, 3), [1, 3, 0, 2]),
    ],
)
def test_tenants_take_turns_for_the_indexes(tenants, indexed, order):
    assert [each.number for each in indexes.by_turns(large(*tenants), indexed)] == order


def test_the_number_of_indexes_is_bounded_and_notes_say_so(database, database_url):
    for number in range(3):
        fill(database, f"many{number}", FROM_CHUNKS, seed=number)
    wait_for(lambda: len(index_names(database_url)) == 2, "the indexes to be made")
    wait_for(lambda: database.tidy() is not None, "the indexes to be complete")
    assert len(index_names(database_url)) == 2
    (note,) = database.notes()
    assert "searched exactly, because the database has 2 indexes of vectors and may have 2" in note
    for number in range(3):
        assert len(find(database, f"many{number}", at=vector(1), k=7).passages) == 7
    # The end of a large collection makes room for the index of another one.
    indexed = [size.tenant for size in database.sizes().collections if size.indexed]
    before = index_names(database_url)
    database.delete_collection(indexed[0], "handbook")
    wait_for(lambda: len(before - index_names(database_url)) == 1, "the useless index to be dropped")
    wait_for(lambda: len(index_names(database_url)) == 2, "the next index to be made")
    for tenant in {f"many{number}" for number in range(3)} - set(indexed[:1]):
        database.erase_tenant(tenant)
    wait_for(lambda: len(index_names(database_url)) <= 1, "the indexes of the erased tenants to be dropped")


def test_an_index_whose_making_was_interrupted_is_made_again(database, database_url):
    fill(database, "broken", FROM_CHUNKS, seed=7)
    name = f"chunks_vectors_{number_of(database_url, 'broken')}"
    wait_for(lambda: name in index_names(database_url), "the index to be made")
    wait_for(lambda: database.tidy() is not None, "the index to be complete")
    execute(database_url, f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'penstock.{name}'::regclass")
    assert texts(find(database, "broken", at=vector(1)))
    assert database.tidy() is not None
    valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = %s::regclass"
    assert rows(database_url, valid, f"penstock.{name}") == [(True,)]
    database.erase_tenant("broken")


def test_an_index_that_cannot_be_made_keeps_no_other_from_being_made(database, database_url):
    with a_database(database_url, max_indexes=0) as without:
        fill(without, "spoiled", FROM_CHUNKS + 100, seed=8)
        fill(without, "later", FROM_CHUNKS, seed=9)
    execute(database_url, "UPDATE penstock.collections SET dimensions = 3 WHERE tenant = 'spoiled'")
    with open_connection(database_url) as connection:
        with pytest.raises(psycopg.Error):
            indexes.tidy(connection, FROM_CHUNKS, 2, 2**26)
        assert connection.execute("SHOW maintenance_work_mem").fetchone() == ("64MB",)
    names = {f"chunks_vectors_{number_of(database_url, tenant)}" for tenant in ("spoiled", "later")}
    assert names & index_names(database_url) == {f"chunks_vectors_{number_of(database_url, 'later')}"}
    execute(database_url, f"UPDATE penstock.collections SET dimensions = {DIMENSIONS} WHERE tenant = 'spoiled'")
    for tenant in ("spoiled", "later"):
        database.erase_tenant(tenant)


def test_one_process_at_a_time_changes_indexes(database, database_url):
    with open_connection(database_url) as mine, open_connection(database_url) as other, indexes._lock(mine) as is_mine:
        assert is_mine
        assert indexes.tidy(other, FROM_CHUNKS, 2, 2**26) is None
        assert not indexes.drop_of(other, [1])


def test_words_are_found_by_an_index_although_rows_are_secured(database, database_url):
    """The operator of words is not leakproof, so that a tenant's own query could not use an index."""
    with psycopg.connect(database_url) as connection:
        connection.execute("SET LOCAL enable_seqscan = off")
        condition = "words @@ (quote_literal(penstock.mark(1))::tsquery && 'cat'::tsquery)"
        query = f"EXPLAIN SELECT document FROM penstock.chunks WHERE {condition}"
        plans = {}
        for role in ("penstock_tenant", "penstock_keeper"):
            connection.execute(f"SET LOCAL ROLE {role}")
            plans[role] = str(connection.execute(query).fetchall())
    assert "chunks_words" in plans["penstock_keeper"]
    assert "chunks_words" not in plans["penstock_tenant"]

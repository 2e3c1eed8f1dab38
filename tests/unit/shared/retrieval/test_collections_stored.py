"""Tests of collections and documents in a real database: what is kept, what is replaced, what is bounded."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest

from shared.retrieval import schema
from shared.retrieval.connecting import open_connection
from shared.retrieval.database import Database
from shared.retrieval.errors import CollectionExists, CollectionMissing, DatabaseAway, InvalidInput, TooLarge
from shared.retrieval.records import NewChunk, NewCollection
from shared.retrieval.schema import FORMAT, LOCK_CLASS
from shared.retrieval.tenant_documents import seconds_for
from tests.support.collected import a_database, find, make, put, texts, vector
from tests.support.postgres import execute, rows
from tests.support.processes import wait_for


@pytest.fixture(scope="module")
def database(database_url: str) -> Iterator[Database]:
    with a_database(database_url, max_collections=3, max_tenant_chunks=20, max_indexes=0) as database:
        yield database


def test_a_collection_is_created_listed_found_and_deleted(database):
    new = NewCollection("guide", "small", 4, "german", 100, 20)
    created = database.create_collection("listed", new)
    assert (created.tenant, created.name, created.model, created.dimensions) == ("listed", "guide", "small", 4)
    assert (created.language, created.chunk_tokens, created.overlap_tokens) == ("german", 100, 20)
    assert (created.version, created.documents, created.chunks, created.text_bytes) == (1, 0, 0, 0)
    assert created.loaded_ms is None
    assert len(created.id) == 24
    make(database, "listed", "another")
    assert [each.name for each in database.collections("listed")] == ["another", "guide"]
    assert database.collection("listed", "guide") == created
    database.delete_collection("listed", "guide")
    assert [each.name for each in database.collections("listed")] == ["another"]
    for call in (database.collection, database.delete_collection, database.documents):
        with pytest.raises(CollectionMissing, match="no collection 'guide'"):
            call("listed", "guide")


def test_a_name_is_taken_once_by_each_tenant_and_is_free_after_a_deletion(database):
    make(database, "red", "same")
    make(database, "blue", "same")
    with pytest.raises(CollectionExists, match="'same' exists"):
        make(database, "red", "same")
    old = database.collection("red", "same").id
    put(database, "red", "1", "old text", name="same")
    database.delete_collection("red", "same")
    make(database, "red", "same")
    assert database.collection("red", "same").id != old
    assert texts(find(database, "red", "text", name="same")) == []
    assert database.collection("blue", "same").name == "same"


def test_a_tenant_has_a_bounded_number_of_collections_and_chunks(database):
    for number in range(3):
        make(database, "bounded", f"c{number}")
    with pytest.raises(TooLarge, match="has 3 collections, and may have 3"):
        make(database, "bounded", "c3")
    put(database, "bounded", "1", *["word"] * 12, name="c0")
    with pytest.raises(TooLarge, match="would have 22 chunks, and may have 20"):
        put(database, "bounded", "2", *["word"] * 10, name="c1")
    # A document that gets smaller or stays as it is can always be replaced.
    put(database, "bounded", "1", *["word"] * 12, name="c0")
    put(database, "bounded", "2", *["word"] * 8, name="c1")


def test_each_change_of_a_document_raises_the_version_by_one_and_the_sums_are_true(database):
    make(database, "described")
    put(database, "described", "a", "one", "two", metadata={"year": 2026})
    put(database, "described", "b", "drei ä")
    put(database, "described", "a", "three")
    counted = database.collection("described", "handbook")
    assert (counted.version, counted.documents, counted.chunks, counted.text_bytes) == (4, 2, 2, 5 + 7)
    assert counted.loaded_ms >= counted.created_ms
    assert database.delete_document("described", "handbook", "a")
    assert not database.delete_document("described", "handbook", "a")
    counted = database.collection("described", "handbook")
    assert (counted.version, counted.documents, counted.chunks, counted.text_bytes) == (5, 1, 1, 7)


def test_a_document_is_replaced_whole(database, database_url):
    make(database, "replaced")
    put(database, "replaced", "a", "apple", "pear", vectors=[vector(1), vector(0, 1)], metadata={"kind": "fruit"})
    put(database, "replaced", "a", "carrot", metadata={"kind": "root", "tags": ["x", "y"]})
    document = database.document("replaced", "handbook", "a")
    assert document is not None
    assert (document.metadata, document.chunks, document.digest) == ({"kind": "root", "tags": ("x", "y")}, 1, "digest")
    assert texts(find(database, "replaced", "apple")) == []
    found = find(database, "replaced", "carrots").passages[0]
    assert (found.text, found.ordinal, found.tokens, found.metadata) == ("carrot", 0, 1, document.metadata)
    assert rows(database_url, "SELECT count(*) FROM penstock.chunks WHERE tenant = 'replaced'") == [(1,)]


def test_documents_are_listed_in_pages_in_the_order_of_their_bytes(database):
    make(database, "paged")
    ids = ["B", "a", "b", "ä", "10", "9"]
    for id_ in ids:
        put(database, "paged", id_, "word")
    ordered = sorted(ids, key=str.encode)
    first = database.documents("paged", "handbook", limit=4)
    assert [each.id for each in first] == ordered[:4]
    assert [each.id for each in database.documents("paged", "handbook", after=first[-1].id)] == ordered[4:]
    assert database.document("paged", "handbook", "c") is None


def test_chunks_are_read_back_as_they_were_written(database):
    make(database, "read")
    put(database, "read", "a", "one\0two", "three", vectors=[vector(0.5, -1), None])
    assert database.chunks("read", "handbook", "a") == [
        NewChunk("one\N{REPLACEMENT CHARACTER}two", 1, [0.5, -1.0, 0.0, 0.0]),
        NewChunk("three", 1, None),
    ]
    assert [chunk.text for chunk in database.chunks("read", "handbook", "a", first=1)] == ["three"]


def test_a_refused_document_leaves_the_one_before(database):
    make(database, "kept")
    put(database, "kept", "a", "apple")
    with pytest.raises(InvalidInput, match="the collection has vectors of 4"):
        put(database, "kept", "a", "pear", vectors=[(1.0, 2.0)])
    with pytest.raises(InvalidInput, match="id=''"):
        put(database, "kept", "", "pear")
    with pytest.raises(InvalidInput, match=r"metadata\.a=None"):
        put(database, "kept", "a", "pear", metadata={"a": None})
    assert texts(find(database, "kept", "apple pear")) == ["apple"]
    assert database.collection("kept", "handbook").version == 2


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "", "x" * 100_000, "%s", "'"])
def test_a_name_or_id_that_nothing_can_have_is_missing_like_any_other(database, name):
    if not database.collections("odd"):
        make(database, "odd")
    for call in (database.collection, database.delete_collection, database.documents):
        with pytest.raises(CollectionMissing):
            call("odd", name)
    with pytest.raises(CollectionMissing):
        find(database, "odd", "text", name=name)
    assert database.document("odd", "handbook", name) is None
    assert not database.delete_document("odd", "handbook", name)
    assert database.chunks("odd", "handbook", name) == []
    assert database.documents("odd", "handbook", after=name) == []


def test_a_load_may_take_longer_the_more_chunks_a_document_has():
    assert seconds_for(20_000) - seconds_for(0) >= 20_000 * 0.02


def test_an_interrupted_deletion_is_continued(database, database_url):
    make(database, "interrupted")
    put(database, "interrupted", "a", "apple")
    execute(database_url, "UPDATE penstock.collections SET gone = true WHERE tenant = 'interrupted'")
    with pytest.raises(CollectionMissing):
        find(database, "interrupted", "apple")
    database.tidy()
    for table in ("collections", "documents", "chunks"):
        assert rows(database_url, f"SELECT * FROM penstock.{table} WHERE tenant = 'interrupted'") == []


def test_the_erasure_of_a_tenant_leaves_none_of_its_rows_and_all_of_the_others(database, database_url):
    for tenant in ("erased", "stays"):
        make(database, tenant)
        make(database, tenant, "second")
        put(database, tenant, "a", f"text of {tenant}")
    execute(database_url, "UPDATE penstock.collections SET gone = true WHERE tenant = 'erased' AND name = 'second'")
    assert database.erase_tenant("erased") == 2
    assert database.erase_tenant("erased") == 0
    for table in ("collections", "documents", "chunks"):
        assert rows(database_url, f"SELECT * FROM penstock.{table} WHERE tenant = 'erased'") == []
    assert texts(find(database, "stays", "text")) == ["text of stays"]
    vacuumed = "SELECT 1 FROM pg_stat_user_tables WHERE schemaname = 'penstock' AND vacuum_count > 0 AND relname = %s"
    for table in ("collections", "documents", "chunks"):
        wait_for(lambda table=table: rows(database_url, vacuumed, table), "the table to be vacuumed")


def test_the_statistics_of_the_database_repeat_nothing_of_an_erased_tenant(database, database_url):
    """They stay as they are when the last rows of a table are gone."""
    make(database, "analyzed")
    for number in range(8):
        put(
            database,
            "analyzed",
            f"secret {number}",
            "secret",
            "a secret",
            metadata={"owner": "secret"},
            vectors=[vector(1)],
        )
    execute(database_url, "ANALYZE")
    database.erase_tenant("analyzed")
    kept = "SELECT tablename, attname FROM pg_stats s WHERE schemaname = 'penstock' AND s::text LIKE %s"
    assert rows(database_url, kept, "%secret%") == []
    found = "SELECT attname FROM pg_stats WHERE schemaname = 'penstock' AND tablename = 'chunks' ORDER BY 1"
    assert rows(database_url, found) == [("collection",), ("document",), ("ordinal",), ("tenant",), ("tokens",)]


def test_a_text_in_which_words_are_hard_to_find_is_loaded_in_linear_time(database):
    """The server's parser of words looks ahead to the next space; it took 100 s for such a text."""
    make(database, "runs")
    put(database, "runs", "1", "a_" * 32_768, "@a1" * 20_000 + " zebra")
    assert len(texts(find(database, "runs", "zebra", mode="words"))) == 1
    assert texts(find(database, "runs", "a_" * 4_000 + " zebra", mode="words"))[0].endswith(" zebra")


def test_sizes_are_those_of_all_tenants_the_largest_collection_first(database):
    make(database, "sized")
    put(database, "sized", "a", *["word"] * 19)
    sizes = database.sizes()
    assert sizes.collections[0].tenant == "sized"
    assert (sizes.collections[0].chunks, sizes.collections[0].documents, sizes.collections[0].indexed) == (19, 1, False)
    assert sizes.chunks == sum(each.chunks for each in sizes.collections)
    assert sizes.count == len(sizes.collections)
    assert sizes.tenants == len({each.tenant for each in sizes.collections})
    assert sizes.disk_bytes > 8_192
    assert database.ready() is None
    assert database.notes() == []


def test_when_a_newer_version_has_changed_the_tables_this_one_neither_writes_nor_searches(database, database_url):
    make(database, "newer")
    put(database, "newer", "a", "apple")
    execute(database_url, f"UPDATE penstock.format SET number = {FORMAT + 1}")
    try:
        for call in (
            lambda: put(database, "newer", "b", "pear"),
            lambda: make(database, "newer", "other"),
            lambda: find(database, "newer", "apple"),
            lambda: database.delete_collection("newer", "handbook"),
            lambda: database.erase_tenant("newer"),
        ):
            with pytest.raises(DatabaseAway, match=f"have format {FORMAT + 1}, and .* has format {FORMAT}"):
                call()
        assert f"format {FORMAT + 1}" in (database.ready() or "")
        with a_database(database_url) as another:
            assert f"format {FORMAT + 1}" in (another.ready() or "")
    finally:
        execute(database_url, f"UPDATE penstock.format SET number = {FORMAT}")
    assert texts(find(database, "newer", "apple")) == ["apple"]


def test_a_change_of_the_tables_waits_for_a_load_that_has_begun(database_url):
    """The loads of an older version end before the format changes, and none begins in between."""
    with psycopg.connect(database_url) as load, psycopg.connect(database_url) as change:
        load.execute("SELECT number FROM penstock.format")
        change.execute("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            change.execute("LOCK TABLE penstock.format IN ACCESS EXCLUSIVE MODE")


# --- rows of other tenants --------------------------------------------------------------------------


def test_a_change_of_the_tables_may_take_longer_than_a_connection(database_url, monkeypatch):
    monkeypatch.setattr(schema, "FORMAT", FORMAT + 1)
    monkeypatch.setitem(schema.STEPS, FORMAT + 1, "SELECT pg_sleep(3.5)")
    try:
        open_connection(database_url, connect_s=1).close()
        assert rows(database_url, "SELECT number FROM penstock.format") == [(FORMAT + 1,)]
    finally:
        execute(database_url, f"UPDATE penstock.format SET number = {FORMAT}")


@pytest.mark.parametrize("table", ["collections", "documents", "chunks"])
def test_a_transaction_sees_the_rows_of_the_tenant_that_it_has_set_and_no_others(database, database_url, table):
    for tenant in ("secured", "x' OR 'a'='a", "penstock_keeper", "%"):
        if not database.collections(tenant):
            make(database, tenant)
            put(database, tenant, "a", "apple")
    query = f"SELECT DISTINCT tenant FROM penstock.{table}"
    with psycopg.connect(database_url) as connection:
        connection.execute("SET LOCAL ROLE penstock_tenant")
        assert connection.execute(query).fetchall() == []
        for tenant in ("secured", "x' OR 'a'='a", "penstock_keeper", "%"):
            connection.execute("SELECT set_config('penstock.tenant', %s, true)", (tenant,))
            assert connection.execute(query).fetchall() == [(tenant,)]
            assert (
                connection.execute(
                    f"UPDATE penstock.{table} SET tenant = tenant WHERE tenant <> %s", (tenant,)
                ).rowcount
                == 0
            )
        for nobody in ("", "secured'", "SECURED", "secured "):
            connection.execute("SELECT set_config('penstock.tenant', %s, true)", (nobody,))
            assert connection.execute(query).fetchall() == []


@pytest.mark.parametrize("tenant", ["", "a\0", "a\ud800"])
def test_a_name_that_would_be_stored_as_that_of_another_tenant_is_refused(database, tenant):
    with pytest.raises(InvalidInput, match="is not a tenant's name"):
        database.collections(tenant)
    with pytest.raises(InvalidInput, match="is not a tenant's name"):
        find(database, tenant, "text")


def test_the_function_that_finds_words_finds_those_of_the_tenant_alone(database, database_url):
    """It runs as a role that sees the rows of all tenants."""
    make(database, "wordy")
    put(database, "wordy", "1", "a zebra")
    ((number,),) = rows(database_url, "SELECT number FROM penstock.collections WHERE tenant = 'wordy'")
    found = {}
    for tenant in ("wordy", "another"):
        with psycopg.connect(database_url) as connection:
            connection.execute("SELECT set_config('role', 'penstock_tenant', true)")
            connection.execute("SELECT set_config('penstock.tenant', %s, true)", (tenant,))
            query = "SELECT count(*) FROM penstock.word_matches(%s, 'zebra'::tsquery, 9)"
            found[tenant] = connection.execute(query, (number,)).fetchall()
    assert found == {"wordy": [(1,)], "another": [(0,)]}


def test_a_transaction_cannot_write_a_row_for_another_tenant(database, database_url):
    with psycopg.connect(database_url) as connection:
        connection.execute("SET LOCAL ROLE penstock_tenant")
        connection.execute("SELECT set_config('penstock.tenant', 'intruder', true)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            connection.execute(
                "INSERT INTO penstock.collections (id, tenant, name, language, chunk_tokens, overlap_tokens) "
                "VALUES ('x', 'secured', 'planted', 'english', 100, 0)"
            )


@pytest.mark.parametrize("role", ["penstock_tenant", "penstock_keeper"])
def test_the_roles_cannot_log_in_are_not_exempt_from_the_policies_and_own_no_table(database_url, role):
    assert rows(database_url, "SELECT rolcanlogin, rolbypassrls, rolsuper FROM pg_roles WHERE rolname = %s", role) == [
        (False, False, False)
    ]
    assert (
        rows(
            database_url,
            "SELECT relname FROM pg_class WHERE relnamespace = 'penstock'::regnamespace AND relkind = 'r' "
            "AND (relowner = %s::regrole OR (relname <> 'format' AND NOT (relrowsecurity AND relforcerowsecurity)))",
            role,
        )
        == []
    )


def test_the_metadata_of_a_document_change_without_its_chunks_and_only_while_it_is_the_same(database):
    make(database, "tagged")
    put(database, "tagged", "a", "apple", "pear", vectors=[vector(1), vector(0, 1)], metadata={"year": 2025})
    before = database.document("tagged", "handbook", "a")
    assert before is not None
    version = database.collection("tagged", "handbook").version
    after = database.set_metadata("tagged", "handbook", before, {"year": 2026})
    assert after is not None
    assert (after.metadata, after.digest, after.chunks) == ({"year": 2026}, before.digest, 2)
    found = find(database, "tagged", at=vector(1), filter_={"type": "eq", "key": "year", "value": 2026})
    assert texts(found) == ["apple", "pear"]
    assert found.version == database.collection("tagged", "handbook").version == version + 1
    database.put_document("tagged", "handbook", "a", None, "other", [NewChunk("fig", 1, None)])
    assert database.set_metadata("tagged", "handbook", before, {"year": 2027}) is None
    assert database.set_metadata("tagged", "handbook", replace(before, id="b"), {"year": 2027}) is None


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"max_tenant_chunks": 3}, r"would have 4 chunks, and may have 3 \(PENSTOCK_MAX_TENANT_CHUNKS\)"),
        ({"max_tenant_documents": 1}, r"would have 2 documents, and may have 1 \(PENSTOCK_MAX_TENANT_DOCUMENTS\)"),
        ({"max_tenant_text_bytes": 7}, r"would have 8 bytes of text, and may have 7"),
    ],
)
def test_loads_of_several_doors_at_once_stay_within_the_bounds_of_their_tenant(database_url, bounds, message):
    tenant = f"at-once-{next(iter(bounds))}"
    with a_database(database_url, **bounds) as one, a_database(database_url, **bounds) as other:
        for number, door in enumerate((one, other)):
            make(door, tenant, f"c{number}")
        # The first load has written its document, and not yet ended its transaction.
        with psycopg.connect(database_url) as first, ThreadPoolExecutor(1) as pool:
            first.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, %s))", (tenant, LOCK_CLASS))
            second = pool.submit(put, other, tenant, "b", "four", "word", name="c1")
            first.execute(
                "UPDATE penstock.collections SET documents = 1, chunks = 2, text_bytes = 0 WHERE tenant = %s "
                "AND name = 'c0'",
                (tenant,),
            )
            waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            wait_for(lambda: rows(database_url, waits) == [(1,)], "the second load to wait")
            first.commit()
            with pytest.raises(TooLarge, match=message):
                second.result(60)

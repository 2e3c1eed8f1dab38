"""Tests the export and the import of a tenant's collections."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from shared.retrieval.backup import Imported, export_tenant, import_tenant
from shared.retrieval.database import Database
from shared.retrieval.errors import CollectionMissing, IncompleteExport, InvalidInput, RetrievalError, TooLarge
from shared.retrieval.records import Document, NewChunk, NewCollection
from tests.support.collected import a_database, find, make, put, texts, vector
from tests.support.postgres import rows


@pytest.fixture(scope="module")
def database(database_url: str) -> Iterator[Database]:
    with a_database(database_url, max_indexes=0) as database:
        make(database, "red", "first", language="german")
        make(database, "red", "empty", chunk_tokens=100)
        put(database, "red", "a", "eins", "zwei", name="first", vectors=[vector(0.1), None], metadata={"tags": ["x"]})
        put(database, "red", "b", "drei", name="first")
        yield database


class ChangedDatabase:
    """A database in which something happens whenever the chunks of a document have been read."""

    def __init__(self, database: Database, *changes: Any) -> None:
        self._database, self._changes = database, list(changes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def chunks(self, *names: Any, **places: Any) -> Any:
        found = self._database.chunks(*names, **places)
        if self._changes:
            self._changes.pop(0)()
        return found


def of(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records without the first one, which names the tenant, and without the ids, which are unique."""
    return [
        {kind: {name: each for name, each in value.items() if name != "id"} if kind == "collection" else value}
        for record in records[1:]
        for kind, value in record.items()
    ]


def find_document(database: Database, document_id: str) -> Document:
    found = database.document("again", "first", document_id)
    assert found is not None
    return found


def test_exported_collections_are_the_same_after_their_import(database):
    records = list(export_tenant(database, "red"))
    assert [next(iter(record)) for record in records] == [
        *("export", "collection", "collection", "document", "chunks", "document", "chunks", "end"),
    ]
    assert import_tenant(database, "blue", records) == Imported(2, 2, 0)
    assert of(list(export_tenant(database, "blue"))) == of(records)
    assert texts(find(database, "blue", at=vector(1), name="first")) == ["eins"]


def test_a_vector_store_keeps_its_id_its_texts_and_the_names_of_its_files(database):
    new = NewCollection(None, None, None, title="Our handbook", description="rules", labels={"team": "blue"})
    made = database.create_collection("stores", new)
    chunk = NewChunk("thirty days", 2, None)
    database.put_document("stores", made.name, "file-1", {}, "digest", [chunk], filename="leave.md")
    records = list(export_tenant(database, "stores"))
    database.erase_tenant("stores")
    import_tenant(database, "moved", records)
    moved = database.vector_store("moved", made.store_id)
    assert (moved.name, moved.title, moved.labels) == (made.name, "Our handbook", {"team": "blue"})
    assert find(database, "moved", "days", name=made.name, mode="words").passages[0].filename == "leave.md"
    # Two collections of one database have different ids.
    import_tenant(database, "copied", records)
    assert database.collection("copied", made.name).id != made.id


def test_an_import_that_is_repeated_writes_only_what_differs(database):
    records = list(export_tenant(database, "red"))
    import_tenant(database, "again", records)
    put(database, "again", "b", "vier", name="first")
    put(database, "again", "c", "stays", name="first")
    version = database.collection("again", "first").version
    assert import_tenant(database, "again", records) == Imported(2, 2, 2)
    assert database.collection("again", "first").version == version
    records[5]["document"]["digest"] = "another"
    assert import_tenant(database, "again", records) == Imported(2, 2, 1)
    assert texts(find(database, "again", "drei stays", name="first", mode="words")) == ["drei", "stays"]
    # These are equal in Python.
    for number, value in enumerate((1, True, 1.0)):
        records[3]["document"]["metadata"] = {"level": value}
        assert import_tenant(database, "again", records) == Imported(2, 2, 1), number
        assert repr(find_document(database, "a").metadata) == repr({"level": value})
    records[3]["document"]["filename"] = "a.md"
    assert import_tenant(database, "again", records) == Imported(2, 2, 1)
    assert find_document(database, "a").filename == "a.md"


def test_a_document_that_changes_during_the_export_is_exported_again(database):
    make(database, "busy")
    put(database, "busy", "a", "old", vectors=[vector(1)])
    changed = ChangedDatabase(database, lambda: put(database, "busy", "a", "new", "second"))
    records = list(export_tenant(changed, "busy"))
    assert [next(iter(record)) for record in records][2:-1] == ["document", "chunks", "changed", "document", "chunks"]
    assert import_tenant(database, "copy", records) == Imported(1, 1, 0)
    assert texts(find(database, "copy", "old new second", mode="words")) == ["new", "second"]


def test_what_is_deleted_during_the_export_is_left_out(database):
    make(database, "gone", "one")
    make(database, "gone", "two")
    for name in ("one", "two"):
        put(database, "gone", "a", "word", name=name)
    changed = ChangedDatabase(
        database,
        lambda: database.delete_document("gone", "one", "a"),
        lambda: database.delete_collection("gone", "two"),
    )
    assert import_tenant(database, "rest", list(export_tenant(changed, "gone"))) == Imported(2, 0, 0)
    assert [each.documents for each in database.collections("rest")] == [0, 0]


def test_a_document_that_changes_again_and_again_ends_the_export(database):
    make(database, "restless")
    put(database, "restless", "a", "text")
    changes = [lambda number=number: put(database, "restless", "a", f"text {number}") for number in range(20)]
    with pytest.raises(IncompleteExport, match="document 'a' was changed each of 10 times"):
        list(export_tenant(ChangedDatabase(database, *changes), "restless"))


def test_an_export_without_its_last_lines_is_noticed_and_can_be_imported_again(database):
    records = list(export_tenant(database, "red"))
    with pytest.raises(IncompleteExport, match="has no end"):
        import_tenant(database, "half", records[:-2])
    assert import_tenant(database, "half", records) == Imported(2, 2, 1)
    without = [record for record in records if record.get("document", {}).get("id") != "b"]
    with pytest.raises(InvalidInput, match=r"document 'a' before it has 3 of 2 chunks"):
        import_tenant(database, "holes", without)
    with pytest.raises(IncompleteExport, match="had 2 collections and 2 documents, and 2 and 1 were read"):
        import_tenant(database, "holes", [*records[:5], records[-1]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "other"}, r"record 2: collection.model='other': .* has a collection 'handbook' with 'small'"),
        ({"dimensions": 5}, r"record 2: collection.dimensions=5: .* with 4"),
        ({"language": "german"}, r"record 2: collection.language='german'"),
        ({"language": "klingon"}, r"record 2: language='klingon': must be one of"),
        ({"size": 1}, r"record 2=.*is not one of an export"),
    ],
)
def test_an_import_into_a_collection_with_other_settings_is_refused(database, change, message):
    tenant = f"other-{time.monotonic_ns()}"
    make(database, tenant)
    (head, collection, *rest) = export_tenant(database, tenant)
    with pytest.raises(InvalidInput, match=message):
        import_tenant(database, tenant, [head, {"collection": collection["collection"] | change}, *rest])


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([], r"record 4=\[\]: is not one of an export \(it has to be an object with one field\)"),
        ({"document": {}}, r"record 4=.*\(document 'a' before it has 0 of 1 chunks\)"),
        ({"export": {"format": 1}}, "it is not in its place"),
        ({"surprise": 1}, "there is no such record"),
        ({"chunks": [{"text": "x", "tokens": 1, "vector": ["a"]}]}, r"record 4=.*is not one of an export"),
        ({"chunks": [{"text": "x", "tokens": 1, "vector": [1e300, 0, 0, 0]}]}, r"=inf: must have finite numbers"),
        ({"chunks": [{"text": "x", "tokens": 1, "vector": [1.0]}]}, r"chunks\[0\].vector='1 numbers'"),
        ({"chunks": 7}, r"record 4=.*is not one of an export"),
    ],
)
def test_a_record_that_is_not_one_of_an_export_is_named(database, record, message):
    make(database, tenant := f"bad-{time.monotonic_ns()}")
    head, collection, _ = export_tenant(database, tenant)
    document = {"document": {"id": "a", "metadata": {}, "digest": "d", "chunks": 1}}
    with pytest.raises(InvalidInput, match=message):
        import_tenant(database, tenant, [head, collection, document, record, {"end": {}}])


def test_other_formats_and_orders_are_refused(database):
    for records, message in (
        ([{"export": {"format": 2}}], "reads format 1"),
        ([{"collection": {}}], "not in its place"),
        ([{"export": {"format": 1}}, {"chunks": []}], "not in its place"),
        ([{"export": {"format": 1}}, {"document": {}}], r"\('id' is missing\)"),
    ):
        with pytest.raises(InvalidInput, match=message):
            import_tenant(database, "orders", records)


def test_the_bounds_of_a_tenant_hold_for_its_import(database, database_url):
    records = list(export_tenant(database, "red"))
    with a_database(database_url, max_tenant_chunks=2) as small, pytest.raises(TooLarge, match="MAX_TENANT_CHUNKS"):
        import_tenant(small, "bounded", records)
    with a_database(database_url, max_collections=1) as small, pytest.raises(TooLarge, match="MAX_COLLECTIONS"):
        import_tenant(small, "bounded-too", records)
    assert rows(database_url, "SELECT count(*) FROM penstock.chunks WHERE tenant = 'bounded'") == [(2,)]


def test_an_export_names_no_other_tenants_rows(database):
    with pytest.raises(CollectionMissing):
        database.documents("stranger", "first")
    assert of(list(export_tenant(database, "stranger"))) == [{"end": {"collections": 0, "documents": 0}}]
    assert issubclass(IncompleteExport, RetrievalError)

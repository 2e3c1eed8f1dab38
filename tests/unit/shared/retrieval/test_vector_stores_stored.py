"""Tests of vector stores in a real database: pages, files that wait for their load, and what ends a claim."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psycopg
import pytest

from shared.retrieval import schema, store_files
from shared.retrieval.connecting import open_connection
from shared.retrieval.database import Database
from shared.retrieval.errors import ClaimGone, CollectionMissing, TooLarge
from shared.retrieval.file_records import FileCounts, FileLoad, NewFile
from shared.retrieval.pages import Page
from shared.retrieval.records import NewChunk, NewCollection
from shared.retrieval.tenant_collections import new_id
from tests.support.collected import a_database, find, put, texts
from tests.support.postgres import execute, rows
from tests.support.processes import wait_for

KEY = ("label", "digest")
#: Longer than any test, and over at once, in seconds.
LONG_S, OVER_S = 600.0, -1.0


@pytest.fixture(scope="module")
def database(database_url: str) -> Iterator[Database]:
    with a_database(database_url, max_collections=50, max_indexes=0) as database:
        yield database


@pytest.fixture(autouse=True)
def empty(database: Database, database_url: str) -> Iterator[None]:
    yield
    execute(database_url, "TRUNCATE penstock.collections CASCADE")


def make(database: Database, tenant: str = "blue", **fields: object) -> str:
    """Create a store without vectors, and return its name."""
    return database.create_collection(tenant, NewCollection(None, None, None, **fields)).name  # type: ignore[arg-type]


def add(database: Database, name: str, *ids: str, tenant: str = "blue", batch: str | None = None, **fields: object):
    new = [NewFile(id_, f"{id_}.md", {"year": 2026}, **fields) for id_ in ids]  # type: ignore[arg-type]
    return database.files.add(tenant, name, new, batch=batch, key=KEY, most=10)


def claim(database: Database, token: str = "one", lease_s: float = LONG_S, without: tuple[str, ...] = ()) -> FileLoad:
    found = database.loads.claim(token, lease_s, without=without)
    assert found is not None
    return found


def write(database: Database, load: FileLoad, text: str = "thirty days") -> None:
    """Write the file of a claim with one chunk."""
    chunks = [NewChunk(text, 2, None)]
    database.put_document(
        load.tenant, load.collection, load.file.id, load.file.metadata, "digest", chunks, claim=load.claim
    )


def state(database: Database, name: str, id_: str) -> str:
    found = database.files.find("blue", name, id_)
    return "" if found is None else found.state


def test_a_store_is_named_by_its_id_and_its_texts_can_be_changed(database):
    new = NewCollection(None, None, None, title="Our handbook", description="rules", labels={"team": "blue"})
    made = database.create_collection("blue", new)
    assert made.name == made.store_id == f"vs_{made.id}"
    assert database.vector_store("blue", made.store_id, until=time.monotonic() + 60) == made
    changed = database.stores.change("blue", made.store_id, {"title": None, "labels": {}})
    assert (changed.title, changed.description, changed.labels) == (None, "rules", {})
    for tenant, store_id in (("red", made.store_id), ("blue", made.id), ("blue", "vs_\0"), ("blue", "vs_' OR true --")):
        with pytest.raises(CollectionMissing):
            database.vector_store(tenant, store_id)
        with pytest.raises(CollectionMissing):
            database.stores.change(tenant, store_id, {"title": "stolen"})


def test_pages_of_stores_continue_behind_and_before_ids_that_are_gone(database):
    ids = []
    for _ in range(5):
        ids.append(database.vector_store("blue", make(database)).id)
        wait_for(lambda: new_id()[:11] > ids[-1][:11], "the next millisecond")

    def page(limit: int = 2, **fields: object) -> tuple[list[str], bool]:
        found, has_more = database.stores.page("blue", Page(limit, **fields))  # type: ignore[arg-type]
        return [each.id for each in found], has_more

    newest = ids[::-1]
    assert page() == (newest[:2], True)
    assert page(after=newest[1]) == (newest[2:4], True)
    database.delete_collection("blue", f"vs_{newest[3]}")
    assert page(after=newest[3]) == (newest[4:], False)
    assert page(before=newest[3]) == (newest[1:3], True)
    assert page(before=newest[3], after=newest[0], limit=9) == (newest[1:3], False)
    assert page(oldest_first=True) == (ids[:1] + ids[2:3], True)
    assert database.stores.page("red", Page(9)) == ([], False)


def test_a_file_waits_is_claimed_and_loaded(database):
    name = make(database)
    (added,) = add(database, name, "file-1", chunk_tokens=100, overlap_tokens=20)
    assert (added.state, added.filename, added.metadata, added.chunk_tokens) == (
        "in_progress",
        "file-1.md",
        {"year": 2026},
        100,
    )
    assert database.documents("blue", name) == []
    assert database.collection("blue", name).documents == 0
    load = claim(database)
    assert (load.tenant, load.collection, load.file.filename, load.key_label, load.key_digest, load.attempts) == (
        "blue",
        name,
        "file-1.md",
        *KEY,
        1,
    )
    assert database.loads.claim("two", LONG_S) is None
    write(database, load)
    assert state(database, name, "file-1") == "completed"
    assert [each.id for each in database.documents("blue", name)] == ["file-1"]
    passage = find(database, "blue", "days", name=name, mode="words").passages[0]
    assert (passage.document_id, passage.filename, passage.metadata) == ("file-1", "file-1.md", {"year": 2026})
    id_ = database.collection("blue", name).id
    assert database.stores.counts("blue", [id_]) == {id_: FileCounts(completed=1)}
    assert database.stores.counts("red", [id_]) == {}


def test_a_file_whose_door_has_died_is_claimed_again_and_the_dead_one_writes_nothing(database):
    name = make(database)
    add(database, name, "file-1")
    dead = claim(database, "dead", OVER_S)
    assert database.loads.renew(["dead"], OVER_S) == {"dead"}
    again = claim(database, "alive")
    assert again.attempts == 2
    for late in (lambda: write(database, dead), lambda: database.loads.finish(dead, 1)):
        with pytest.raises(ClaimGone):
            late()
    database.loads.fail(dead, "server_error", "late")
    database.loads.release(dead, 0, "")
    assert database.loads.renew(["dead", "alive"], LONG_S) == {"alive"}
    write(database, again)
    assert (state(database, name, "file-1"), database.loads.claim("more", LONG_S)) == ("completed", None)


@pytest.mark.parametrize("change", ["cancel", "add again", "change", "put", "delete", "delete store"])
def test_a_load_ends_when_its_file_is_changed_meanwhile(database, change):
    name = make(database)
    add(database, name, "file-1", batch="b")
    load = claim(database)
    match change:
        case "cancel":
            batch = database.files.cancel_batch("blue", name, "b")
            assert batch is not None
            assert batch.counts == FileCounts(cancelled=1)
        case "add again":
            add(database, name, "file-1")
        case "change":
            database.files.change("blue", name, "file-1", {"year": 2027}, 0)
        case "put":
            put(database, "blue", "file-1", "native", name=name)
        case "delete":
            assert database.delete_document("blue", name, "file-1")
        case _:
            database.delete_collection("blue", name)
    with pytest.raises(CollectionMissing if change == "delete store" else ClaimGone):
        write(database, load)
    assert database.loads.renew([load.claim], LONG_S) == frozenset()
    waits = database.loads.claim("next", LONG_S)
    assert (waits is not None) == (change in {"add again", "change"})
    if change == "change":
        assert waits is not None
        assert waits.file.metadata == {"year": 2027}


def test_a_failed_load_says_why_and_the_earlier_text_stays(database):
    name = make(database)
    add(database, name, "file-1")
    write(database, claim(database))
    add(database, name, "file-1")
    assert texts(find(database, "blue", "days", name=name, mode="words")) == ["thirty days"]
    database.loads.fail(claim(database, "zero"), "invalid_file", "\0\ud800" * 9_000)
    assert database.files.find("blue", name, "file-1").error == "\ufffd" * 1_000
    add(database, name, "file-1")
    database.loads.fail(claim(database, "two"), "invalid_file", "it is empty")
    found = database.files.find("blue", name, "file-1")
    assert found is not None
    assert (found.state, found.error_code, found.error) == ("failed", "invalid_file", "it is empty")
    assert texts(find(database, "blue", "days", name=name, mode="words")) == ["thirty days"]
    assert add(database, name, "file-1")[0].error is None


def test_changed_attributes_are_those_of_the_chunks(database):
    name = make(database)
    add(database, name, "file-1")
    write(database, claim(database))
    before = database.collection("blue", name).version
    database.files.change("blue", name, "file-1", {"year": 2027}, 1)
    wanted = {"type": "eq", "key": "year", "value": 2027}
    assert len(find(database, "blue", "days", name=name, mode="words", filter_=wanted).passages) == 1
    assert database.collection("blue", name).version == before + 1
    assert database.files.change("blue", name, "file-2", {}, 0) is None


def test_a_file_that_is_added_again_gives_its_attributes_to_the_chunks_that_it_has(database):
    name = make(database)
    add(database, name, "file-1")
    write(database, claim(database))
    version = database.collection("blue", name).version
    add(database, name, "file-1")
    database.loads.finish(claim(database, "same"), 1)
    assert (state(database, name, "file-1"), database.collection("blue", name).version) == ("completed", version)
    database.files.add("blue", name, [NewFile("file-1", "file-1.md", {"year": 2027})], batch=None, key=KEY, most=10)
    database.loads.finish(claim(database, "other"), 1)
    wanted = {"type": "eq", "key": "year", "value": 2027}
    (passage,) = find(database, "blue", "days", name=name, mode="words", filter_=wanted).passages
    assert passage.metadata == {"year": 2027}
    assert database.collection("blue", name).version == version + 1


def test_a_file_that_is_being_written_keeps_no_other_from_being_claimed_and_renewed(database, database_url):
    name = make(database)
    add(database, name, "file-1", "file-2", "file-3")
    assert claim(database, "written", OVER_S).file.id == "file-1"
    with psycopg.connect(database_url) as writer:
        writer.execute("SELECT FROM penstock.documents WHERE id = 'file-1' FOR NO KEY UPDATE")
        second = claim(database, "second", OVER_S)
        assert second.file.id == "file-2"
        assert database.loads.renew(["written", "second", "gone"], LONG_S) == {"written", "second"}
        assert claim(database, "third").file.id == "file-3"


def test_tenants_have_turns_and_a_released_file_rests(database):
    blue, red = make(database), make(database, "red")
    add(database, blue, "a", "b", "c")
    add(database, red, "a", tenant="red")
    turns = [claim(database, str(turn)) for turn in range(3)]
    assert [each.tenant for each in turns] == ["blue", "red", "blue"]
    assert database.loads.claim("without", LONG_S, without={"blue"}) is None
    assert claim(database, "last").tenant == "blue"
    database.loads.release(turns[1], LONG_S, "the model is away")
    assert database.loads.claim("rests", LONG_S) is None
    database.loads.release(turns[0], 0, "")
    again = claim(database, "again")
    assert (again.file.id, again.attempts) == (turns[0].file.id, 1)


def test_files_of_a_tenant_whose_model_has_no_worker_are_passed_over(database):
    names = {}
    for tenant, model in (("blue", "away"), ("red", "away"), ("blue", None)):
        new = NewCollection(None, model, None if model is None else 2)
        names[tenant, model] = database.create_collection(tenant, new).name
        add(database, names[tenant, model], "a", tenant=tenant)
    resting = {("blue", "away"), ("red", "other")}
    claims = [database.loads.claim(token, LONG_S, resting=resting) for token in ("one", "two", "three")]
    assert sorted((each.tenant, each.model) for each in claims if each) == [("blue", None), ("red", "away")]
    found = claim(database, "at last")
    assert (found.tenant, found.model) == ("blue", "away")
    assert 0 <= found.waited_s < LONG_S


def test_a_file_that_was_given_back_does_not_count_as_a_load_of_its_tenant(database):
    blue, red = make(database), make(database, "red")
    add(database, blue, "a", "b", "c")
    add(database, red, "a", "b", tenant="red")
    for token in ("one", "two"):
        given_back = claim(database, token, without=("red",))
        database.loads.release(given_back, LONG_S, "no worker")
    assert claim(database, "three", without=("blue",)).tenant == "red"
    assert claim(database, "four").tenant == "blue"


def test_a_repeated_claim_gets_the_same_file(database):
    name = make(database)
    add(database, name, "a", "b")
    assert [claim(database, token).file.id for token in ("first", "first", "second")] == ["a", "a", "b"]


def test_bounds_of_files_hold(database, monkeypatch):
    name = make(database)
    add(database, name, *map(str, range(9)))
    with pytest.raises(TooLarge, match="would have 11 documents, and may have 10"):
        add(database, name, "x", "y")
    add(database, name, "8", "x")
    monkeypatch.setattr("shared.retrieval.store_files.MAX_WAITING", 10)
    with pytest.raises(TooLarge, match="10 files of the tenant wait"):
        add(database, name, "x")


def test_requests_at_the_same_time_add_no_more_files_than_may_wait(database, database_url, monkeypatch):
    name = make(database)
    monkeypatch.setattr("shared.retrieval.store_files.MAX_WAITING", 1)
    counted, check = threading.Barrier(2), store_files._check_counts

    def check_together(*given: object) -> None:
        check(*given)  # type: ignore[arg-type]
        # Without a lock, the other request has counted too when this one adds its file.
        with suppress(threading.BrokenBarrierError):
            counted.wait(0.5)

    monkeypatch.setattr(store_files, "_check_counts", check_together)
    with ThreadPoolExecutor() as pool:
        added = [pool.submit(add, database, name, id_) for id_ in ("a", "b")]
        refused = [error for each in added if (error := each.exception()) is not None]
    assert [type(error) for error in refused] == [TooLarge]
    assert rows(database_url, "SELECT count(*) FROM penstock.documents") == [(1,)]


def test_a_file_that_is_added_again_has_the_time_of_its_batch(database, database_url):
    name = make(database)
    add(database, name, "file-1")
    execute(database_url, "UPDATE penstock.documents SET added_at = 'epoch'")
    (again,) = add(database, name, "file-1", batch="later")
    found = database.files.batch("blue", name, "later")
    assert found is not None
    assert found.created_ms == again.added_ms > 0


def test_files_are_listed_by_state_and_batch(database):
    name = make(database)
    add(database, name, "a", "b", batch="first")
    add(database, name, "c", batch="second")
    write(database, claim(database))
    put(database, "blue", "native/page.md", "native", name=name)

    def page(**fields: object) -> list[str]:
        found, _ = database.files.page("blue", name, Page(9, oldest_first=True), **fields)  # type: ignore[arg-type]
        return [each.id for each in found]

    assert page() == ["a", "b", "c", "native/page.md"]
    assert page(state="in_progress") == ["b", "c"]
    assert page(batch="first", state="completed") == ["a"]
    found = database.files.batch("blue", name, "first")
    assert found is not None
    assert found.counts == FileCounts(in_progress=1, completed=1)
    assert database.files.batch("blue", name, "third") is None


def test_documents_of_the_format_before_are_files_of_stores(database, database_url, monkeypatch):
    execute(database_url, "DROP SCHEMA penstock CASCADE")
    monkeypatch.setattr(schema, "FORMAT", 1)
    open_connection(database_url, 5).close()
    execute(
        database_url,
        "INSERT INTO penstock.collections (id, tenant, name, language, chunk_tokens, overlap_tokens, documents) "
        "VALUES ('abc', 'blue', 'old', 'english', 200, 40, 1)",
        "INSERT INTO penstock.documents (tenant, collection, id, metadata, digest, text_bytes, chunks, loaded_at) "
        "SELECT tenant, number, 'page.md', '{}', '', 5, 1, '2026-01-01' FROM penstock.collections",
    )
    monkeypatch.undo()
    open_connection(database_url, 5).close()
    assert rows(database_url, "SELECT number FROM penstock.format") == [(schema.FORMAT,)]
    assert database.vector_store("blue", "vs_abc").name == "old"
    (file,), _ = database.files.page("blue", "old", Page(5))
    assert (file.id, file.state, file.filename) == ("page.md", "completed", None)
    assert rows(database_url, "SELECT added_at = loaded_at FROM penstock.documents") == [(True,)]

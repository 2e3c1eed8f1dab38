"""Tests that no passage crosses tenants, whatever names, ids, texts, queries and filters clients choose."""

import itertools
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.retrieval.database import Database
from shared.retrieval.errors import CollectionExists, CollectionMissing
from shared.retrieval.file_records import FileCounts, NewFile
from shared.retrieval.pages import Page
from shared.retrieval.records import NewChunk
from tests.support.collected import a_database, find, make, put, vector
from tests.support.examples import examples
from tests.support.postgres import rows

HOSTILE = [
    *("a", "a ' OR tenant <> '", "'; DROP TABLE penstock.chunks; --", "%s%(x)s", "{number}", "\\", "../a", "Ä", "A"),
    *("penstock_keeper", "<|im_start|>system", "{{7*7}}", "search the collection of tenant blue", "RESET ROLE"),
]
NAMES = st.sampled_from(HOSTILE[:6])
TENANTS = st.sampled_from(["red", "red'", "RED", "penstock_tenant", "r%", "*"])
WORDS = st.sampled_from([*HOSTILE, "common words", "common", "rare common", "\x011 \x012", "' | ''"])
VECTORS = st.one_of(st.none(), st.sampled_from([vector(1), vector(0, 1), vector(1, 1), vector(0)]))
METADATA = st.dictionaries(st.sampled_from(HOSTILE[:4]), st.sampled_from([*HOSTILE[:4], 1, True]), max_size=2)
FILTERS = st.one_of(
    st.none(),
    st.builds(
        lambda type_, key, value: {"type": type_, "key": key, "value": value},
        st.sampled_from(["eq", "ne", "gt"]),
        st.sampled_from(HOSTILE[:4]),
        st.sampled_from([*HOSTILE[:4], 1]),
    ),
    st.just({"type": "or", "filters": [{"type": "ne", "key": "tenant", "value": "red"}] * 2}),
)
STEPS = st.one_of(
    st.tuples(st.just("put"), TENANTS, NAMES, NAMES, WORDS, VECTORS, METADATA),
    st.tuples(st.just("load"), TENANTS, NAMES, NAMES, WORDS, METADATA),
    st.tuples(st.just("delete"), TENANTS, NAMES, NAMES),
    st.tuples(st.just("drop"), TENANTS, NAMES),
    st.tuples(st.just("find"), TENANTS, NAMES, WORDS, VECTORS, FILTERS, st.sampled_from(["hybrid", "words"])),
)
_numbers = itertools.count()


@pytest.fixture(scope="module")
def database(database_url: str) -> Iterator[Database]:
    # Some collections get an index, and some lose it again.
    with a_database(database_url, index_from_chunks=100, max_indexes=1) as database:
        yield database


class Kept:
    """The documents that each tenant has put into each of its collections, as a plain dictionary."""

    def __init__(self, database: Database, example: int) -> None:
        self.database, self.example = database, example
        self.texts: dict[tuple[str, str], dict[str, str]] = {}

    def take(self, step: tuple[object, ...]) -> None:
        kind, tenant, name, *rest = step
        getattr(self, str(kind))(f"{tenant}{self.example}", str(name), *rest)

    def put(self, tenant: str, name: str, id_: str, text: str, at: tuple[float, ...] | None, metadata: object) -> None:
        if (tenant, name) not in self.texts:
            make(self.database, tenant, name)
            with pytest.raises(CollectionExists):
                make(self.database, tenant, name)
            self.texts[tenant, name] = {}
        written = f"common {text} of {tenant} in {name}"
        put(self.database, tenant, id_, written, name=name, vectors=[at], metadata=metadata)  # type: ignore[arg-type]
        self.texts[tenant, name][id_] = written.replace("\0", "\N{REPLACEMENT CHARACTER}")

    def load(self, tenant: str, name: str, id_: str, text: str, metadata: Mapping[str, str | float | bool]) -> None:
        """Add a file to the collection as a vector store, and load it as a door does."""
        if (tenant, name) not in self.texts:
            make(self.database, tenant, name)
            self.texts[tenant, name] = {}
        file = NewFile(id_, text, metadata)
        self.database.files.add(tenant, name, [file], batch=text, key=("", ""), most=10**6)
        load = self.database.loads.claim(f"claim {next(_numbers)}", 600)
        assert load is not None
        assert (load.tenant, load.collection, load.file.id) == (tenant, name, id_)
        written = f"common {text} of {tenant} in {name}"
        chunks = [NewChunk(written, 2, None)]
        self.database.put_document(tenant, name, id_, load.file.metadata, "digest", chunks, claim=load.claim)
        self.texts[tenant, name][id_] = written.replace("\0", "\N{REPLACEMENT CHARACTER}")

    def delete(self, tenant: str, name: str, id_: str) -> None:
        if (tenant, name) in self.texts:
            was = self.texts[tenant, name].pop(id_, None)
            assert self.database.delete_document(tenant, name, id_) == (was is not None)

    def drop(self, tenant: str, name: str) -> None:
        if self.texts.pop((tenant, name), None) is None:
            with pytest.raises(CollectionMissing):
                self.database.delete_collection(tenant, name)
        else:
            self.database.delete_collection(tenant, name)

    def find(self, tenant: str, name: str, text: str, at: object, filter_: object, mode: str) -> None:
        own = self.texts.get((tenant, name))
        if own is None:
            with pytest.raises(CollectionMissing):
                find(self.database, tenant, f"common {text}", at, name=name)  # type: ignore[arg-type]
            return
        found = find(self.database, tenant, f"common {text}", at, name=name, k=50, filter_=filter_, mode=mode)  # type: ignore[arg-type]
        passages = {passage.document_id: passage.text for passage in found.passages}
        assert passages.items() <= own.items()
        if filter_ is None:
            assert passages == own

    def check(self) -> None:
        """Everybody has what they have put, and nothing else."""
        for tenant, name in self.texts:
            self.find(tenant, name, "words", None, None, "words")
        for tenant in {tenant for tenant, _ in self.texts}:
            names = [collection.name for collection in self.database.collections(tenant)]
            assert sorted(names) == sorted(name for owner, name in self.texts if owner == tenant)
            self.check_stores(tenant)

    def check_stores(self, tenant: str) -> None:
        """A tenant finds its own vector stores and their files only."""
        stores = {
            (owner, each.name): each
            for owner in {owner for owner, _ in self.texts}
            for each in self.database.collections(owner)
        }
        listed, _ = self.database.stores.page(tenant, Page(1_000))
        assert {each.name for each in listed} == {name for owner, name in stores if owner == tenant}
        counts = self.database.stores.counts(tenant, [each.id for each in stores.values()])
        for (owner, name), store in stores.items():
            if owner == tenant:
                found, _ = self.database.files.page(tenant, name, Page(1_000))
                assert {each.id for each in found} == self.texts[owner, name].keys()
                assert counts.pop(store.id, FileCounts()).completed == len(found)
                continue
            with pytest.raises(CollectionMissing):
                self.database.vector_store(tenant, store.store_id)
        assert counts == {}


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(STEPS, min_size=3, max_size=15))
def test_no_passage_crosses_tenants(database, database_url, steps):
    kept = Kept(database, next(_numbers))
    for step in steps:
        kept.take(step)
    kept.check()
    assert rows(database_url, "SELECT count(*) > 0 FROM penstock.format") == [(True,)]
    tenants = {tenant for tenant, _ in kept.texts}
    if tenants:
        erased = tenants.pop()
        database.erase_tenant(erased)
        for key in [key for key in kept.texts if key[0] == erased]:
            del kept.texts[key]
        assert database.collections(erased) == []
        kept.check()

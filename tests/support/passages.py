"""A database of collections in the memory of a test, whose calls fail as the test wants."""

from dataclasses import replace
from typing import Any

from shared.retrieval.errors import CollectionMissing, RetrievalError
from shared.retrieval.records import Collection, Found, Half, Passage, Query


def a_collection(name: str = "handbook", tenant: str = "blue", **values: Any) -> Collection:
    """Return a collection whose words alone are searched, unless `values` say otherwise."""
    fields: dict[str, Any] = {
        "id": f"id-of-{name}",
        "model": None,
        "dimensions": None,
        "language": "english",
        "chunk_tokens": 200,
        "overlap_tokens": 40,
        "version": 1,
        "documents": 1,
        "chunks": 1,
        "text_bytes": 1,
        "created_ms": 0,
        "loaded_ms": None,
    }
    return Collection(tenant=tenant, name=name, **(fields | values))


def a_passage(number: int, text: str = "") -> Passage:
    """Return the passage with this number, from 0; the first one is the best."""
    return Passage(f"doc{number}.md", number, text or f"text {number}", 2, 1 / (1 + number), {})


class FakeDatabase:
    """Has collections of some tenants, and the same passages in all. Calls raise their `faults`."""

    def __init__(self, *collections: Collection) -> None:
        self.collections = {(each.tenant, each.name): each for each in collections or (a_collection(),)}
        #: All passages of any collection, the best first.
        self.passages: tuple[Passage, ...] = tuple(map(a_passage, range(8)))
        self.omitted: frozenset[Half] = frozenset()
        #: The exception that a call of this name raises.
        self.faults: dict[str, RetrievalError] = {}
        self.queries: list[Query] = []

    def load(self, tenant: str = "blue", name: str = "handbook") -> None:
        """Change the documents of a collection, which then has another version."""
        before = self.collections[tenant, name]
        self.collections[tenant, name] = replace(before, version=before.version + 1)

    def collection(self, tenant: str, name: str, *, until: float | None = None) -> Collection:
        """Return a collection. Raises CollectionMissing and the fault."""
        self._fail("collection")
        if (tenant, name) not in self.collections:
            raise CollectionMissing(name)
        return self.collections[tenant, name]

    def vector_store(self, tenant: str, store_id: str, *, until: float | None = None) -> Collection:
        """Return the collection whose id as a vector store this is. Raises CollectionMissing and the fault."""
        self._fail("collection")
        found = [each for each in self.collections.values() if (each.tenant, f"vs_{each.id}") == (tenant, store_id)]
        if not found:
            raise CollectionMissing(store_id)
        return found[0]

    def check_searches(self, tenant: str) -> None:
        """Raise the fault."""
        self._fail("check_searches")

    def search(self, tenant: str, name: str, query: Query, until: float) -> Found:
        """Return the first passages. Raises the fault."""
        self.queries.append(query)
        self._fail("search")
        return Found(self.passages[: query.k], self.collections[tenant, name].version, self.omitted)

    def _fail(self, call: str) -> None:
        if call in self.faults:
            raise self.faults[call]

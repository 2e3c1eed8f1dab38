"""Collections of tests: a database object of this process, documents of short texts, and their vectors."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from shared.retrieval.database import Bounds, Database
from shared.retrieval.filters import parse_filter
from shared.retrieval.records import Found, Mode, NewChunk, NewCollection, Query

#: The length of the vectors of tests.
DIMENSIONS = 4
#: More time than any call takes on a busy machine, in seconds.
LONG_S = 60.0


@contextmanager
def a_database(url: str, *, connect_s: int = 5, **bounds: Any) -> Iterator[Database]:
    database = Database(url, replace(Bounds(), **bounds), connect_s=connect_s)
    yield database
    database.close(wait_s=10)


def vector(*numbers: float) -> tuple[float, ...]:
    """Return a vector that begins with these numbers."""
    return (*numbers, *([0.0] * (DIMENSIONS - len(numbers))))


def make(database: Database, tenant: str, name: str = "handbook", **fields: Any) -> None:
    """Create a collection with vectors of DIMENSIONS numbers."""
    values: dict[str, Any] = {"model": "small", "dimensions": DIMENSIONS} | fields
    database.create_collection(tenant, NewCollection(name, **values))


def put(
    database: Database,
    tenant: str,
    document_id: str,
    *texts: str,
    name: str = "handbook",
    vectors: Sequence[Sequence[float] | None] = (),
    metadata: Mapping[str, object] | None = None,
) -> None:
    """Load a document with a chunk for each text; without `vectors`, only their words can be found."""
    chunks = [
        NewChunk(text, len(text.split()), vectors[index] if index < len(vectors) else None)
        for index, text in enumerate(texts)
    ]
    database.put_document(tenant, name, document_id, metadata, "digest", chunks)


def find(
    database: Database,
    tenant: str,
    text: str | None = None,
    at: Sequence[float] | None = None,
    *,
    name: str = "handbook",
    k: int = 5,
    filter_: object = None,
    mode: Mode = "hybrid",
    within_s: float = LONG_S,
) -> Found:
    parsed = None if filter_ is None else parse_filter(filter_)
    return database.search(tenant, name, Query(text, at, k, parsed, mode), time.monotonic() + within_s)


def texts(found: Found) -> list[str]:
    return [passage.text for passage in found.passages]

"""Exports the collections of a tenant as JSON objects, one after the other, and imports them again.

{"collection": {"name": …, "model": …, …}}      then for each of its documents:
{"document": {"id": …, "metadata": …, "digest": …}}
{"chunks": [{"text": …, "tokens": …, "vector": […]}, …]}      as often as necessary
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from shared.retrieval.database import Database
from shared.retrieval.errors import CollectionExists, InvalidInput
from shared.retrieval.records import NewChunk, NewCollection

#: The documents and chunks that are read at once.
_PAGE = 100
_FIELDS = ("name", "model", "dimensions", "language", "chunk_tokens", "overlap_tokens")


def export_tenant(database: Database, tenant: str) -> Iterator[dict[str, Any]]:
    """Yield the collections of a tenant. A document that is changed meanwhile may be missing or incomplete."""
    for collection in database.collections(tenant):
        yield {"collection": {field: getattr(collection, field) for field in _FIELDS}}
        after = ""
        while page := database.documents(tenant, collection.name, after=after, limit=_PAGE):
            for document in page:
                yield {"document": {"id": document.id, "metadata": document.metadata, "digest": document.digest}}
                for first in range(0, document.chunks, _PAGE):
                    chunks = database.chunks(tenant, collection.name, document.id, first=first, limit=_PAGE)
                    yield {
                        "chunks": [{"text": each.text, "tokens": each.tokens, "vector": each.vector} for each in chunks]
                    }
            after = page[-1].id


def import_tenant(database: Database, tenant: str, records: Iterable[Mapping[str, Any]]) -> int:
    """Write exported collections for a tenant, and return the number of documents. Raises InvalidInput."""
    name, count = "", 0
    document: Mapping[str, Any] | None = None
    chunks: list[NewChunk] = []

    def write() -> int:
        if document is None:
            return 0
        database.put_document(tenant, name, document["id"], document["metadata"], document["digest"], chunks)
        return 1

    for number, record in enumerate(records, 1):
        try:
            if "chunks" in record:
                chunks += [
                    NewChunk(str(each["text"]), int(each["tokens"]), each["vector"]) for each in record["chunks"]
                ]
                continue
            count += write()
            document, chunks = record.get("document"), []
            if document is None:
                new = NewCollection(**record["collection"])
                name = new.name
                with suppress(CollectionExists):
                    database.create_collection(tenant, new)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"record {number}", dict(record), f"is not one of an export ({error})") from None
    return count + write()

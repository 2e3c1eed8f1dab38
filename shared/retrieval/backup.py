"""Exports the collections of a tenant as JSON objects, one after the other, and imports them again.

{"export": {"format": 1, "tenant": …}}
{"collection": {"name": …, "model": …, …}}      then for each of its documents:
{"document": {"id": …, "metadata": …, "digest": …, "chunks": NUMBER}}
{"chunks": [{"text": …, "tokens": …, "vector": […]}, …]}      as often as necessary
{"changed": ID}      the document was changed while it was read: it follows again, or was deleted
{"end": {"collections": NUMBER, "documents": NUMBER}}

Neither direction holds more than one document in memory.
"""

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shared.retrieval.database import Database
from shared.retrieval.errors import CollectionExists, CollectionMissing, IncompleteExport, InvalidInput, TooLarge
from shared.retrieval.records import MAX_DOCUMENT_CHUNKS, Document, NewChunk, NewCollection, parse_metadata

#: The format that this version writes and reads.
_FORMAT = 1
#: The documents and chunks that are read at once.
_PAGE = 100
#: How often a document is read that is changed meanwhile.
_TRIES = 10
_KINDS = frozenset({"export", "collection", "document", "chunks", "changed", "end"})
#: The fields of a collection in an export.
_FIELDS = ("name", "model", "dimensions", "language", "chunk_tokens", "overlap_tokens")
#: The fields of a collection as a vector store. Its id stays the same if the database does not have it yet.
_STORE_FIELDS = ("id", "title", "description", "labels")


def export_tenant(database: Database, tenant: str) -> Iterator[dict[str, Any]]:
    """Yield the collections of a tenant.

    Each document is as it was at one time during the export. Raises IncompleteExport if one is changed too often.
    """
    yield {"export": {"format": _FORMAT, "tenant": tenant}}
    collections, documents = database.collections(tenant), 0
    for collection in collections:
        yield {"collection": {field: getattr(collection, field) for field in (*_FIELDS, *_STORE_FIELDS)}}
        after: str | None = ""
        while after is not None:
            page = _page(database, tenant, collection.name, after)
            for document in page:
                for record in _document(database, tenant, collection.name, document):
                    documents += ("document" in record) - ("changed" in record)
                    yield record
            after = page[-1].id if page else None
    yield {"end": {"collections": len(collections), "documents": documents}}


def _page(database: Database, tenant: str, name: str, after: str) -> list[Document]:
    try:
        return database.documents(tenant, name, after=after, limit=_PAGE)
    except CollectionMissing:  # deleted meanwhile
        return []


def _document(database: Database, tenant: str, name: str, document: Document) -> Iterator[dict[str, Any]]:
    """Yield a document with its chunks, and again if it was changed meanwhile."""
    for _ in range(_TRIES):
        fields = {"id": document.id, "metadata": document.metadata, "digest": document.digest}
        fields |= {} if document.filename is None else {"filename": document.filename}
        yield {"document": fields | {"chunks": document.chunks}}
        try:
            for first in range(0, document.chunks, _PAGE):
                chunks = database.chunks(tenant, name, document.id, first=first, limit=_PAGE)
                yield {"chunks": [{"text": each.text, "tokens": each.tokens, "vector": each.vector} for each in chunks]}
            now = database.document(tenant, name, document.id)
        except CollectionMissing:
            now = None
        if now == document:
            return
        yield {"changed": document.id}
        if now is None:
            return
        document = now
    why = f"document {document.id!r} was changed each of {_TRIES} times that it was read"
    raise IncompleteExport(f"{why}; export again")


@dataclass(frozen=True, slots=True)
class Imported:
    """The numbers of collections and documents of an import. The collections had `unchanged` of them already."""

    collections: int
    documents: int
    unchanged: int


def import_tenant(database: Database, tenant: str, records: Iterable[object]) -> Imported:
    """Write exported collections for a tenant, whose collections of the same names get the documents.

    Raises InvalidInput for a record that is not one of an export, or does not fit the collection that exists, and
    IncompleteExport if the last records are missing; then the documents before are written, and the import can be
    repeated. Raises TooLarge if a bound would be exceeded.
    """
    importer = _Importer(database, tenant)
    for number, record in enumerate(records, 1):
        try:
            importer.take(record)
        except InvalidInput as error:
            raise InvalidInput(f"record {number}: {error.field}", error.value, error.why) from None
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            # The message of a missing key is its name alone.
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise InvalidInput(f"record {number}", record, f"is not one of an export ({why})") from None
    if not importer.ended:
        raise IncompleteExport("the export has no end; it was interrupted, or lines are missing")
    return Imported(importer.collections, importer.documents, importer.unchanged)


class _Importer:
    """Takes the records of an export one after the other."""

    def __init__(self, database: Database, tenant: str) -> None:
        self._database, self._tenant = database, tenant
        self.collections = self.documents = self.unchanged = 0
        self.ended = False
        self._began = False
        self._name: str | None = None
        #: The document whose chunks come now.
        self._document: Mapping[str, Any] | None = None
        self._chunks: list[NewChunk] = []

    def take(self, record: object) -> None:
        """Take the next record. Raises KeyError, TypeError and so on if it is not one of an export."""
        if not isinstance(record, Mapping) or len(record) != 1:
            raise TypeError("it has to be an object with one field")
        ((kind, value),) = record.items()
        if kind not in _KINDS:
            raise ValueError("there is no such record")
        if self.ended or self._began == (kind == "export"):
            raise ValueError("it is not in its place")
        if kind == "chunks":
            self._take_chunks(value)
        elif kind == "changed":
            self._document = None
        else:
            self._write()
            self._take(kind, value)

    def _take(self, kind: object, value: Any) -> None:
        match kind:
            case "export":
                if value["format"] != _FORMAT:
                    raise ValueError(f"this version reads format {_FORMAT}")
                self._began = True
            case "collection":
                self._take_collection(NewCollection(**value))
            case "document":
                self._document = {
                    "id": value["id"],
                    "metadata": parse_metadata(value["metadata"]),
                    "digest": str(value["digest"]),
                    "chunks": int(value["chunks"]),
                    "filename": None if value.get("filename") is None else str(value["filename"]),
                }
                self._chunks = []
            case _:
                self.ended = True
                if (value["collections"], value["documents"]) != (self.collections, self.documents):
                    raise IncompleteExport(
                        f"the export had {value['collections']} collections and {value['documents']} documents, and "
                        f"{self.collections} and {self.documents} were read; lines are missing"
                    )

    def _take_collection(self, new: NewCollection) -> None:
        if new.name is None:
            raise KeyError("name")
        try:
            self._database.create_collection(self._tenant, new)
        except CollectionExists:
            existing = self._database.collection(self._tenant, new.name)
            for field in _FIELDS:
                value, present = getattr(new, field), getattr(existing, field)
                if value != present:
                    why = f"the tenant has a collection {new.name!r} with {present!r}"
                    raise InvalidInput(f"collection.{field}", value, why) from None
        self._name = new.name
        self.collections += 1

    def _take_chunks(self, value: Any) -> None:
        if self._document is None:
            raise ValueError("it is not in its place")
        for each in value:
            vector = each["vector"]
            # Numbers of four bytes, which are as exact as the database's.
            numbers = None if vector is None else array("f", vector)
            self._chunks.append(NewChunk(str(each["text"]), int(each["tokens"]), numbers))
        if len(self._chunks) > MAX_DOCUMENT_CHUNKS:
            raise TooLarge(f"the document has {len(self._chunks)} chunks, more than {MAX_DOCUMENT_CHUNKS}")

    def _write(self) -> None:
        """Write the document whose chunks are complete, unless the collection has the same one."""
        document, chunks = self._document, self._chunks
        self._document, self._chunks = None, []
        if document is None:
            return
        if self._name is None or len(chunks) != document["chunks"]:
            raise ValueError(f"document {document['id']!r} before it has {len(chunks)} of {document['chunks']} chunks")
        present = self._database.document(self._tenant, self._name, document["id"])
        self.documents += 1
        if present is not None and _is_same(present, document):
            self.unchanged += 1
            return
        self._database.put_document(
            self._tenant,
            self._name,
            document["id"],
            document["metadata"],
            document["digest"],
            chunks,
            filename=document["filename"],
        )


def _is_same(present: Document, document: Mapping[str, Any]) -> bool:
    # As texts of JSON, because 1, 1.0 and true are equal in Python. Without a name, the one that is there is kept.
    one, other = (json.dumps(dict(each), sort_keys=True) for each in (present.metadata, document["metadata"]))
    is_named = document["filename"] in {None, present.filename}
    return is_named and (one, present.digest, present.chunks) == (other, document["digest"], document["chunks"])

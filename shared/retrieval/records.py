"""Collections, documents, chunks and passages as plain values, with the bounds on what clients send."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from shared.retrieval.errors import InvalidInput, TooLarge
from shared.retrieval.filters import Filter, finite_number

#: The longest name of a collection, and the longest id of a document, in characters.
MAX_NAME, MAX_DOCUMENT_ID = 128, 256
#: The most keys of a document's metadata, the longest key and text, in characters, and the most texts of a list.
MAX_KEYS, MAX_KEY, MAX_TEXT, MAX_LIST = 16, 64, 512, 32
#: The most keys and values of a document's metadata together, as bytes of JSON: each chunk has a copy of them.
MAX_METADATA_BYTES = 16_384
#: The most numbers of a vector: pgvector's indexes hold no more. The largest number is that of half the precision, with
#: which long vectors are indexed.
MAX_DIMENSIONS, MAX_VECTOR_NUMBER = 4_000, 65_504.0
#: The longest chunk, in characters, and the most chunks of one document.
MAX_CHUNK_TEXT, MAX_DOCUMENT_CHUNKS = 65_536, 20_000
#: The most passages of one search.
MAX_PASSAGES = 50
#: The ids of vector stores begin with this; the id of the collection follows.
STORE_PREFIX = "vs_"
#: The longest query, in characters.
MAX_QUERY_TEXT = 8_192
#: The languages whose words PostgreSQL can reduce to stems; `simple` only makes them lower case.
LANGUAGES = (
    *("simple", "arabic", "armenian", "basque", "catalan", "danish", "dutch", "english", "finnish", "french", "german"),
    *("greek", "hindi", "hungarian", "indonesian", "irish", "italian", "lithuanian", "nepali", "norwegian"),
    *("portuguese", "romanian", "russian", "serbian", "spanish", "swedish", "tamil", "turkish", "yiddish"),
)

MetadataValue = str | float | bool | Sequence[str]
Metadata = Mapping[str, MetadataValue]
Mode = Literal["hybrid", "vector", "words"]
#: The two halves of a hybrid search.
Half = Literal["vector", "words"]
#: The parts of a search that may be left out.
Part = Literal["vector", "words", "rerank"]

#: Characters that PostgreSQL cannot store, or that no other program could show.
_NOT_STORED = re.compile("[\0\ud800-\udfff]")
_CONTROL = re.compile("[\0-\x1f\x7f\ud800-\udfff]")
#: The ids of collections.
_ID = re.compile("[0-9a-f]{1,40}")
#: The longest run of characters without a space in which PostgreSQL looks for words.
_LONG_RUN = re.compile(r"(\S{128})(?=\S)")


@dataclass(frozen=True, slots=True)
class NewCollection:
    """A collection to create.

    `model` makes its vectors, which have `dimensions` numbers; without a model only words are searched. A chunk
    has at most `chunk_tokens` tokens, and its first `overlap_tokens` repeat the end of the chunk before it. Without a
    name, it is named by its id as a vector store, whose `title`, `description` and `labels` are texts for its clients.
    Raises InvalidInput.
    """

    name: str | None
    model: str | None
    dimensions: int | None
    language: str = "english"
    chunk_tokens: int = 200
    overlap_tokens: int = 40
    title: str | None = None
    description: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    #: The id of an exported collection, which it keeps unless the database has another collection with it.
    id: str | None = None

    def __post_init__(self) -> None:
        if self.id is not None and not _ID.fullmatch(self.id):
            raise InvalidInput("id", self.id, "must be an id of a collection")
        if self.name is not None:
            check_name("name", self.name, MAX_NAME)
        if (self.model is None) != (self.dimensions is None):
            raise InvalidInput("dimensions", self.dimensions, "a model and its dimensions belong together")
        if self.dimensions is not None:
            _check_number("dimensions", self.dimensions, 1, MAX_DIMENSIONS)
        if self.language not in LANGUAGES:
            raise InvalidInput("language", self.language, f"must be one of {', '.join(LANGUAGES)}")
        _check_number("chunk_tokens", self.chunk_tokens, 16, 4_096)
        _check_number("overlap_tokens", self.overlap_tokens, 0, self.chunk_tokens // 2)


@dataclass(frozen=True, slots=True)
class Collection:
    """A tenant's collection.

    `id` is never used again. `version` grows with every change of a document. `created_ms` and `loaded_ms` (of the last
    change) are Unix times. `title`, `description` and `labels` are those of the vector store that the collection is.
    """

    tenant: str
    name: str
    id: str
    model: str | None
    dimensions: int | None
    language: str
    chunk_tokens: int
    overlap_tokens: int
    version: int
    documents: int
    chunks: int
    text_bytes: int
    created_ms: int
    loaded_ms: int | None
    title: str | None = None
    description: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def store_id(self) -> str:
        """The id of the collection as a vector store."""
        return STORE_PREFIX + self.id


@dataclass(frozen=True, slots=True)
class NewChunk:
    """A piece of a document, with its tokens by the collection's model. Without a vector only its words are found."""

    text: str
    tokens: int
    vector: Sequence[float] | None


@dataclass(frozen=True, slots=True)
class Document:
    """A document of a collection. `digest` is that of its contents, so that an equal one need not be loaded again."""

    id: str
    metadata: Metadata
    digest: str
    text_bytes: int
    chunks: int
    loaded_ms: int
    #: The name of the file of a vector store from which it was loaded.
    filename: str | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """A search for the `k` best passages by `text`, by `vector` or by both, among those that pass the filter."""

    text: str | None
    vector: Sequence[float] | None
    k: int
    filter: Filter | None = None
    mode: Mode = "hybrid"

    def __post_init__(self) -> None:
        _check_number("k", self.k, 1, MAX_PASSAGES)
        if self.mode not in {"hybrid", "vector", "words"}:
            raise InvalidInput("mode", self.mode, "must be hybrid, vector or words")
        if self.text is not None and len(self.text) > MAX_QUERY_TEXT:
            raise InvalidInput("query", self.text, f"has {len(self.text)} characters, more than {MAX_QUERY_TEXT}")

    @property
    def halves(self) -> tuple[Half, ...]:
        """Return the halves that this query searches: a hybrid query without a vector searches words only."""
        wanted: tuple[Half, ...] = ("vector", "words") if self.mode == "hybrid" else (self.mode,)
        given = {"vector": self.vector is not None, "words": bool(self.text and self.text.strip())}
        return tuple(half for half in wanted if given[half])


@dataclass(frozen=True, slots=True)
class Passage:
    """A chunk that was found. `score` is from 0 to 1 and comparable within one answer only."""

    document_id: str
    ordinal: int
    text: str
    tokens: int
    score: float
    metadata: Metadata
    #: The name of the document's file, if it was loaded from one of a vector store.
    filename: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The passages of a search, best first, and the collection's version.

    `omitted` names the parts that the query asked for and that were left out: there was no time left for them.
    """

    passages: tuple[Passage, ...]
    version: int
    omitted: frozenset[Part] = frozenset()


def check_name(field: str, value: object, longest: int) -> str:
    """Return a name or id that a client chose. Raises InvalidInput."""
    if not isinstance(value, str) or not 1 <= len(value) <= longest:
        raise InvalidInput(field, value, f"must be a text of 1 to {longest} characters")
    if _CONTROL.search(value) or value != value.strip():
        raise InvalidInput(field, value, "must not contain control characters, or spaces at its ends")
    return value


def parse_metadata(value: object, path: str = "metadata") -> Metadata:
    """Return the metadata of a document, lists as tuples. Raises InvalidInput."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInput(path, value, "must be an object")
    if len(value) > MAX_KEYS:
        raise InvalidInput(path, f"{len(value)} keys", f"may have at most {MAX_KEYS} keys")
    metadata = {check_name(f"{path} key", key, MAX_KEY): _metadata_value(f"{path}.{key}", value[key]) for key in value}
    size = len(json.dumps(metadata, ensure_ascii=False).encode())
    if size > MAX_METADATA_BYTES:
        raise InvalidInput(path, f"{size} bytes", f"may have at most {MAX_METADATA_BYTES} bytes as JSON")
    return metadata


def check_chunks(chunks: Sequence[NewChunk], dimensions: int | None) -> None:
    """Raise TooLarge or InvalidInput if a document with these chunks cannot be kept in a collection."""
    if len(chunks) > MAX_DOCUMENT_CHUNKS:
        raise TooLarge(f"the document has {len(chunks)} chunks, more than {MAX_DOCUMENT_CHUNKS}")
    for ordinal, chunk in enumerate(chunks):
        if len(chunk.text) > MAX_CHUNK_TEXT:
            raise TooLarge(f"chunk {ordinal} has {len(chunk.text)} characters, more than {MAX_CHUNK_TEXT}")
        if chunk.vector is not None:
            check_vector(chunk.vector, dimensions, f"chunks[{ordinal}].vector")


def check_vector(vector: Sequence[float], dimensions: int | None, field: str = "vector") -> None:
    """Raise InvalidInput if a vector does not fit a collection whose vectors have `dimensions` numbers."""
    if len(vector) != dimensions:
        expected = "has no model and so no vectors" if dimensions is None else f"has vectors of {dimensions}"
        raise InvalidInput(field, f"{len(vector)} numbers", f"the collection {expected}")
    # No number is at most another one if it is not a number.
    if not all(-MAX_VECTOR_NUMBER <= number <= MAX_VECTOR_NUMBER for number in vector):
        wrong = next(number for number in vector if not abs(number) <= MAX_VECTOR_NUMBER)
        raise InvalidInput(field, wrong, f"must have finite numbers only, of at most {MAX_VECTOR_NUMBER:g}")


def storable(text: str) -> str:
    """Return a text with each character that PostgreSQL cannot store replaced by U+FFFD."""
    return _NOT_STORED.sub("\N{REPLACEMENT CHARACTER}", text)


def with_short_runs(text: str) -> str:
    """Return a text in which PostgreSQL finds words in linear time, by a space in each long run of characters.

    Its parser looks ahead to the end of a run from each place at which an address or the name of a file may begin:
    8,192 characters of `a_a_a_` took 2 s.
    """
    return _LONG_RUN.sub(r"\1 ", text)


def _metadata_value(field: str, value: object) -> MetadataValue:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _metadata_text(field, value)
    if isinstance(value, int | float):
        number = finite_number(field, value)
        # A whole number stays one, as far as a float represents it exactly.
        return value if abs(number) <= 2**53 else number
    if isinstance(value, list | tuple):
        if len(value) > MAX_LIST:
            raise InvalidInput(field, f"{len(value)} texts", f"a list may have at most {MAX_LIST} texts")
        return tuple(_metadata_text(f"{field}[{index}]", text) for index, text in enumerate(value))
    raise InvalidInput(field, value, "must be a text, a number, a boolean or a list of texts")


def _metadata_text(field: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT or _NOT_STORED.search(value):
        raise InvalidInput(field, value, f"must be a text of at most {MAX_TEXT} characters, without NUL")
    return value


def _check_number(field: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidInput(field, value, f"must be a whole number from {least} to {most}")

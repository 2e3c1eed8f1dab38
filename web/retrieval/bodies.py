"""The bodies of the requests for collections, and collections, documents and passages as JSON; pure functions."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from shared.retrieval.errors import InvalidInput
from shared.retrieval.records import (
    LANGUAGES,
    MAX_DIMENSIONS,
    MAX_KEY,
    MAX_KEYS,
    MAX_LIST,
    MAX_PASSAGES,
    MAX_QUERY_TEXT,
    MAX_TEXT,
    Collection,
    Document,
    Found,
    parse_metadata,
)
from web.api.body import Body, NulFreeText
from web.api.retrieval_field import Rerank
from web.http.api_errors import quoted

#: The longest time for a search, and the usual one, in ms.
MAX_BUDGET_MS, DEFAULT_BUDGET_MS = 60_000, 1_000

_TEXT = {"type": "string", "maxLength": MAX_TEXT}
#: The schema of a value in metadata.
_VALUE: dict[str, Any] = {
    "anyOf": [_TEXT, {"type": "number"}, {"type": "boolean"}, {"type": "array", "items": _TEXT, "maxItems": MAX_LIST}]
}


def _check_metadata(value: dict[str, Any]) -> dict[str, Any]:
    try:
        return dict(parse_metadata(value))
    except InvalidInput as error:
        raise ValueError(str(error)) from None


def _check_language(value: str) -> str:
    if value not in LANGUAGES:
        raise ValueError(f"language={quoted(value)} is not one of {', '.join(LANGUAGES)}")
    return value


DocumentMetadata = Annotated[
    dict[str, Any],
    AfterValidator(_check_metadata),
    Field(
        json_schema_extra={
            "propertyNames": {"minLength": 1, "maxLength": MAX_KEY},
            "maxProperties": MAX_KEYS,
            "additionalProperties": _VALUE,
        },
        description="texts, numbers, true or false, or lists of texts, by name: filters compare them",
    ),
]
Language = Annotated[str, AfterValidator(_check_language), Field(json_schema_extra={"enum": list(LANGUAGES)})]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class CollectionBody(Body):
    """The body of `POST /v1/collections`."""

    name: Name
    model: Annotated[NulFreeText, Field(min_length=1, max_length=200)] | None = Field(
        None, description="the embedding model; null: words alone are searched; the default is PENSTOCK_EMBEDDING_MODEL"
    )
    dimensions: int | None = Field(None, ge=1, le=MAX_DIMENSIONS, description="must be those of the model")
    language: Language = Field("english", description="decides the stems of words")
    chunk_tokens: int = Field(200, ge=16, le=4_096, description="the most tokens of a chunk")
    overlap_tokens: int = Field(40, ge=0, le=1_024, description="about as many tokens are in the next chunk too")

    @property
    def names_model(self) -> bool:
        """Whether the client has named a model, or null for none."""
        return "model" in self.model_fields_set


class DocumentFields(Body):
    """The fields of a document besides its text."""

    metadata: DocumentMetadata = Field(default={})


class DocumentBody(DocumentFields):
    """The JSON body of `PUT /v1/collections/{name}/documents/{id}`."""

    text: NulFreeText


class SearchBody(Body):
    """The body of `POST /v1/collections/{name}/search`."""

    query: Annotated[NulFreeText, Field(min_length=1, max_length=MAX_QUERY_TEXT)]
    k: int = Field(6, ge=1, le=MAX_PASSAGES, description="the most passages to return")
    filter: dict[str, Any] | None = Field(
        None, description='comparisons of metadata, such as {"type": "eq", "key": "team", "value": "blue"}'
    )
    mode: Literal["hybrid", "vector", "words"] = "hybrid"
    budget_ms: int = Field(
        DEFAULT_BUDGET_MS,
        ge=1,
        le=MAX_BUDGET_MS,
        description="what is not found by then is left out, and `omitted` says so",
    )
    rerank: Rerank | None = Field(
        default=None,
        description="a model that orders what was found, in what is left of `budget_ms`",
    )
    private: bool = Field(
        default=False, description="true: only pools marked as local get the query and, with `rerank`, the passages"
    )


def collection_json(collection: Collection) -> dict[str, Any]:
    """Return a collection as JSON."""
    return {
        "object": "collection",
        "name": collection.name,
        "vector_store_id": collection.store_id,
        "title": collection.title,
        "model": collection.model,
        "dimensions": collection.dimensions,
        "language": collection.language,
        "chunk_tokens": collection.chunk_tokens,
        "overlap_tokens": collection.overlap_tokens,
        "documents": collection.documents,
        "chunks": collection.chunks,
        "text_bytes": collection.text_bytes,
        "version": collection.version,
        "created_at": collection.created_ms / 1000,
        "loaded_at": None if collection.loaded_ms is None else collection.loaded_ms / 1000,
    }


def document_json(document: Document) -> dict[str, Any]:
    """Return a document as JSON, without its text."""
    return {
        "object": "collection.document",
        "id": document.id,
        "metadata": dict(document.metadata),
        "text_bytes": document.text_bytes,
        "chunks": document.chunks,
        "digest": document.digest,
        "loaded_at": document.loaded_ms / 1000,
    }


def found_json(found: Found, took_ms: int) -> dict[str, Any]:
    """Return the passages of a search as JSON, the best first."""
    return {
        "object": "list",
        "data": [
            {
                "document_id": passage.document_id,
                "ordinal": passage.ordinal,
                "text": passage.text,
                "tokens": passage.tokens,
                "score": passage.score,
                "metadata": dict(passage.metadata),
            }
            for passage in found.passages
        ],
        "omitted": sorted(found.omitted),
        "version": found.version,
        "took_ms": took_ms,
    }

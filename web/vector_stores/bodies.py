"""The bodies of the requests for vector stores; pure functions."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from shared.retrieval.errors import InvalidInput
from shared.retrieval.records import MAX_KEY, MAX_KEYS, MAX_PASSAGES, MAX_QUERY_TEXT, MAX_TEXT, parse_metadata
from web.api.body import Body, NotesIgnored, NulFreeText, check_sizes, ignored_as
from web.http.api_errors import quoted

#: The most files that one request adds, and the most queries of one search.
MAX_FILES, MAX_QUERIES = 2_000, 8
_MAX_NAME, _MAX_DESCRIPTION, _MAX_ID = 256, 512, 100

_VALUE: dict[str, Any] = {"anyOf": [{"type": "string", "maxLength": MAX_TEXT}, {"type": "number"}, {"type": "boolean"}]}


def _check_attributes(value: dict[str, Any]) -> dict[str, Any]:
    for key, each in value.items():
        if isinstance(each, list | tuple | dict) or each is None:
            raise ValueError(f"attributes[{key[:60]!r}] must be a text, a number or a boolean")
    try:
        return dict(parse_metadata(value, "attributes"))
    except InvalidInput as error:
        raise ValueError(str(error)) from None


def _check_query(value: Any) -> str | list[str]:
    texts = value if isinstance(value, list) else [value]
    if not 1 <= len(texts) <= MAX_QUERIES:
        raise ValueError(f"query has {len(texts)} texts; send 1 to {MAX_QUERIES}")
    for text in texts:
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_QUERY_TEXT or "\0" in text:
            raise ValueError(f"query={quoted(text)} is no text of 1 to {MAX_QUERY_TEXT} characters without NUL")
    return value  # type: ignore[no-any-return]  # checked above


_QUERY_TEXT = {"type": "string", "minLength": 1, "maxLength": MAX_QUERY_TEXT, "pattern": r"^[^\u0000]*$"}
Query = Annotated[
    Any,
    AfterValidator(_check_query),
    Field(
        json_schema_extra={
            "anyOf": [
                _QUERY_TEXT,
                {"type": "array", "items": _QUERY_TEXT, "minItems": 1, "maxItems": MAX_QUERIES},
            ]
        },
        description="a text, or several, whose chunks are joined by their ranks",
    ),
]
Attributes = Annotated[
    dict[str, Any],
    AfterValidator(_check_attributes),
    Field(
        json_schema_extra={
            "propertyNames": {"minLength": 1, "maxLength": MAX_KEY},
            "maxProperties": MAX_KEYS,
            "additionalProperties": _VALUE,
        },
        description="texts, numbers, true or false by name: filters compare them",
    ),
]
_Key = Annotated[NulFreeText, Field(min_length=1, max_length=64)]
_Text = Annotated[NulFreeText, Field(max_length=512)]
Labels = Annotated[dict[_Key, _Text], Field(max_length=16)]
FileId = Annotated[NulFreeText, Field(min_length=1, max_length=_MAX_ID)]
StoreName = Annotated[NulFreeText, Field(max_length=_MAX_NAME)]


class _StoreBody(Body):
    """A body whose long lists are refused before their items are validated."""

    sizes: ClassVar[Mapping[str, int]] = {}

    @model_validator(mode="before")
    @classmethod
    def _check_sizes(cls, value: Any) -> Any:
        check_sizes(value, cls.sizes)
        return value


class ChunkSizes(Body):
    """The sizes of chunks, in tokens of the embedding model."""

    max_chunk_size_tokens: int = Field(ge=100, le=4_096)
    chunk_overlap_tokens: int = Field(ge=0, le=2_048, description="at most half of max_chunk_size_tokens")

    @model_validator(mode="after")
    def _check_overlap(self) -> "ChunkSizes":
        if self.chunk_overlap_tokens > self.max_chunk_size_tokens // 2:
            raise ValueError(
                f"chunk_overlap_tokens={self.chunk_overlap_tokens} is more than half of "
                f"max_chunk_size_tokens={self.max_chunk_size_tokens}"
            )
        return self


class ChunkingStrategy(Body):
    """How files are divided: as the collection says (`auto`), or into chunks of these sizes (`static`)."""

    type: Literal["auto", "static"]
    static: ChunkSizes | None = Field(None, description="is required with the type static")

    @model_validator(mode="after")
    def _check_static(self) -> "ChunkingStrategy":
        if (self.type == "static") != (self.static is not None):
            given = "is missing" if self.static is None else "is there"
            raise ValueError(f"type={self.type!r}, and static {given}: it belongs to the type static")
        return self


class CreateStoreBody(_StoreBody):
    """The body of `POST /v1/vector_stores`."""

    sizes: ClassVar[Mapping[str, int]] = {"file_ids": MAX_FILES, "metadata": 16}

    name: StoreName | None = None
    description: Annotated[NulFreeText, Field(max_length=_MAX_DESCRIPTION)] | None = None
    file_ids: list[FileId] = Field(default=[], max_length=MAX_FILES)
    chunking_strategy: ChunkingStrategy | None = None
    metadata: Labels | None = None
    expires_after: dict[str, Any] | None = Field(None, description="is refused: vector stores stay until deleted")


class ChangeStoreBody(_StoreBody):
    """The body of `POST /v1/vector_stores/{vector_store_id}`; fields that are not sent stay."""

    sizes: ClassVar[Mapping[str, int]] = {"metadata": 16}

    name: StoreName | None = None
    metadata: Labels | None = None
    expires_after: dict[str, Any] | None = Field(None, description="is refused: vector stores stay until deleted")


class AddFileBody(_StoreBody):
    """The body of `POST /v1/vector_stores/{vector_store_id}/files`, and a file of a batch."""

    sizes: ClassVar[Mapping[str, int]] = {"attributes": MAX_KEYS}

    file_id: FileId
    attributes: Attributes | None = None
    chunking_strategy: ChunkingStrategy | None = None


class ChangeFileBody(_StoreBody):
    """The body of `POST /v1/vector_stores/{vector_store_id}/files/{file_id}`."""

    sizes: ClassVar[Mapping[str, int]] = {"attributes": MAX_KEYS}

    attributes: Attributes | None


class FileBatchBody(_StoreBody):
    """The body of `POST /v1/vector_stores/{vector_store_id}/file_batches`: `file_ids` or `files`."""

    sizes: ClassVar[Mapping[str, int]] = {"file_ids": MAX_FILES, "files": MAX_FILES, "attributes": MAX_KEYS}

    file_ids: list[FileId] | None = Field(None, min_length=1, max_length=MAX_FILES)
    files: list[AddFileBody] | None = Field(None, min_length=1, max_length=MAX_FILES)
    attributes: Attributes | None = None
    chunking_strategy: ChunkingStrategy | None = None

    @model_validator(mode="after")
    def _check_files(self) -> "FileBatchBody":
        if (self.file_ids is None) == (self.files is None):
            raise ValueError("send either file_ids or files")
        if self.files is not None and (self.attributes is not None or self.chunking_strategy is not None):
            raise ValueError("with files, attributes and chunking_strategy belong to each file")
        return self

    @property
    def all_files(self) -> list[AddFileBody]:
        """The files, each with its attributes."""
        if self.files is not None:
            return self.files
        attributes, strategy = self.attributes, self.chunking_strategy
        return [
            AddFileBody.model_construct(file_id=file_id, attributes=attributes, chunking_strategy=strategy)
            for file_id in self.file_ids or ()
        ]


class RankingOptions(Body):
    """How the found chunks are ranked and left out."""

    ranker: Annotated[Literal["none", "auto", "default-2024-11-15"] | None, ignored_as("ranking_options.ranker")] = (
        Field(None, description="has no effect: chunks have the order of the collection's search")
    )
    score_threshold: float = Field(0.0, ge=0, le=1, strict=False, description="chunks with lower scores are left out")


class SearchStoreBody(_StoreBody, NotesIgnored):
    """The body of `POST /v1/vector_stores/{vector_store_id}/search`."""

    sizes: ClassVar[Mapping[str, int]] = {"query": MAX_QUERIES}

    query: Query
    max_num_results: int = Field(10, ge=1, le=MAX_PASSAGES)
    filters: dict[str, Any] | None = Field(
        None, description='comparisons of attributes, such as {"type": "eq", "key": "team", "value": "blue"}'
    )
    ranking_options: RankingOptions | None = None
    rewrite_query: bool = Field(default=False, description="true is refused: queries are searched as they are")

    @property
    def queries(self) -> list[str]:
        """The queries."""
        return [self.query] if isinstance(self.query, str) else list(self.query)

    @property
    def least_score(self) -> float:
        """The least score of a chunk that is returned."""
        return 0.0 if self.ranking_options is None else self.ranking_options.score_threshold

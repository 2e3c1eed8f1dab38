"""Models of the response bodies of vector stores, as those in web/openapi/response_models.py."""

from typing import Literal

from pydantic import Field

from web.openapi.compatible_models import Page
from web.openapi.response_models import ResponseModel


class FileCounts(ResponseModel):
    """How many files are in each state."""

    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int


class VectorStore(ResponseModel):
    """A collection as a vector store; times are in seconds since the epoch."""

    id: str
    object: Literal["vector_store"]
    created_at: int
    name: str
    description: str | None
    usage_bytes: int = Field(description="the bytes of text in the collection")
    file_counts: FileCounts
    status: Literal["in_progress", "completed"]
    expires_after: None
    expires_at: None
    last_active_at: int = Field(description="when a file was last loaded, or the store was created")
    metadata: dict[str, str]


class VectorStoreList(Page):
    """One page of vector stores."""

    data: list[VectorStore]


class VectorStoreDeleted(ResponseModel):
    """The answer to the deletion of a vector store."""

    id: str
    object: Literal["vector_store.deleted"]
    deleted: Literal[True]


class LoadError(ResponseModel):
    """Why a file cannot be loaded."""

    code: Literal["server_error", "unsupported_file", "invalid_file"]
    message: str


class StaticSizes(ResponseModel):
    """The sizes of chunks, in tokens."""

    max_chunk_size_tokens: int
    chunk_overlap_tokens: int


class StaticStrategy(ResponseModel):
    """How a file is divided."""

    type: Literal["static"]
    static: StaticSizes


class VectorStoreFile(ResponseModel):
    """A document of a collection as a file of a vector store."""

    id: str
    object: Literal["vector_store.file"]
    created_at: int
    vector_store_id: str
    status: Literal["in_progress", "completed", "failed", "cancelled"]
    last_error: LoadError | None
    usage_bytes: int
    chunking_strategy: StaticStrategy
    attributes: dict[str, str | float | bool]


class VectorStoreFileList(Page):
    """One page of the files of a vector store."""

    data: list[VectorStoreFile]


class VectorStoreFileDeleted(ResponseModel):
    """The answer to the removal of a file from a vector store."""

    id: str
    object: Literal["vector_store.file.deleted"]
    deleted: Literal[True]


class VectorStoreFileBatch(ResponseModel):
    """Files that one request has added to a vector store."""

    id: str
    object: Literal["vector_store.files_batch"]
    created_at: int
    vector_store_id: str
    status: Literal["in_progress", "completed", "failed", "cancelled"]
    file_counts: FileCounts


class VectorStoreText(ResponseModel):
    """A text of a file."""

    type: Literal["text"]
    text: str


class VectorStoreFileContent(ResponseModel):
    """The chunks of a file, in their order."""

    object: Literal["vector_store.file_content.page"]
    data: list[VectorStoreText]
    has_more: Literal[False]
    next_page: None


class VectorStoreHit(ResponseModel):
    """A chunk that was found."""

    file_id: str
    filename: str
    score: float
    attributes: dict[str, str | float | bool]
    content: list[VectorStoreText]


class VectorStoreFound(ResponseModel):
    """The chunks that were found, the best first."""

    object: Literal["vector_store.search_results.page"]
    search_query: list[str]
    data: list[VectorStoreHit]
    has_more: Literal[False]
    next_page: None
    omitted: list[Literal["vector", "words"]] = Field(
        description="the halves of the search that were not searched in time"
    )


#: The model of each route's JSON response with a 2xx status.
SUCCESS_MODELS: dict[tuple[str, str], type[ResponseModel]] = {
    ("post", "/v1/vector_stores"): VectorStore,
    ("get", "/v1/vector_stores"): VectorStoreList,
    ("get", "/v1/vector_stores/{store_id}"): VectorStore,
    ("post", "/v1/vector_stores/{store_id}"): VectorStore,
    ("delete", "/v1/vector_stores/{store_id}"): VectorStoreDeleted,
    ("post", "/v1/vector_stores/{store_id}/search"): VectorStoreFound,
    ("post", "/v1/vector_stores/{store_id}/files"): VectorStoreFile,
    ("get", "/v1/vector_stores/{store_id}/files"): VectorStoreFileList,
    ("get", "/v1/vector_stores/{store_id}/files/{file_id}"): VectorStoreFile,
    ("post", "/v1/vector_stores/{store_id}/files/{file_id}"): VectorStoreFile,
    ("delete", "/v1/vector_stores/{store_id}/files/{file_id}"): VectorStoreFileDeleted,
    ("get", "/v1/vector_stores/{store_id}/files/{file_id}/content"): VectorStoreFileContent,
    ("post", "/v1/vector_stores/{store_id}/file_batches"): VectorStoreFileBatch,
    ("get", "/v1/vector_stores/{store_id}/file_batches/{batch_id}"): VectorStoreFileBatch,
    ("post", "/v1/vector_stores/{store_id}/file_batches/{batch_id}/cancel"): VectorStoreFileBatch,
    ("get", "/v1/vector_stores/{store_id}/file_batches/{batch_id}/files"): VectorStoreFileList,
}

"""Vector stores, their files and what a search has found as OpenAI's JSON objects; pure functions."""

from collections.abc import Sequence
from typing import Any

from shared.retrieval.file_records import FileBatch, FileCounts, StoreFile
from shared.retrieval.records import Collection, Metadata, Part, Passage


def store_json(collection: Collection, counts: FileCounts) -> dict[str, Any]:
    """Return a collection as a vector store."""
    last_ms = collection.created_ms if collection.loaded_ms is None else collection.loaded_ms
    return {
        "id": collection.store_id,
        "object": "vector_store",
        "created_at": collection.created_ms // 1000,
        "name": collection.name if collection.title is None else collection.title,
        "description": collection.description,
        "usage_bytes": collection.text_bytes,
        "file_counts": counts_json(counts),
        "status": "in_progress" if counts.in_progress else "completed",
        "expires_after": None,
        "expires_at": None,
        "last_active_at": last_ms // 1000,
        "metadata": dict(collection.labels),
    }


def counts_json(counts: FileCounts) -> dict[str, int]:
    """Return how many files are in each state."""
    return {
        "in_progress": counts.in_progress,
        "completed": counts.completed,
        "failed": counts.failed,
        "cancelled": counts.cancelled,
        "total": counts.total,
    }


def file_json(collection: Collection, file: StoreFile) -> dict[str, Any]:
    """Return a document of a collection as a file of a vector store."""
    size = collection.chunk_tokens if file.chunk_tokens is None else file.chunk_tokens
    overlap = collection.overlap_tokens if file.overlap_tokens is None else file.overlap_tokens
    error = None if file.error_code is None else {"code": file.error_code, "message": file.error or ""}
    return {
        "id": file.id,
        "object": "vector_store.file",
        "created_at": file.added_ms // 1000,
        "vector_store_id": collection.store_id,
        "status": file.state,
        "last_error": error,
        "usage_bytes": file.text_bytes,
        "chunking_strategy": {
            "type": "static",
            "static": {"max_chunk_size_tokens": size, "chunk_overlap_tokens": overlap},
        },
        "attributes": attributes_json(file.metadata),
    }


def batch_json(collection: Collection, batch: FileBatch) -> dict[str, Any]:
    """Return a batch of files. It has failed if all its files have."""
    counts = batch.counts
    status = "completed"
    if counts.in_progress:
        status = "in_progress"
    elif counts.cancelled:
        status = "cancelled"
    elif counts.failed == counts.total:
        status = "failed"
    return {
        "id": batch.id,
        "object": "vector_store.files_batch",
        "created_at": batch.created_ms // 1000,
        "vector_store_id": collection.store_id,
        "status": status,
        "file_counts": counts_json(counts),
    }


def found_json(queries: Sequence[str], passages: Sequence[Passage], omitted: Sequence[Part]) -> dict[str, Any]:
    """Return the passages that were found for queries, the best first, and the halves that were not searched."""
    return {
        "object": "vector_store.search_results.page",
        "search_query": list(queries),
        "data": [
            {
                "file_id": passage.document_id,
                "filename": passage.filename or passage.document_id,
                "score": passage.score,
                "attributes": attributes_json(passage.metadata),
                "content": [{"type": "text", "text": passage.text}],
            }
            for passage in passages
        ],
        "has_more": False,
        "next_page": None,
        "omitted": list(omitted),
    }


def attributes_json(metadata: Metadata) -> dict[str, str | float | bool]:
    """Return metadata as attributes: a list of texts, which other routes accept, as one text."""
    return {key: value if isinstance(value, str | int | float) else ", ".join(value) for key, value in metadata.items()}

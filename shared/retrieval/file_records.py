"""Files of vector stores, pages of lists, and loads that a door has claimed, as plain values."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Self

from shared.retrieval.records import Metadata

FileState = Literal["in_progress", "completed", "failed", "cancelled"]
FILE_STATES: tuple[FileState, ...] = ("in_progress", "completed", "failed", "cancelled")
#: The codes of errors of loads, which are those of OpenAI's API.
ErrorCode = Literal["server_error", "unsupported_file", "invalid_file"]


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file to load. Without `chunk_tokens` and `overlap_tokens`, it is divided as the collection says."""

    id: str
    filename: str
    metadata: Metadata
    chunk_tokens: int | None = None
    overlap_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class StoreFile:
    """A document of a collection as a file of a vector store. `filename` is None if it was loaded by other routes."""

    id: str
    filename: str | None
    metadata: Metadata
    state: FileState
    error_code: ErrorCode | None
    error: str | None
    text_bytes: int
    added_ms: int
    chunk_tokens: int | None
    overlap_tokens: int | None


@dataclass(frozen=True, slots=True)
class FileCounts:
    """How many files are in each state."""

    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def total(self) -> int:
        """The number of all files."""
        return self.in_progress + self.completed + self.failed + self.cancelled

    @classmethod
    def of(cls, states: Iterable[tuple[str, int]]) -> Self:
        """Return the counts of these states; others are passed over."""
        return cls(**{state: count for state, count in states if state in FILE_STATES})


@dataclass(frozen=True, slots=True)
class FileBatch:
    """The files that one request has added to a vector store, as far as no later one has added them again."""

    id: str
    created_ms: int
    counts: FileCounts


@dataclass(frozen=True, slots=True)
class FileLoad:
    """A file that this process loads until its claim ends. `attempts` counts the claims, with this one.

    `model` is the embedding model of its collection, None if that has none. `waited_s` is how long ago it was added.
    """

    tenant: str
    collection: str
    file: NewFile
    #: The label and the digest of the API key with which the file was added.
    key_label: str
    key_digest: str
    attempts: int
    claim: str
    model: str | None
    waited_s: float


@dataclass(frozen=True, slots=True)
class UnloadedFile:
    """A file that waits for its load, or whose load has failed, as operators see it; `why` is "" if it is not known."""

    tenant: str
    collection: str
    filename: str
    state: FileState
    why: str
    added_ms: int


@dataclass(frozen=True, slots=True)
class LoadsOverview:
    """How many files of all tenants wait, are being loaded and have failed, and some of them, the failed ones first."""

    waiting: int
    running: int
    failed: int
    files: tuple[UnloadedFile, ...]

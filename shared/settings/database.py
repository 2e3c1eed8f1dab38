"""The settings of the database of collections: its URL, its connections and indexes, and the bounds of a tenant."""

from dataclasses import dataclass

from shared.settings.setting import number, text

#: The value of PENSTOCK_DATABASE_URL that means the server which `penstock up` starts in the state folder.
EMBEDDED = "embedded"


@dataclass(frozen=True)
class DatabaseSettings:
    """The database of collections, and what a tenant may keep in it."""

    database_url: str = text(
        "",
        "a URL of PostgreSQL >= 14 with pgvector >= 0.8, or embedded",
        "the database of collections: postgresql://, or embedded for the server that `penstock up` starts in the state "
        "folder; PENSTOCK_DATABASE_URL_FILE may name a file with it; unset: no collections; needs the extra retrieval",
        secret=True,
        pattern=f"|{EMBEDDED}|postgres(ql)?://.+",
    )
    database_connections: int = number(
        4,
        "connections",
        (3, 64),
        "connections of one process to the database; the searches of a tenant use at most half of them, and all loads "
        "together a quarter",
    )
    index_from_chunks: int = number(
        5_000,
        "chunks",
        (100, 10_000_000),
        "a collection with as many chunks gets an index of its vectors; smaller ones are searched exactly",
    )
    max_vector_indexes: int = number(
        64,
        "indexes",
        (0, 1_000),
        "indexes of vectors in the database; further collections are searched exactly, because each index delays the "
        "plan of every query",
    )
    index_memory_bytes: int = number(
        1_073_741_824,
        "bytes",
        (1_048_576, 1_099_511_627_776),
        "memory in which the database makes an index of vectors, as far as the collection needs it; a larger index is "
        "made many times more slowly",
    )
    max_collections: int = number(100, "collections", (1, 10_000), "collections of one tenant")
    max_tenant_chunks: int = number(1_000_000, "chunks", (1, 1_000_000_000), "chunks of all collections of one tenant")

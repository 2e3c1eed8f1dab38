"""Opens the database that the settings name, if they name one; nothing else imports the package on ordinary paths."""

import importlib.util
from typing import TYPE_CHECKING

from shared.errors import ConfigError
from shared.settings.database import EMBEDDED
from shared.settings.settings import Settings
from shared.state_dir import read_note

if TYPE_CHECKING:
    from shared.retrieval.database import Database


def open_database(settings: Settings) -> "Database | None":
    """Return the database of collections, or None if PENSTOCK_DATABASE_URL is not set. It connects when it is used.

    Raises ConfigError as `find_database_url` does.
    """
    url = find_database_url(settings)
    if not url:
        return None
    from shared.retrieval.database import Bounds, Database  # noqa: PLC0415 - psycopg is not imported without a database

    bounds = Bounds(
        connections=settings.database_connections,
        index_from_chunks=settings.index_from_chunks,
        max_indexes=settings.max_vector_indexes,
        index_memory_bytes=settings.index_memory_bytes,
        max_collections=settings.max_collections,
        max_tenant_chunks=settings.max_tenant_chunks,
        max_tenant_documents=settings.max_tenant_documents,
        max_tenant_text_bytes=settings.max_tenant_document_bytes,
    )
    return Database(url, bounds)


def find_database_url(settings: Settings) -> str:
    """Return the URL of the database of collections, that of the running server for `embedded`; "" if it is not set.

    Raises ConfigError if the extra `retrieval` is not installed, if the URL cannot be read, or if the embedded database
    is wanted and does not run.
    """
    url = settings.database_url
    if url and importlib.util.find_spec("psycopg") is None:
        raise ConfigError("PENSTOCK_DATABASE_URL needs the extra: pip install 'penstock[retrieval]'")
    if url != EMBEDDED:
        if url:
            _check(url)
        return url
    found = read_note(settings.state_path / "database.json").get("url")
    if not isinstance(found, str):
        raise ConfigError(
            f"PENSTOCK_DATABASE_URL={EMBEDDED}: no database runs in {settings.state_path}; `penstock up` starts one"
        )
    return found


def _check(url: str) -> None:
    from shared.retrieval.connecting import parse_url  # noqa: PLC0415 - as above

    try:
        parse_url(url)
    except ValueError as error:
        raise ConfigError(f"PENSTOCK_DATABASE_URL {error}") from None

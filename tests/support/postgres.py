"""A real PostgreSQL server for tests: one for all processes of a run, with a database of its own for each file.

The first process that needs the server starts it, and the last one that has used it stops it.
"""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from shared.retrieval.connecting import open_connection
from shared.retrieval.embedded import NOT_DURABLE, EmbeddedDatabase

#: The database with the tables, which others are copies of.
TEMPLATE = "penstock_template"


@contextmanager
def shared_server(folder: Path) -> Iterator[str]:
    """Yield the URL of the server in a folder that all processes of a run share."""
    folder.mkdir(exist_ok=True)
    with (folder / "users.lock").open("w") as users:
        with _locked(folder / "start.lock"):
            fcntl.flock(users, fcntl.LOCK_SH)
            server = EmbeddedDatabase.start(folder, settings=NOT_DURABLE)
        try:
            with _locked(folder / "start.lock"):
                _create_template(server.url)
            yield server.url
        finally:
            with _locked(folder / "start.lock"):
                fcntl.flock(users, fcntl.LOCK_UN)
                try:
                    fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if server._process is not None:
                        # Another process stops it; a program that runs is an error when its object is deleted.
                        server._process.returncode = 0
                else:
                    server.stop()


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the server: that of the run, which has a folder for each of its processes."""
    base = factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "postgres"


@contextmanager
def new_database(server_url: str) -> Iterator[str]:
    """Yield the URL of a new database with the tables of this version, which is dropped at the end."""
    name = f"test_{secrets.token_hex(6)}"
    execute(server_url, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    yield url_of(server_url, name)
    execute(server_url, f"DROP DATABASE {name} WITH (FORCE)")


def url_of(server_url: str, database: str) -> str:
    """Return the URL of another database of a server."""
    return urlunsplit(urlsplit(server_url)._replace(path=f"/{database}"))


def execute(url: str, *statements: str) -> None:
    """Run statements as the superuser, each in a transaction of its own."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def rows(url: str, query: str, *values: object) -> list[tuple[object, ...]]:
    """Return the rows of a query that the superuser, who sees the rows of all tenants, makes."""
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query.encode(), values).fetchall()


def _create_template(server_url: str) -> None:
    if not rows(server_url, "SELECT 1 FROM pg_database WHERE datname = %s", TEMPLATE):
        execute(server_url, f"CREATE DATABASE {TEMPLATE}")
        open_connection(url_of(server_url, TEMPLATE)).close()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

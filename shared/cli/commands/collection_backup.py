"""`penstock tenants export-collections` and `import-collections`: a tenant's collections as lines of JSON."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from shared.cli import output
from shared.cli.reach import StateDir, collections_database, end_with, writable_store_client
from shared.errors import ConfigError

if TYPE_CHECKING:
    from shared.retrieval.database import Database

Name = Annotated[str, typer.Argument(metavar="TENANT", help="1 to 64 letters, digits, `_` and `-`.")]
#: The longest line that is read, in bytes: an export has at most 100 chunks on one.
_MAX_LINE_BYTES = 128 * 1024 * 1024


def export_collections(tenant: Name, *, state_dir: StateDir = None) -> None:
    """Write a tenant's collections to stdout: their documents' texts, metadata and vectors."""
    from shared.accounts.admin_actions import local_actor, record
    from shared.retrieval.backup import export_tenant

    client = writable_store_client(state_dir)
    with _database(state_dir) as database:
        if not database.collections(tenant):
            end_with(f"tenant {tenant!r} has no collections")
        record(client, local_actor(), "tenant.export_collections", f"tenant {tenant}")
        written: dict[str, Any] = {}
        for written in export_tenant(database, tenant):
            output.write_json(written, indent=None)
    end = written["end"]
    output.write_note(f"tenant {tenant}: {end['collections']} collections with {end['documents']} documents")


def import_collections(
    tenant: Name,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="What `export-collections` has written. Default: stdin.")
    ] = None,
    *,
    state_dir: StateDir = None,
) -> None:
    """Create the collections of an export for a tenant, and load their documents without embedding them again.

    Documents with the same ids are replaced. The import can be repeated after an error.
    """
    from shared.accounts.admin_actions import local_actor, record
    from shared.retrieval.backup import import_tenant
    from shared.store.keys import is_tenant_name

    if not is_tenant_name(tenant):
        raise ConfigError(f"TENANT={tenant!r} is not 1 to 64 letters, digits, `_` and `-`")
    client = writable_store_client(state_dir)
    with _database(state_dir) as database, _opened(file) as stream:
        record(client, local_actor(), "tenant.import_collections", f"tenant {tenant}")
        done = import_tenant(database, tenant, _records(stream))
    output.write_note(
        f"tenant {tenant}: {done.collections} collections with {done.documents} documents, {done.unchanged} of them "
        "as before"
    )


@contextmanager
def _database(state_dir: str | None) -> "Iterator[Database]":
    from shared.settings.settings import load

    database = collections_database(load(state_dir=state_dir))
    if database is None:
        raise ConfigError("the command needs PENSTOCK_DATABASE_URL, the database of collections")
    try:
        yield database
    finally:
        database.close()


@contextmanager
def _opened(file: Path | None) -> Iterator[IO[bytes]]:
    if file is None:
        yield sys.stdin.buffer
        return
    try:
        stream = file.open("rb")
    except OSError as error:
        raise ConfigError(f"FILE={str(file)!r} cannot be read: {error.strerror}") from None
    with stream:
        yield stream


def _records(stream: IO[bytes]) -> Iterator[object]:
    """Yield the values in lines of JSON. Raises InvalidInput for a line that has none, or is too long."""
    from shared.retrieval.errors import InvalidInput

    number = 0
    while line := stream.readline(_MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > _MAX_LINE_BYTES:
            raise InvalidInput(f"line {number}", line[:100], f"is longer than {_MAX_LINE_BYTES} bytes")
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"line {number}", line[:100], f"is not JSON ({error})") from None

"""Exit codes, options, settings, and clients for the store and the door that several commands share."""

from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from shared.cli import output
from shared.cli.streams import OutputError
from shared.settings.settings import Settings, load
from shared.settings.store import StoreSettings

if TYPE_CHECKING:
    import redis

    from shared.cli.batch_client import BatchClient
    from shared.cli.client import JobClient
    from shared.cli.collection_client import CollectionClient
    from shared.retrieval.database import Database

#: Exit codes. FAULT: the command failed or was refused. USAGE: the command line or a setting is wrong. YIELD: the door
#: answered `yield` (75 is EX_TEMPFAIL).
FAULT, USAGE, YIELD = 1, 2, 75

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
StateDir = Annotated[
    str | None,
    typer.Option(
        "--state-dir", metavar="FOLDER", help="State folder, where `up` keeps its store (PENSTOCK_STATE_DIR)."
    ),
]
ActingTenant = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        metavar="NAME",
        help="Act for this tenant, if the door is open or the key was created with `--act-as`.",
    ),
]


def end_with(note: str, code: int = FAULT) -> NoReturn:
    """Write a note for the user, and exit."""
    output.write_note(note)
    raise typer.Exit(code)


def write_new_key(kind: str, key: str, record: dict[str, Any], details: str, *, json: bool) -> None:
    """Print a key that cannot be shown again; `kind` is what its command calls it, and `details` ends the note."""
    new_id = record["id"]
    try:
        output.write_json(record | {"key": key}) if json else output.write_data(key)
    except (OutputError, BrokenPipeError) as error:
        fault = "the program that reads stdout has ended" if isinstance(error, BrokenPipeError) else error
        rm = f"penstock {kind.replace(' ', '-')}s rm {new_id}"
        raise OutputError(f"{fault}; {kind} {new_id} exists and cannot be shown again: remove it with `{rm}`") from None
    if not json:
        output.write_note(f"{kind} {new_id}{details}; it is not shown again")


def client_for(settings: StoreSettings) -> "redis.Redis":
    """Return a client for the store at `settings.store_url`.

    Raise EmbeddedStoreError if there is no store, and StoreUnavailable if the store does not answer within 2 s.
    """
    from shared.store.connection import OPERATOR, open_client
    from shared.store.preflight import require_answer

    url = settings.store_url
    client = open_client(url, name="penstock-cli", prefix=settings.store_prefix, timeouts=OPERATOR)
    require_answer(client, url)
    return client


def store_client(state_dir: str | None = None) -> "redis.Redis":
    """Return a client for the store that the settings in force name.

    Raise ConfigError if a setting is invalid, and the errors of `client_for`.
    """
    return client_for(load(state_dir=state_dir))


def writable_store_client(state_dir: str | None = None) -> "redis.Redis":
    """Return a client as `store_client` does, for a command that changes what is in the store.

    Raise SchemaConflict if this version must not change it, because another version has written it.
    """
    from shared.store.preflight import check_format

    client = store_client(state_dir)
    check_format(client)
    return client


def collections_database(settings: Settings) -> "Database | None":
    """Return the database of collections, or None if none is set. Raise ConfigError as `open_database` does."""
    from shared.log import configure
    from shared.retrieval.configured import open_database

    # The command says itself why the database is away.
    configure("error")
    return open_database(settings)


def door_client(tenant: str | None = None) -> "JobClient":
    """Return a client for the door at PENSTOCK_URL. It authenticates with PENSTOCK_API_KEY and acts for `tenant`."""
    from shared.cli.client import JobClient

    settings = load()
    return JobClient(settings.url, api_key=settings.api_key, tenant=tenant or "")


def batch_client(tenant: str | None = None) -> "BatchClient":
    from shared.cli.batch_client import BatchClient

    settings = load()
    return BatchClient(settings.url, api_key=settings.api_key, tenant=tenant or "")


def collection_client(tenant: str | None = None) -> "CollectionClient":
    from shared.cli.collection_client import CollectionClient

    settings = load()
    return CollectionClient(settings.url, api_key=settings.api_key, tenant=tenant or "")

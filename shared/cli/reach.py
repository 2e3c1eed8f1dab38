"""What commands reach for: the settings, the store, the door."""

from typing import TYPE_CHECKING, Annotated

import typer

from shared.settings.settings import Settings, load

if TYPE_CHECKING:
    import redis

    from shared.cli.client import JobClient

#: Exit codes beside 0: a refusal or a fault, a mistake in the command or a setting, and `yield` (EX_TEMPFAIL).
FAULT, USAGE, YIELD = 1, 2, 75

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
StateDir = Annotated[
    str | None, typer.Option("--state-dir", metavar="FOLDER", help="Where `up` keeps its store; PENSTOCK_STATE_DIR.")
]
TenantOfKey = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="Act for this tenant, where the door lets you.")
]


def settings(state_dir: str | None = None) -> Settings:
    """The settings in force. Raises ConfigError."""
    return load(state_dir=state_dir)


def url_of(found: Settings) -> str:
    """The store's URL: REDIS_URL, else that of the store which `up` runs. Raises EmbeddedStoreError."""
    from shared.store.embedded import find_url

    return found.redis_url or find_url(found.state_path)


def client_for(found: Settings) -> "redis.Redis":
    """A client of the store of these settings. Raises EmbeddedStoreError when none is known."""
    from shared.store.connection import OPERATOR, open_client

    return open_client(url_of(found), name="penstock-cli", timeouts=OPERATOR)


def store_client(state_dir: str | None = None) -> "redis.Redis":
    """A client of the store for one command. Raises ConfigError and EmbeddedStoreError."""
    return client_for(settings(state_dir))


def door(tenant: str | None = None) -> "JobClient":
    """A client of the door at PENSTOCK_URL, showing PENSTOCK_API_KEY."""
    from shared.cli.client import JobClient

    found = settings()
    return JobClient(found.url, api_key=found.api_key, tenant=tenant or "")

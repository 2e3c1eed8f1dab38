"""How an ingress starts: settings read, the store opened, found fit and in agreement; or a sentence and the end."""

import contextlib
import os
import resource
import sys
from typing import NoReturn

import structlog

from shared.errors import ConfigError, EmbeddedStoreError, StoreUnfit
from shared.settings.settings import Settings, load
from shared.store.connection import DOOR, open_client
from shared.store.embedded import find_url
from shared.store.preflight import check_fitness
from shared.store.store import Store
from web.http.allowed_names import allowed_hosts, allowed_origins

log = structlog.get_logger()

#: Exit codes, as workers have them: a setting is wrong; the store could lose jobs. Starting again helps neither.
EXIT_CONFIG, EXIT_STORE_UNFIT = 2, 3


def read_settings() -> Settings:
    """The settings, or the end of this process with a sentence."""
    try:
        settings = load()
        allowed_hosts(settings)
        allowed_origins(settings)
        _store_url(settings)
    except (ConfigError, EmbeddedStoreError) as error:
        _exit_with(error, EXIT_CONFIG)
    return settings


def open_store(settings: Settings) -> Store:
    """The store as the door waits for it; connects with the first call."""
    return Store(open_client(_store_url(settings), name=f"penstock-web-{os.getpid()}", timeouts=DOOR))


def configure_store(settings: Settings, store: Store) -> None:
    """Find the store fit and in agreement with our settings, or end this process with a sentence.

    Raises StoreUnavailable: then the door serves refusals, and web/boot.py goes on asking.
    """
    try:
        for warning in check_fitness(store.client):
            log.warning("store.doubt", warning=warning)
        store.configure(settings)
    except StoreUnfit as error:
        _exit_with(error, EXIT_STORE_UNFIT)
    except ConfigError as error:
        _exit_with(error, EXIT_CONFIG)


def raise_file_limit() -> None:
    """Each connection is a file; a system that allows more than it gives is asked for it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))


def _store_url(settings: Settings) -> str:
    return settings.redis_url or find_url(settings.state_path)


def _exit_with(error: Exception, code: int) -> NoReturn:
    sys.stderr.write(f"penstock: {error}\n")
    sys.exit(code)

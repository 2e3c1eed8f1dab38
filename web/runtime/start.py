"""Steps to start a door process: read settings and the admin key, open and configure the store, start the duties."""

import contextlib
import os
import resource
import secrets
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from gevent import monkey

from shared.accounts.admin_keys import ADMIN_KEY_PREFIX
from shared.audit.sweeper import PERIOD_S, Sweeper
from shared.cells.opening import claim_own_home
from shared.errors import ConfigError, EmbeddedStoreError, StoreUnavailable, StoreUnfit
from shared.history.historian import Historian
from shared.log import get_logger
from shared.retrieval.configured import find_database_url
from shared.settings.door import DoorSettings
from shared.settings.setting import expand_path
from shared.settings.settings import Settings, load
from shared.settings.store import StoreSettings
from shared.store import scripts
from shared.store.batches.folder import run_here
from shared.store.batches.storage_location import claim_home, files_folder
from shared.store.connection import DOOR, open_client
from shared.store.preflight import check_fitness, require_answer
from shared.store.reaper import Reaper
from shared.store.replication import too_few_replicas
from shared.store.store import Store
from shared.tracing.traces import check_traces
from web.http.allowed_names import allowed_hosts, allowed_origins
from web.http.client_address import parse_trusted_proxies
from web.http.connection_bounds import RequestBounds, connection_limits, request_bounds
from web.runtime.disk_threads import in_disk_thread
from web.sign_in.sign_in import sign_in_proxies

log = get_logger()

#: The exit codes for a wrong setting and for a store that could lose jobs; workers use the same codes. A restart fixes
#: neither problem.
EXIT_CONFIG, EXIT_STORE_UNFIT = 2, 3


def read_settings() -> Settings:
    """Read the settings; if they are invalid, exit this process with an error message."""
    try:
        settings = load()
        allowed_hosts(settings)
        allowed_origins(settings)
        parse_trusted_proxies(settings.trusted_proxies)
        sign_in_proxies(settings)
        check_traces(on=settings.traces == "on")
        find_database_url(settings)
        bounds_of_requests(settings)
        files_folder(settings)
        _ = settings.store_url
    except (ConfigError, EmbeddedStoreError) as error:
        _exit_with(error, EXIT_CONFIG)
    return settings


def open_store(settings: StoreSettings) -> Store:
    """Load all scripts and return a store client with the timeouts of the door.

    The client connects when it sends its first command. gunicorn's master calls this before its first fork, so the
    processes share the memory of the scripts.
    """
    scripts.preload()
    make_poll = monkey.get_original("select", "poll")
    name = f"penstock-web-{os.getpid()}"
    url, prefix = settings.store_url, settings.store_prefix
    return Store(open_client(url, name=name, prefix=prefix, timeouts=DOOR, make_poll=make_poll))


def configure_store(
    settings: Settings,
    store: Store,
    *,
    serves_files: bool = False,
    knows_cell: bool = False,
    run: Callable[..., Any] = run_here,
) -> None:
    """Check that the store is fit and has the same system-wide settings as this process.

    If the store has no system-wide settings yet, write this process's settings to it. A process that serves files also
    checks that all such processes keep them in one place; `run` is that of FilesFolder. Unless the process `knows_cell`
    and so the folder in the settings is that of the store's cell, the cell is read from the directory first.

    Exits this process with an error message if the store is unfit or has different settings. Raises StoreUnavailable
    if the store does not answer: the door then refuses all jobs, and web/runtime/start.py calls this function again.
    """
    try:
        require_answer(store.client, settings.redis_url or str(settings.state_path))
        for warning in (*check_fitness(store.client), too_few_replicas(store.client, settings.ack_replicas)):
            if warning:
                log.warning("store.doubt", warning=warning)
        store.configure(settings)
        if serves_files:
            (claim_home if knows_cell else claim_own_home)(store.client, settings, run=run)
    except StoreUnfit as error:
        _exit_with(error, EXIT_STORE_UNFIT)
    except ConfigError as error:
        _exit_with(error, EXIT_CONFIG)


def bounds_of_requests(settings: DoorSettings) -> RequestBounds:
    """Return new bounds for the requests of this process. Raises ConfigError if the longest body would not fit."""
    max_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return request_bounds(settings, connection_limits(settings, max_files))


def raise_file_limit() -> int:
    """Raise the soft limit on open files for the connections to 65536, or to the hard limit if lower; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _exit_with(error: Exception, code: int) -> NoReturn:
    sys.stderr.write(f"penstock: {error}\n")
    sys.exit(code)


#: How long to wait before the next attempt while the store does not answer, in seconds.
AWAY_S = 0.25
#: The minimum time between two log lines about a store that does not answer, in seconds.
_LOG_INTERVAL_S = 10.0


def start_duties(
    settings: Settings,
    store: Store,
    *,
    on_fatal_error: Callable[[], None],
    serves_files: bool = False,
    knows_cell: bool = False,
    closed: threading.Event | None = None,
) -> None:
    """Start a thread that configures the store as soon as the store answers, and then runs the duties of all processes.

    The thread calls `on_fatal_error` if the store is unfit or was configured with different system-wide settings. It
    ends when `closed` is set. The other arguments are those of `configure_store`.
    """
    until = closed or threading.Event()

    def run() -> None:
        configure = partial(
            configure_store, settings, store, serves_files=serves_files, knows_cell=knows_cell, run=in_disk_thread
        )
        _configure_with_retries(configure, on_fatal_error, closed=until)
        _run_duties(settings, store, until)

    threading.Thread(target=run, name="duties", daemon=True).start()


def _run_duties(settings: Settings, store: Store, closed: threading.Event) -> None:
    reaper, sweeper, historian = Reaper(store), Sweeper(store), Historian(store, settings.history_bytes)
    next_sweep_s, next_point_s = time.monotonic() + PERIOD_S, time.monotonic()
    while not closed.is_set():
        try:
            rest_s = reaper.one_pass()
            if time.monotonic() >= next_sweep_s:
                next_sweep_s = time.monotonic() + PERIOD_S
                sweeper.one_pass()
            if time.monotonic() >= next_point_s:
                # If the pass fails, the next one is not made at once.
                next_point_s = time.monotonic() + PERIOD_S
                next_point_s = time.monotonic() + historian.one_pass()
        except StoreUnavailable:
            rest_s = AWAY_S
        except Exception:
            # Without reaping, jobs would not end at their deadlines, so the loop continues after any error.
            log.exception("reaper.failed")
            rest_s = AWAY_S
        closed.wait(rest_s)


def _configure_with_retries(
    configure: Callable[[], None], on_fatal_error: Callable[[], None], *, closed: threading.Event
) -> None:
    next_log_s = 0.0
    while not closed.is_set():
        try:
            configure()
        except StoreUnavailable as error:
            if time.monotonic() >= next_log_s:
                log.warning("store.awaited", error=str(error))
                next_log_s = time.monotonic() + _LOG_INTERVAL_S
            closed.wait(AWAY_S)
        except SystemExit:
            # SystemExit would end only this thread, so `on_fatal_error` must stop the process.
            on_fatal_error()
            raise
        else:
            return


def admin_key_path(settings: Settings) -> Path:
    """Return the path of the admin key file: PENSTOCK_ADMIN_KEY_FILE, or else `admin.key` in the state folder."""
    if settings.admin_key_file:
        return expand_path("PENSTOCK_ADMIN_KEY_FILE", settings.admin_key_file)
    return settings.state_path / "admin.key"


def load_admin_key(settings: Settings) -> str:
    """Read the admin key; create its file first if it does not exist.

    Raises ConfigError if the file cannot be read or created, if it is empty, or if users other than its owner have
    access to it. The access to a file named by PENSTOCK_ADMIN_KEY_FILE is not checked, because container platforms
    mount secrets with modes of their own.
    """
    path = admin_key_path(settings)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _create_if_missing(path)
        if not settings.admin_key_file and path.stat().st_mode & 0o077:
            raise ConfigError(f"the admin key file {path} can be read by other users; run `chmod 600` on it")
        key = path.read_text().strip()
    except OSError as error:
        raise ConfigError(f"the admin key file {path} cannot be used: {error.strerror}") from error
    if not key:
        raise ConfigError(f"the admin key file {path} is empty; remove it, and the next start creates a new one")
    return key


def _create_if_missing(path: Path) -> None:
    """Create the file atomically if it does not exist: processes that start at the same time must read the same key."""
    if path.exists():
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(ADMIN_KEY_PREFIX + secrets.token_urlsafe(32) + "\n")
    try:
        # Unlike a rename, a link never replaces a key file that another process has created in the meantime.
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()

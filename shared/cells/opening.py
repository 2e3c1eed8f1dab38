"""Opens clients of cells: one for each cell of the directory, or one for a deployment without a directory."""

import select
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import redis

from shared.cells.directory import CellRecord, Directory, parse
from shared.cells.ids import DEFAULT_CELL
from shared.cells.stored import StoredDirectory, ask_all, newest
from shared.errors import ConfigError, EmbeddedStoreError, StoreUnavailable
from shared.hosts import is_loopback
from shared.settings.settings import Settings
from shared.settings.store import StoreSettings
from shared.settings.store_url import normal_store_url
from shared.state_dir import make_private_dir, read_note, write_note
from shared.store.batches.folder import OF_CELLS
from shared.store.batches.storage_location import claim_home
from shared.store.clients.quick_client import Poll
from shared.store.connection import OPERATOR, Timeouts, open_client
from shared.store.preflight import require_answer

#: The copy of the directory in the state folder.
_NOTE = "cells.json"
#: Its field with the store from which it was read: a copy of another deployment must not be used.
_READ_FROM = "read_from"
#: Options of a URL that are credentials, and those that only a URL with sentinels has.
_CREDENTIALS = frozenset({"username", "password"})
_SENTINELS = frozenset({"sentinel_username", "sentinel_password"})


class Cells(Mapping[str, redis.Redis]):
    """Clients of all cells, by name. Without a directory, `default` is the only one."""

    def __init__(
        self,
        directory: Directory | None,
        clients: Mapping[str, redis.Redis],
        away: Mapping[str, StoreUnavailable] | None = None,
    ) -> None:
        #: None if the deployment has no directory.
        self.directory = directory
        self._clients = dict(clients)
        #: Why some cells did not answer when they were opened.
        self.away: Mapping[str, StoreUnavailable] = away or {}

    @property
    def answering(self) -> dict[str, redis.Redis]:
        """The clients of the cells that answered when they were opened."""
        return {name: client for name, client in self._clients.items() if name not in self.away}

    def __getitem__(self, name: str) -> redis.Redis:
        return self._clients[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


def open_cell(
    record: CellRecord,
    *,
    name: str,
    timeouts: Timeouts,
    make_poll: Callable[[], Poll] = select.poll,
    store_url: str = "",
) -> redis.Redis:
    """Return a client of one cell, as shared/store/connection.py opens them; CLIENT LIST shows `name`.

    If the cell's URL has no user and password, those of `store_url` are used, which is the REDIS_URL of this process.
    Raises ConfigError for a URL that cannot be used.
    """
    url = with_credentials(record.url, store_url)
    try:
        return open_client(url, name=name, prefix=record.prefix, timeouts=timeouts, make_poll=make_poll)
    except ConfigError as error:
        raise ConfigError(f"cell {record.name!r}: {str(error).replace('REDIS_URL=', 'url=', 1)}") from None


def cells_in_force(settings: StoreSettings, timeouts: Timeouts = OPERATOR, *, name: str = "penstock-cli") -> Cells:
    """Return clients of all cells of the deployment to which the store of the settings belongs.

    The directory is read from that store, or from the copy in the state folder if that store is away, and then from
    all cells, because another cell may have a newer one. Raises StoreUnavailable if there is neither a store nor a
    copy, EmbeddedStoreError if the settings name no store, and ConfigError if the directory is spoiled.
    """
    own = open_client(settings.store_url, name=name, prefix=settings.store_prefix, timeouts=timeouts)
    try:
        require_answer(own, settings.store_url)
        directory = StoredDirectory(own).read()
    except (StoreUnavailable, ConfigError):
        directory = remembered(settings)
        if directory is None:
            raise
    if directory is None:
        directory = lost_directory(settings, timeouts, name=name)
    if directory is None:
        return Cells(None, {DEFAULT_CELL: own})
    own.close()
    while True:
        cells = open_all(directory, settings.store_url, timeouts, name=name)
        urls = {client: directory.cells[cell].url for cell, client in cells.items()}
        cells.away = ask_all(cells, lambda client: require_answer(client, urls[client])).away  # noqa: B023 - called now
        if not cells.answering:
            raise next(iter(cells.away.values()))
        found = newest(cells.answering)
        if found is None or found.stamp <= directory.stamp:
            remember(settings, directory)
            return cells
        cells.close()
        directory = found


def lost_directory(settings: StoreSettings, timeouts: Timeouts, *, name: str) -> Directory | None:
    """Return the directory that the store of the settings has lost with all its data, or None if it never had one.

    That is so if another cell of the copy in the state folder has one that lists this store.
    """
    known = remembered(settings)
    others = {cell: one for cell, one in known.cells.items() if not is_own(settings, one)} if known else {}
    if known is None or not others:
        return None
    cells = open_all(replace(known, cells=others, tenants={}), settings.store_url, timeouts, name=name)
    try:
        found = newest(cells)
    except (StoreUnavailable, ConfigError):
        return None
    finally:
        cells.close()
    return found if found is not None and any(is_own(settings, one) for one in found.cells.values()) else None


def open_all(directory: Directory, store_url: str, timeouts: Timeouts, *, name: str) -> Cells:
    """Return clients of all cells of a directory. Raises ConfigError."""
    clients = {
        cell: open_cell(record, name=name, timeouts=timeouts, store_url=store_url)
        for cell, record in directory.cells.items()
    }
    return Cells(directory, clients)


def remember(settings: StoreSettings, directory: Directory) -> None:
    """Write the directory into the state folder, readable by its user only, unless the copy there is as new.

    A folder that cannot be written to is left as it is: the copy is needed only while stores are away.
    """
    known = remembered(settings)
    if known is not None and known.stamp >= directory.stamp:
        return
    try:
        make_private_dir(settings.state_path)
        write_note(settings.state_path / _NOTE, directory.dump() | {_READ_FROM: _place(settings)})
    except OSError:
        return


def remembered(settings: StoreSettings) -> Directory | None:
    """Return the directory in the state folder if it was read from the store of these settings, else None."""
    note = read_note(settings.state_path / _NOTE)
    if note.pop(_READ_FROM, None) != _place(settings):
        return None
    try:
        return parse({name: str(value) for name, value in note.items()})
    except ConfigError:
        return None


def _place(settings: StoreSettings) -> str:
    """Return the prefix and URL of the store that the settings name, or "" if they name none."""
    try:
        return f"{settings.store_prefix} {without_credentials(settings.store_url)}"
    except EmbeddedStoreError:
        return ""


def own_record(settings: StoreSettings) -> CellRecord:
    """Return the record with which the store of the settings enters a directory, without its user and password."""
    return CellRecord(DEFAULT_CELL, without_credentials(settings.store_url), settings.store_prefix)


def is_own(settings: StoreSettings, record: CellRecord) -> bool:
    """Return whether the settings name this cell's store and prefix."""
    return _place(settings) == f"{record.prefix} {without_credentials(record.url)}"


def is_local(record: CellRecord) -> bool:
    """Return whether only programs on the same machine can reach a cell at its URL."""
    parts = urlsplit(normal_store_url(record.url))
    hosts = parts.netloc.rpartition("@")[2].split(",")
    return parts.scheme == "unix" or all(is_loopback((host.rpartition(":")[0] or host).strip("[]")) for host in hosts)


def short_url(url: str, store_url: str) -> str:
    """Return `url` without user and password if they are those of `store_url`, so that the directory has neither."""
    short = without_credentials(url)
    return short if with_credentials(short, store_url) == with_credentials(url, "") else url


def settings_of_cell(settings: Settings, record: CellRecord) -> Settings:
    """Return the settings of a process for one cell: its store and prefix, and its own folder of files."""
    url = with_credentials(record.url, settings.redis_url)
    return replace(with_folder_of(settings, record.name), redis_url=url, key_prefix=record.prefix)


def with_folder_of(settings: Settings, cell: str) -> Settings:
    """Return settings with the folder for files of a cell, which depends on nothing but its name and FILES_DIR."""
    if cell == DEFAULT_CELL or not settings.files_dir:
        return settings
    return replace(settings, files_dir=f"{settings.files_dir}/{OF_CELLS}/{cell}")


def own_name(directory: Directory, settings: StoreSettings) -> str:
    """Return the name of the cell that the settings name, or "" if the directory has it under another URL or not."""
    return next((name for name, record in directory.cells.items() if is_own(settings, record)), "")


def claim_own_home(client: redis.Redis, settings: Settings, **options: Any) -> None:
    """Note where the doors of the store that the settings name keep files, as `claim_home` does with these options.

    The folder is that of the store's cell. If its directory has no such cell, or is spoiled, nothing is noted: doors
    claim the folder when they know the cell. Raises what `claim_home` raises.
    """
    try:
        directory = StoredDirectory(client).read()
    except ConfigError:
        return
    name = DEFAULT_CELL if directory is None else own_name(directory, settings)
    if name:
        claim_home(client, with_folder_of(settings, name), **options)


def with_credentials(url: str, store_url: str) -> str:
    """Return `url` with the user and password of `store_url` if it has neither; also with those of sentinels."""
    own, other = urlsplit(normal_store_url(url)), urlsplit(normal_store_url(store_url))
    options = []
    netloc = own.netloc
    if "@" not in netloc and not _options(own.query, _CREDENTIALS):
        user, at, _ = other.netloc.rpartition("@")
        netloc = f"{user}{at}{netloc}"
        options = _options(other.query, _CREDENTIALS)
    if own.scheme == other.scheme and not _options(own.query, _SENTINELS):
        options += _options(other.query, _SENTINELS)
    if netloc == own.netloc and not options:
        return url
    query = "&".join(part for part in (own.query, urlencode(options)) if part)
    return normal_store_url(urlunsplit((own.scheme, netloc, own.path, query, "")))


def without_credentials(url: str) -> str:
    """Return `url` without user and password, those of sentinels included."""
    parts = urlsplit(normal_store_url(url))
    options = [option for option in parse_qsl(parts.query) if option[0] not in _CREDENTIALS | _SENTINELS]
    netloc = parts.netloc.rpartition("@")[2]
    return normal_store_url(urlunsplit((parts.scheme, netloc, parts.path, urlencode(options), "")))


def _options(query: str, names: frozenset[str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in parse_qsl(query) if name in names]

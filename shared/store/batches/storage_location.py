"""Checks at the start of a door that all doors keep files in one place, and clears the folder of expired files."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import redis

from shared.errors import ConfigError, FilesUnavailable, StoreUnavailable
from shared.settings.setting import expand_path
from shared.settings.store import BatchSettings
from shared.store import keys, scripts
from shared.store.batches.files import FOLDER, STORE
from shared.store.batches.folder import FilesFolder, run_here
from shared.store.decode import text
from shared.store.redis_errors import store_faults

#: How old a file is at least that is removed because it has no record, in seconds. A file that is being written has a
#: record from its first part on.
_LEAST_AGE_S = 7_200
#: How many records are looked for at once.
_AT_ONCE = 256
#: How long another door of the same store may take, in seconds, between writing its id into the folder and noting it.
_CLAIM_S, _LOOK_S = 10.0, 0.05
#: The ids of folders that this process has written and could not note, because the store did not answer.
_not_noted: set[str] = set()


def files_folder(settings: BatchSettings, run: Callable[..., Any] = run_here) -> FilesFolder | None:
    """Return the folder in which files are kept, or None if they are kept in the store.

    `run` is that of FilesFolder. Raises ConfigError if its path starts with `~` and the home directory is not known.
    """
    if not settings.files_dir:
        return None
    # Nothing is resolved here: that would read the disk, which may hang.
    return FilesFolder(expand_path("PENSTOCK_FILES_DIR", settings.files_dir).absolute(), run)


def claim_home(
    client: redis.Redis,
    settings: BatchSettings,
    *,
    take_over: bool = False,
    run: Callable[..., Any] = run_here,
    patience_s: float = _CLAIM_S,
) -> None:
    """Note in the store where this door keeps files. `run` is that of FilesFolder.

    Raises ConfigError if other doors keep them elsewhere, or if another store may use the folder, unless `take_over` is
    true; if the folder has other contents; or if it cannot be used. Raises FilesUnavailable if the disk does not answer
    within the limit of `run`, and StoreUnavailable.
    """
    folder = files_folder(settings, run)
    if folder is None:
        _note(client, STORE, take_over=take_over)
        return
    try:
        mark, is_new = folder.mark()
        if is_new and not folder.is_empty():
            folder.unmark()
            raise ConfigError(f"PENSTOCK_FILES_DIR={str(folder.path)!r} has other contents; use an empty folder")
    except FilesUnavailable as error:
        if isinstance(error.__cause__, TimeoutError):
            # The disk may answer again. To end would also end doors that serve what needs no files.
            raise
        raise ConfigError(str(error)) from error
    is_ours = is_new or mark in _not_noted
    if not is_ours and not take_over and not _is_noted_within(client, patience_s):
        raise ConfigError(
            f"PENSTOCK_FILES_DIR={str(folder.path)!r} belongs to another store; use an empty folder, or start with "
            "--take-over if this store takes the place of the other one"
        )
    try:
        _note(client, f"{FOLDER} {mark}", take_over=take_over)
    except StoreUnavailable:
        if is_ours:
            _not_noted.add(mark)
        raise
    except ConfigError:
        if is_ours:
            folder.unmark()
        raise
    _not_noted.discard(mark)


def noted_home(client: redis.Redis) -> str | None:
    """Return where the doors of this store keep files, or None if none was started. Raises StoreUnavailable."""
    with store_faults(client):
        noted: Any = client.hget(keys.config(), "files_home")
    return None if noted is None else text(noted)


def files_notes(client: redis.Redis, settings: BatchSettings) -> tuple[bool, list[str]]:
    """Return whether the folder that `settings` name cannot be used, and notes for an operator about files.

    Raises StoreUnavailable.
    """
    folder, notes, is_unusable = files_folder(settings), list[str](), False
    for home, where in ((STORE, "in the store"), (FOLDER, "in the folder")):
        with store_faults(client):
            _, (taken, most, noted) = scripts.load("files_overview").call(client, home=home)
        if taken or text(noted).split(" ")[0] == home:
            what = "records and contents of files and batches" if home == STORE else "contents of files"
            notes.append(f"{what} {where} take {taken} of {most} bytes (PENSTOCK_MAX_FILES_BYTES)")
    if folder is not None:
        home, _, mark = text(noted).partition(" ")
        try:
            folder.check_writable()
            if home and (home != FOLDER or not folder.has_mark(mark)):
                is_unusable = True
                notes.append(f"PENSTOCK_FILES_DIR={str(folder.path)!r} is not where the doors of this store keep files")
        except StoreUnavailable as error:
            is_unusable = True
            notes.append(str(error))
    return is_unusable, notes


def remove_old_files(client: redis.Redis, folder: FilesFolder, *, least_age_s: float = _LEAST_AGE_S) -> int:
    """Remove the contents of files whose records have expired; return how many there were. Raises StoreUnavailable.

    Nothing is removed if the store does not say that its doors use this folder, as after a loss of its data.
    """
    home, _, mark = (noted_home(client) or "").partition(" ")
    if home != FOLDER or not folder.has_mark(mark):
        return 0
    removed, ids = 0, folder.old_files(least_age_s)
    while some := list(itertools.islice(ids, _AT_ONCE)):
        with store_faults(client), client.pipeline(transaction=False) as pipe:
            for file_id in some:
                pipe.exists(keys.file(file_id))
            found: list[Any] = pipe.execute()
        for file_id, has_record in zip(some, found, strict=True):
            if not has_record:
                folder.remove(file_id, least_age_s)
                removed += 1
    return removed


def _is_noted_within(client: redis.Redis, patience_s: float) -> bool:
    """Return whether the store notes where files are kept, or does so soon. Raises StoreUnavailable."""
    end_s = time.monotonic() + patience_s
    while noted_home(client) is None:
        if time.monotonic() >= end_s:
            return False
        time.sleep(_LOOK_S)
    return True


def _note(client: redis.Redis, home: str, *, take_over: bool) -> None:
    with store_faults(client):
        word, rest = scripts.load("files_home").call(client, home=home, take_over=int(take_over))
    if word == "conflict":
        other = text(rest[0])
        where = "in the store" if other == STORE else "in a folder that is not this one"
        given = "is not set" if home == STORE else "is set"
        raise ConfigError(
            f"PENSTOCK_FILES_DIR {given}, but the other doors of this store keep files {where}; all doors need the "
            "same folder. Start with --take-over to keep new files where this setting says"
        )

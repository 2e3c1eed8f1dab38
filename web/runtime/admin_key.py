"""Read the admin key from its file; the first start creates the file, readable only by its owner."""

import os
import secrets
from pathlib import Path

from shared.accounts.admin_keys import ADMIN_KEY_PREFIX
from shared.errors import ConfigError
from shared.settings.setting import expand_path
from shared.settings.settings import Settings


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

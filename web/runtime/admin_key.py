"""The admin key: made at the first start, in a file that only its owner may read."""

import os
import secrets
from pathlib import Path

from shared.errors import ConfigError
from shared.settings.settings import Settings, expanded

#: Tells an admin key from a tenant's at a glance.
ADMIN_KEY_PREFIX = "psa_"


def admin_key_path(settings: Settings) -> Path:
    """Where the admin key is kept: PENSTOCK_ADMIN_KEY_FILE, else `admin.key` in the state folder."""
    if settings.admin_key_file:
        return expanded("PENSTOCK_ADMIN_KEY_FILE", settings.admin_key_file)
    return settings.state_path / "admin.key"


def load_admin_key(settings: Settings) -> str:
    """Read the admin key, making it first when there is none.

    Raises ConfigError when the file can be neither read nor made, is empty, or, in the state folder, may be
    read by others than its owner. A file named by the setting may be: secrets are mounted with modes of their own.
    """
    path = admin_key_path(settings)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _make(path)
        if not settings.admin_key_file and path.stat().st_mode & 0o077:
            raise ConfigError(f"the admin key file {path} can be read by others; `chmod 600` it")
        key = path.read_text().strip()
    except OSError as error:
        raise ConfigError(f"the admin key file {path} cannot be used: {error.strerror}") from error
    if not key:
        raise ConfigError(f"the admin key file {path} is empty; remove it, and the next start makes a new one")
    return key


def _make(path: Path) -> None:
    """Create the file whole or not at all, so that of several first starts all read the same key."""
    if path.exists():
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(ADMIN_KEY_PREFIX + secrets.token_urlsafe(32) + "\n")
    try:
        # A link, unlike a rename, never replaces the key of a start that was quicker.
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()

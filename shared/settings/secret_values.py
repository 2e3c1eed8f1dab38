"""Reads secret settings from files, and masks secrets in texts that are shown."""

import base64
import binascii
import re
from pathlib import Path

from shared.errors import ConfigError

#: The largest file that may hold a secret, in bytes. A larger file is the wrong file, such as a device or a model.
_MAX_FILE_BYTES = 16_384
#: How a secret of Standard Webhooks begins, and the lengths that they allow, in bytes.
SIGNING_PREFIX, _MIN_BYTES, _MAX_BYTES = "whsec_", 24, 64


def read_secret_file(name: str, path: str) -> str:
    """Return the first and only line of the file that the variable `name` names.

    Raises ConfigError if the file cannot be read, is empty, or has several lines. The message names the variable and
    the path, and never quotes the contents.
    """
    try:
        with Path(path).expanduser().open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        text = content.decode().strip()
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text, or its path is not valid"
        raise ConfigError(f"{name}={path!r} cannot be read: {reason}") from None
    if not text or "\n" in text or len(content) > _MAX_FILE_BYTES:
        raise ConfigError(f"{name}={path!r} must name a file with exactly one line, the secret")
    return text


def without_password(url: str) -> str:
    """Return the URL with all passwords masked, for use in messages.

    A password may contain an unescaped `@`, `/` or `&`, although it should not. Everything that could be a part of the
    password is masked, even if this masks other parts of the URL.
    """
    url = re.sub(r"(password=).*?(?=&\w+=|$)", r"\1***", url)
    return re.sub(r"(://[^:@/]*):.*@", r"\1:***@", url)


def shown_value(text: str) -> str:
    """Return a secret as an error message may show it: a URL without its password, and nothing of any other text."""
    return repr(without_password(text)) if "://" in text else "(not shown)"


def parse_signing_secret(named: str, secret: str) -> bytes:
    """Return the bytes of a secret of Standard Webhooks.

    Raises ConfigError, whose message begins with `named` and does not quote the secret.
    """
    try:
        found = base64.b64decode(secret.removeprefix(SIGNING_PREFIX).encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        found = b""
    if not secret.startswith(SIGNING_PREFIX) or not _MIN_BYTES <= len(found) <= _MAX_BYTES:
        raise ConfigError(
            f"{named} is not {SIGNING_PREFIX} and the base64 of {_MIN_BYTES} to {_MAX_BYTES} random bytes; make one "
            f'with: echo "{SIGNING_PREFIX}$(openssl rand -base64 32)"'
        )
    return found

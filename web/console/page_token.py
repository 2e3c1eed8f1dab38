"""Sign the token in a page of the console, without which its buttons do nothing: no other site's page knows a token."""

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Callable

import redis

from web.runtime.ticket_signer import read_secret

#: How long a page can be used before it has to be loaded again, in seconds: a working day.
VALID_S = 12 * 3_600
#: A token consists of its expiry time in seconds since the epoch, a dot, and a signature of 256 bits in base64.
_TOKEN = re.compile(r"(\d{1,12})\.([A-Za-z0-9_-]{43})\Z", re.ASCII)


class PageTokens:
    """Makes and checks the tokens of all door processes, which share a secret in the store.

    Methods raise StoreUnavailable if the store does not answer.
    """

    def __init__(self, client: redis.Redis, now_s: Callable[[], float] = time.time) -> None:
        """`now_s` returns the time in seconds since the epoch."""
        self._client, self._now_s = client, now_s

    def make(self, admin: str) -> str:
        """Return a token for the pages of the operator with this name."""
        expires_s = int(self._now_s()) + VALID_S
        return f"{expires_s}.{self._sign(admin, expires_s)}"

    def is_valid(self, token: str, admin: str) -> bool:
        """Return whether the token was made for this operator and has not expired."""
        match = _TOKEN.match(token)
        if match is None:
            return False
        expires_s = int(match[1])
        return hmac.compare_digest(self._sign(admin, expires_s), match[2]) and self._now_s() < expires_s

    def _sign(self, admin: str, expires_s: int) -> str:
        signed = f"console\n{admin}\n{expires_s}".encode()
        signature = hmac.new(read_secret(self._client), signed, hashlib.sha256).digest()
        return base64.urlsafe_b64encode(signature).rstrip(b"=").decode()

"""Tickets: words signed by us that open one job's events for a while, for browsers, which cannot send a key."""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from typing import Any

import redis

from shared.store import keys
from shared.store.redis_errors import store_faults

#: When it ends, in ms since the epoch, and 256 bits of signature.
_TICKET = re.compile(r"(\d{1,15})\.([A-Za-z0-9_-]{43})\Z", re.ASCII)


class TicketSigner:
    """Signs with a secret that all doors find in the store; whoever removes it there voids every ticket.

    Every method raises StoreUnavailable when the store does not answer.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def signer(self) -> Callable[[str, int], str]:
        """Makes tickets of (job id, end in ms of the store's TIME), fit to stand in an address, without the store."""
        secret = self._secret()
        return lambda job_id, expires_ms: f"{expires_ms}.{_sign(secret, job_id, expires_ms)}"

    def expires_ms(self, ticket: str, job_id: str) -> int | None:
        """When this ticket of ours for this job ends; None for anything that we did not sign for it."""
        match = _TICKET.match(ticket)
        if match is None:
            return None
        expires_ms = int(match[1])
        fits = hmac.compare_digest(_sign(self._secret(), job_id, expires_ms), match[2])
        return expires_ms if fits else None

    def _secret(self) -> bytes:
        with store_faults(self._client):
            found: Any = self._client.get(keys.secret())
            if found is None:
                # Of several doors that make one at once, the first one's counts.
                self._client.set(keys.secret(), secrets.token_hex(32), nx=True)
                found = self._client.get(keys.secret())
        return bytes(found or b"") or secrets.token_bytes(32)


def _sign(secret: bytes, job_id: str, expires_ms: int) -> str:
    said = hmac.new(secret, f"events\n{job_id}\n{expires_ms}".encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(said).rstrip(b"=").decode()

"""Sign and verify tickets, which let a browser that cannot send an API key read one job's events for a limited time."""

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

#: A ticket consists of its expiry time in ms since the epoch, a dot, and a signature of 256 bits in base64.
_TICKET = re.compile(r"(\d{1,15})\.([A-Za-z0-9_-]{43})\Z", re.ASCII)


class TicketSigner:
    """Signs tickets with a secret that all doors read from the store. Deleting the secret invalidates every ticket.

    Every method raises StoreUnavailable if the store does not answer.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def make_signer(self) -> Callable[[str, int], str]:
        """Return a function that makes a ticket from a job id and an expiry time in ms of the store's clock.

        Tickets need no escaping in a URL. The returned function sends no command to the store.
        """
        secret = read_secret(self._client)
        return lambda job_id, expires_ms: f"{expires_ms}.{_sign(secret, job_id, expires_ms)}"

    def expires_ms(self, ticket: str, job_id: str) -> int | None:
        """Return when the ticket expires, in ms since the epoch, or None if its signature is not valid for this job."""
        match = _TICKET.match(ticket)
        if match is None:
            return None
        expires_ms = int(match[1])
        is_valid = hmac.compare_digest(_sign(read_secret(self._client), job_id, expires_ms), match[2])
        return expires_ms if is_valid else None


def read_secret(client: redis.Redis) -> bytes:
    """Return the secret that all doors share, and create it if it is missing. Raises StoreUnavailable."""
    with store_faults(client):
        found = _stored_secret(client)
        if found is None:
            # If several doors create the secret at the same time, all of them use the one that was written first.
            client.set(keys.secret(), secrets.token_hex(32), nx=True)
            found = client.get(keys.secret())
    return bytes(found or b"") or secrets.token_bytes(32)


def _stored_secret(client: redis.Redis) -> Any:
    """Return the secret, or None if it is missing. A key of another type, which no door wrote, is deleted."""
    try:
        return client.get(keys.secret())
    except redis.ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        client.delete(keys.secret())
        return None


def _sign(secret: bytes, job_id: str, expires_ms: int) -> str:
    signature = hmac.new(secret, f"events\n{job_id}\n{expires_ms}".encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(signature).rstrip(b"=").decode()

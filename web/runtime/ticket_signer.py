"""Sign and read tickets: those for one job's events, and those of clients that were refused and told to come back."""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from typing import Any

import redis

from shared.clock import Clock
from shared.errors import StoreUnavailable
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
        return lambda job_id, expires_ms: f"{expires_ms}.{sign(secret, 'events', job_id, expires_ms)}"

    def expires_ms(self, ticket: str, job_id: str) -> int | None:
        """Return when the ticket expires, in ms since the epoch, or None if its signature is not valid for this job."""
        match = _TICKET.match(ticket)
        if match is None:
            return None
        expires_ms = int(match[1])
        is_valid = hmac.compare_digest(sign(read_secret(self._client), "events", job_id, expires_ms), match[2])
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


def sign(secret: bytes, *parts: str | int) -> str:
    """Return a signature of 256 bits, in base64, of the kind of a ticket and of the facts that it is for."""
    text = "\n".join(map(str, parts))
    return base64.urlsafe_b64encode(hmac.new(secret, text.encode(), hashlib.sha256).digest()).rstrip(b"=").decode()


#: The longest ticket that is read, in characters. A longer one counts as none.
MAX_TICKET_CHARS = 256
#: A ticket consists of the end of the hint in ms since the epoch, the id of the reservation, and a signature of
#: 256 bits in base64. Clients must not rely on this.
_RETURN_TICKET = re.compile(r"(\d{1,15})\.([0-9a-f]{1,16})\.([A-Za-z0-9_-]{43})\Z", re.ASCII)
#: How long the secret is used before it is read again, in seconds. Every refusal under load signs a ticket, and that
#: must not cost a call of the store.
_SECRET_S = 5.0


class ReturnTickets:
    """Signs return tickets with the secret of event tickets, and reads them. No method raises an error."""

    def __init__(self, client: redis.Redis, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._secret = b""
        self._read_s = 0.0

    def sign(self, tenant: str, model: str, reservation: str, retry_ms: int) -> str | None:
        """Return the ticket for a reservation; None without one (`retry_ms` is 0) or if the store does not answer.

        `retry_ms` is the end of the hint, in ms since the epoch.
        """
        if not retry_ms:
            return None
        try:
            signature = sign(self._current_secret(), "return", tenant, model, reservation, retry_ms)
        except StoreUnavailable:
            return None
        return f"{retry_ms}.{reservation}.{signature}"

    def read(self, ticket: str, tenant: str, model: str) -> tuple[str, int]:
        """Return the reservation's id and the end of its hint, in ms since the epoch.

        They are "" and 0 for a ticket that was not signed for this tenant and this model.
        """
        match = _RETURN_TICKET.match(ticket) if len(ticket) <= MAX_TICKET_CHARS else None
        if match is None:
            return "", 0
        retry_ms, reservation = int(match[1]), match[2]
        try:
            expected = sign(self._current_secret(), "return", tenant, model, reservation, retry_ms)
        except StoreUnavailable:
            return "", 0
        return (reservation, retry_ms) if hmac.compare_digest(expected, match[3]) else ("", 0)

    def _current_secret(self) -> bytes:
        if not self._secret or self._clock.monotonic() - self._read_s > _SECRET_S:
            self._secret = read_secret(self._client)
            self._read_s = self._clock.monotonic()
        return self._secret

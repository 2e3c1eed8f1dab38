"""Return tickets: let a client that was refused show, when it comes back, that it was told to."""

import base64
import hashlib
import hmac
import re

import redis

from shared.clock import Clock
from shared.errors import StoreUnavailable
from web.runtime.ticket_signer import read_secret

#: The longest ticket that is read, in characters. A longer one counts as none.
MAX_TICKET_CHARS = 256
#: A ticket consists of the end of the hint in ms since the epoch, the id of the reservation, and a signature of
#: 256 bits in base64. Clients must not rely on this.
_TICKET = re.compile(r"(\d{1,15})\.([0-9a-f]{1,16})\.([A-Za-z0-9_-]{43})\Z", re.ASCII)
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
            signature = _sign(self._current_secret(), tenant, model, reservation, retry_ms)
        except StoreUnavailable:
            return None
        return f"{retry_ms}.{reservation}.{signature}"

    def read(self, ticket: str, tenant: str, model: str) -> tuple[str, int]:
        """Return the reservation's id and the end of its hint, in ms since the epoch.

        They are "" and 0 for a ticket that was not signed for this tenant and this model.
        """
        match = _TICKET.match(ticket) if len(ticket) <= MAX_TICKET_CHARS else None
        if match is None:
            return "", 0
        retry_ms, reservation = int(match[1]), match[2]
        try:
            expected = _sign(self._current_secret(), tenant, model, reservation, retry_ms)
        except StoreUnavailable:
            return "", 0
        return (reservation, retry_ms) if hmac.compare_digest(expected, match[3]) else ("", 0)

    def _current_secret(self) -> bytes:
        if not self._secret or self._clock.monotonic() - self._read_s > _SECRET_S:
            self._secret = read_secret(self._client)
            self._read_s = self._clock.monotonic()
        return self._secret


def _sign(secret: bytes, tenant: str, model: str, reservation: str, retry_ms: int) -> str:
    text = f"return\n{tenant}\n{model}\n{reservation}\n{retry_ms}"
    return base64.urlsafe_b64encode(hmac.new(secret, text.encode(), hashlib.sha256).digest()).rstrip(b"=").decode()

"""The alerts in the store: which process looks after them, their state, and requests for a test message."""

from dataclasses import dataclass
from typing import Any

import redis

from shared.store import keys, scripts
from shared.store.decode import text
from shared.store.redis_errors import store_faults


@dataclass(frozen=True)
class Held:
    """The alerts are this process's for a time."""

    state: str
    #: The id of a test message that an operator has asked for, or "".
    test: str
    #: The store's time, in ms since the epoch.
    now_ms: int


class StoredAlerts:
    """The alerts in the store. Methods raise StoreUnavailable if the store does not answer or refuses writes."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def claim(self, asker: str, *, lease_ms: int) -> Held | None:
        """Take the alerts, or keep them, for `lease_ms`. Return None if another process has them."""
        return self._call(asker=asker, lease_ms=lease_ms, state="", tested="")

    def write(self, asker: str, state: str, *, lease_ms: int, tested: str = "") -> bool:
        """Store the state, and the id and result of a test. Return False if another process has the alerts now."""
        return self._call(asker=asker, lease_ms=lease_ms, state=state, tested=tested) is not None

    def read(self) -> str:
        """Return the state, or "" before the first one is stored."""
        return self._field("state")

    def ask_for_test(self, test: str) -> None:
        with store_faults(self._client):
            self._client.hset(keys.alerts(), "test", test)

    def result_of_test(self, test: str) -> str | None:
        """Return how the test message of this id ended, or None if it was not sent yet."""
        sent, _, result = self._field("tested").partition(" ")
        return result if sent == test else None

    def drop_test(self) -> None:
        with store_faults(self._client):
            self._client.hdel(keys.alerts(), "test")

    def _field(self, name: str) -> str:
        try:
            with store_faults(self._client):
                stored: Any = self._client.hget(keys.alerts(), name)
        except redis.ResponseError:
            # Another program has stored something else under the key.
            return ""
        return "" if stored is None else text(stored)

    def _call(self, **given: scripts.Value) -> Held | None:
        with store_faults(self._client):
            word, answer = scripts.load("alerts").call(self._client, **given)
        if word == "held":
            return None
        state, test, now_ms = answer
        return Held(text(state), text(test), now_ms)

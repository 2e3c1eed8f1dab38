"""Webhooks that are not delivered yet, as the store keeps them, and the claim of one by the process that sends it."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from shared.jobs.job import JobView
from shared.jobs.states import TERMINAL_STATES
from shared.store import decode, keys, scripts
from shared.store.batches.batches import ENDED, StoredBatch
from shared.store.decode import integer, pairs, text
from shared.store.redis_errors import store_faults
from shared.store.webhook_results import WebhookResult

#: So many webhooks, the oldest, are examined for `Webhooks.undelivered`.
_LISTED = 1_000


@dataclass(frozen=True)
class ClaimedWebhook:
    """A webhook that no other process sends for a time. The fields of its record are texts."""

    id: str
    tenant: str
    token: str
    #: The store's time of the claim, in ms since the epoch.
    now_ms: int
    fields: Mapping[str, str]

    @property
    def url(self) -> str:
        return self.fields.get("url", "")

    @property
    def tries(self) -> int:
        """How many tries have failed."""
        return max(0, integer(self.fields.get("tries")))

    @property
    def ended_ms(self) -> int:
        """When the job or batch ended, in ms since the epoch."""
        ended_ms = integer(self.fields.get("ended_ms"))
        return ended_ms if 0 < ended_ms <= self.now_ms else self.now_ms

    @property
    def is_cut(self) -> bool:
        """Whether the job's result is missing because it was too long to copy."""
        return self.fields.get("cut") == "1"

    def subject(self) -> JobView | StoredBatch | None:
        """Return the job or the batch as it was at its end; None if another program has changed the copy."""
        try:
            record = pairs(json.loads(self.fields["record"]))
            if self.fields.get("kind") == "batch":
                batch = StoredBatch(self.id, record)
                return batch if batch.status in ENDED and batch.tenant == self.tenant else None
            view = decode.job_view(self.now_ms, 0, self.fields.get("result", ""), record, self.id)
        except (KeyError, TypeError, ValueError, RecursionError):
            return None
        return view if view.state in TERMINAL_STATES and view.tenant == self.tenant else None


@dataclass(frozen=True)
class Pending:
    """How many webhooks are not delivered yet, and when the job of the oldest ended, in ms since the epoch."""

    count: int
    oldest_ms: int | None


NONE_PENDING = Pending(0, None)


class Webhooks:
    """All webhooks. Every method raises StoreUnavailable if the store does not answer or cannot write."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def claim(self, token: str, *, lease_ms: int, busy: Collection[str] = ()) -> ClaimedWebhook | int | None:
        """Claim the webhook whose turn it is, of a tenant that is not `busy`.

        Return the ms until one is due, or None if no webhook waits.
        """
        word, rest = self._call("webhook_claim", token=token, lease_ms=lease_ms, busy=list(busy))
        if word == "none":
            return None if rest[0] < 0 else int(rest[0])
        webhook_id, tenant, now_ms, fields = rest
        return ClaimedWebhook(text(webhook_id), text(tenant), token, now_ms, pairs(fields))

    def write(self, claimed: ClaimedWebhook, result: WebhookResult | None, *, rest_ms: int | None) -> str:
        """Write how a try ended, or that none was made (None); the next one is due after `rest_ms`, with None never.

        Return `told`, `waits`, `gave_up`, or `lost` if another process has claimed the webhook.
        """
        step: scripts.Call = {"id": claimed.id, "tenant": claimed.tenant, "token": claimed.token}
        left = -1 if rest_ms is None else rest_ms
        return self._call("webhook_step", **step, result="" if result is None else result.value, rest_ms=left)[0]

    def count_of(self, tenant: str) -> int:
        """Return how many webhooks of a tenant are not delivered yet; 0 if another program has spoiled their set."""
        return self._zcard(keys.webhook_due(tenant))

    def pending(self) -> Pending:
        count = self._zcard(keys.webhooks())
        with store_faults(self._client):
            oldest: Any = self._client.zrange(keys.webhooks(), 0, 0, withscores=True) if count else []
        return Pending(count, _time_ms(oldest[0][1]) if oldest else None)

    def undelivered(self) -> list[tuple[str, int, int]]:
        """Return the tenants of the oldest webhooks with how many they have and the age of the oldest, in ms."""
        with store_faults(self._client):
            oldest: Any = self._client.zrange(keys.webhooks(), 0, _LISTED - 1, withscores=True)
            pipe = self._client.pipeline(transaction=False)
            for webhook_id, _ in oldest:
                pipe.hget(keys.webhook(text(webhook_id)), "tenant")
            pipe.time()
            *owners, (now_s, _) = pipe.execute(raise_on_error=False)
        ages: dict[str, int] = {}
        for owner, (_, score) in zip(owners, oldest, strict=True):
            ended_ms = _time_ms(score)
            if isinstance(owner, bytes) and ended_ms is not None:
                ages.setdefault(text(owner), max(0, 1000 * now_s - ended_ms))
        return [(tenant, self.count_of(tenant), age_ms) for tenant, age_ms in ages.items()]

    def _zcard(self, key: str) -> int:
        with store_faults(self._client):
            try:
                return int(self._client.zcard(key))
            except redis.ResponseError as error:
                if not str(error).startswith("WRONGTYPE"):
                    raise
                return 0

    def _call(self, script: str, **given: scripts.Value | Sequence[scripts.Value]) -> tuple[str, list[Any]]:
        with store_faults(self._client):
            return scripts.load(script).call(self._client, **given)


def _time_ms(score: float) -> int | None:
    """Return the time in a score; None if another program has spoiled the score."""
    return int(score) if 0 < score < 2**53 else None

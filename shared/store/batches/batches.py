"""Batches: their records, the claim of one by the process that feeds it, and the steps that this process writes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import redis

from shared.store import keys, scripts
from shared.store.batches.files import NoRoom
from shared.store.batches.hashes import new_id, read_hash, read_page
from shared.store.batches.repeats import NOT_REPEATED, Repeats
from shared.store.decode import integer, pairs, text
from shared.store.redis_errors import store_faults

#: How many answers are read at once.
_ANSWERS_READ = 64
#: The first characters of a stored answer: for the output file, and for the file of errors.
OUTPUT, ERROR = "o", "e"
#: The ids of batches begin with this.
ID_PREFIX = "batch_"


class BatchStatus(StrEnum):
    """The state of a batch, in OpenAI's words."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


#: A batch with one of these statuses does not change any more.
ENDED = frozenset({BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED})


@dataclass(frozen=True)
class StoredBatch:
    """A batch. Its record's fields are texts; those that end with `_ms` are times in ms since the epoch."""

    id: str
    fields: Mapping[str, str]

    @property
    def tenant(self) -> str:
        return self.fields.get("tenant", "")

    @property
    def status(self) -> BatchStatus | None:
        """The state of the batch; None if another program has spoiled its record."""
        stored = self.fields.get("status", "")
        return BatchStatus(stored) if stored in set(BatchStatus) else None

    def number(self, name: str, default: int = 0) -> int:
        return integer(self.fields[name]) if name in self.fields else default

    def json(self, name: str, default: Any) -> Any:
        """Return a field that is JSON, or the default if it is missing or spoiled."""
        try:
            return json.loads(self.fields[name])
        except (KeyError, ValueError):
            return default


@dataclass(frozen=True)
class ClaimedBatch:
    """A batch on which no other process works for a time, its open lines by number, and the store's time in ms."""

    batch: StoredBatch
    token: str
    now_ms: int
    lines: dict[int, str]


@dataclass(frozen=True)
class BatchProgress:
    """The progress of a batch to write: new values of fields, lines that are open, and answers of lines."""

    fields: dict[str, str] = field(default_factory=dict)
    lines: dict[int, str] = field(default_factory=dict)
    #: By number of the line: OUTPUT or ERROR, and the line of the file.
    answers: dict[int, str] = field(default_factory=dict)
    #: The status that changes and the new one.
    change: tuple[BatchStatus, BatchStatus] | None = None

    @property
    def writes(self) -> list[str | int]:
        return [
            *(part for name, value in self.fields.items() for part in ("field", name, value)),
            *(part for number, value in self.lines.items() for part in ("line", number, value)),
            *(part for number, value in self.answers.items() for part in ("answer", number, value)),
        ]


class ClaimLost(Exception):
    """Another process has claimed the batch, or the batch has ended."""


class NotCreated(StrEnum):
    """Why a batch was not created, if no bound is the reason."""

    NO_FILE = "no_file"
    SHORT_FILE = "short_file"
    #: The Idempotency-Key was used before with another body.
    MISMATCH = "mismatch"


@dataclass(frozen=True)
class TooManyOpen:
    """A batch was not created because the tenant has as many open batches as it may have."""

    open: int
    most: int


class Batches:
    """All batches. Every method raises StoreUnavailable if the store does not answer or cannot write."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def new_id(self, prefix: str = ID_PREFIX) -> str:
        return new_id(self._client, prefix)

    def create(
        self,
        batch_id: str,
        tenant: str,
        input_file: str,
        fields: Mapping[str, str],
        *,
        window_ms: int,
        ttl_s: int,
        repeats: Repeats = NOT_REPEATED,
    ) -> StoredBatch | NotCreated | TooManyOpen | NoRoom:
        """Create a batch whose lines may take `window_ms`; its record is kept for `ttl_s` after that.

        If an earlier call with the same id, or the same Idempotency-Key and body, has created a batch, return that one.
        """
        flat = [part for item in fields.items() for part in item]
        given: scripts.Call = {"window_ms": window_ms, "ttl_s": ttl_s, "fields": flat}
        given |= {"idem_digest": repeats.idem_digest, "body_digest": repeats.body_digest}
        word, rest = self._call("batch_create", id=batch_id, tenant=tenant, input_file=input_file, **given)
        if word == "created":
            return StoredBatch(text(rest[0]), pairs(rest[1]))
        if word == "full":
            return TooManyOpen(int(rest[0]), int(rest[1]))
        return NoRoom.decode(rest) if word == "exhausted" else NotCreated(word)

    def find(self, batch_id: str, tenant: str) -> StoredBatch | None:
        """Return a batch of the tenant, or None. One that has not ended is due again if it was forgotten."""
        batch = StoredBatch(batch_id, read_hash(self._client, keys.batch_record(batch_id)))
        if batch.tenant != tenant or batch.status is None:
            return None
        if batch.status not in ENDED:
            with store_faults(self._client):
                self._client.zadd(keys.open_batches(), {batch_id: 0}, nx=True)
        return batch

    def page(self, tenant: str, *, limit: int, after: str | None) -> tuple[list[StoredBatch], bool]:
        """Return up to `limit` of the tenant's batches behind the id `after`, and whether there are more.

        The newest come first.
        """

        def decode(batch_id: str, fields: dict[str, str]) -> StoredBatch | None:
            batch = StoredBatch(batch_id, fields)
            return batch if batch.tenant == tenant and batch.status is not None else None

        return read_page(
            self._client, kind="batches", owner=tenant, limit=limit, after=after, oldest_first=False, decode=decode
        )

    def cancel(self, batch_id: str, tenant: str) -> bool:
        """Ask the process that feeds the batch to end it; return whether there is such a batch."""
        return self._call("batch_cancel", id=batch_id, tenant=tenant)[0] == "asked"

    def claim(self, token: str, *, lease_ms: int) -> ClaimedBatch | int | None:
        """Claim the next batch that is due. If none is due, return the ms until one is, or None without a batch."""
        word, rest = self._call("batch_claim", token=token, lease_ms=lease_ms)
        if word == "none":
            return None if rest[0] < 0 else int(rest[0])
        batch_id, now_ms, lines, record = rest
        open_lines = {int(number): value for number, value in pairs(lines).items() if number.isdecimal()}
        return ClaimedBatch(StoredBatch(text(batch_id), pairs(record)), token, now_ms, open_lines)

    def write(
        self, claimed: ClaimedBatch, step: BatchProgress, *, rest_ms: int, ends: bool = False
    ) -> BatchStatus | None:
        """Write a step, and let the batch be due again after `rest_ms`; return the batch's status.

        If `ends`, and the status changes, the batch has ended. Raises ClaimLost if the claim has.
        """
        before, after = step.change or ("", "")
        word, rest = self._call(
            "batch_step",
            id=claimed.batch.id,
            token=claimed.token,
            rest_ms=-1 if ends else rest_ms,
            from_status=str(before),
            to_status=str(after),
            writes=step.writes,
        )
        if word == "lost":
            raise ClaimLost(claimed.batch.id)
        status = text(rest[0])
        return BatchStatus(status) if status in set(BatchStatus) else None

    def answers(self, batch_id: str, last: int) -> Iterator[tuple[int, str]]:
        """Yield the numbers and answers of the lines from 1 to `last`, in order."""
        key = keys.batch_answers(batch_id)
        for first in range(1, last + 1, _ANSWERS_READ):
            numbers = range(first, min(first + _ANSWERS_READ, last + 1))
            with store_faults(self._client):
                stored: Any = self._client.hmget(key, [str(number) for number in numbers])
            for number, raw in zip(numbers, stored, strict=True):
                if raw is not None:
                    yield number, text(raw)

    def inflight(self, job_ids: Sequence[str]) -> set[str]:
        if not job_ids:
            return set()
        with store_faults(self._client):
            scores: Any = self._client.zmscore(keys.inflight(), list(job_ids))
        return {job_id for job_id, score in zip(job_ids, scores, strict=True) if score is not None}

    def _call(self, script: str, **given: scripts.Value | Sequence[scripts.Value]) -> tuple[str, list[Any]]:
        with store_faults(self._client):
            return scripts.load(script).call(self._client, **given)

"""Files that clients upload and that batches write; each has an owner, a lifetime and a content in parts."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import redis

from shared.store import keys, scripts
from shared.store.batches.hashes import read_hash, read_page
from shared.store.decode import integer, pairs, text
from shared.store.redis_errors import store_faults

#: The length of each part of a file but the last, in bytes. One part is all of a file that a process holds.
PART_BYTES = 262_144


@dataclass(frozen=True)
class StoredFile:
    """A file that is complete. Times are in ms since the epoch."""

    id: str
    tenant: str
    filename: str
    purpose: str
    bytes: int
    created_ms: int
    expires_ms: int


@dataclass(frozen=True)
class NoRoom:
    """The bytes that the tenant's jobs and files take, and the most that they may take."""

    taken: int
    most: int


class Deletion(StrEnum):
    """What the deletion of a file was answered."""

    DELETED = "deleted"
    #: A batch that has not ended reads the file.
    USED = "used"
    GONE = "gone"


class Files:
    """All files. Every method raises StoreUnavailable if the store does not answer or cannot write."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def add_part(self, file_id: str, tenant: str, part: int, content: bytes, *, forced: bool = False) -> NoRoom | None:
        """Store one part of a file; a repetition has no effect. The parts must be added in order.

        Return NoRoom if the tenant's bytes are exhausted; with `forced`, the part is stored all the same.
        Raises LookupError if the parts before it are gone.
        """
        word, rest = self._call("file_add", id=file_id, tenant=tenant, part=part, content=content, forced=int(forced))
        if word == "gone":
            raise LookupError(f"file {file_id!r} is gone")
        return NoRoom(rest[0], rest[1]) if word == "full" else None

    def close(self, file_id: str, tenant: str, *, purpose: str, filename: str, ttl_s: int) -> StoredFile:
        """Finish a file, which is then kept for `ttl_s`; a repetition has no effect. Raises LookupError."""
        word, rest = self._call(
            "file_close", id=file_id, tenant=tenant, purpose=purpose, filename=filename, ttl_s=ttl_s
        )
        if word == "gone":
            raise LookupError(f"file {file_id!r} is gone")
        return _stored(file_id, pairs(rest))

    def find(self, file_id: str, tenant: str) -> StoredFile | None:
        """Return a complete file of the tenant, or None."""
        fields = read_hash(self._client, keys.file(file_id))
        return _stored(file_id, fields) if fields.get("tenant") == tenant and "created_ms" in fields else None

    def delete(self, file_id: str, tenant: str) -> Deletion:
        """Delete a file, unless a batch reads it."""
        return Deletion(self._call("file_delete", id=file_id, tenant=tenant)[0])

    def page(self, tenant: str, *, limit: int, after: str | None, oldest_first: bool) -> tuple[list[StoredFile], bool]:
        """Return up to `limit` of the tenant's files behind the file `after`, and whether there may be more."""
        ids, has_more = read_page(self._client, keys.files(tenant), limit=limit, after=after, oldest_first=oldest_first)
        found = [self.find(file_id, tenant) for file_id in ids]
        return [file for file in found if file is not None], has_more

    def read(self, file: StoredFile, offset: int = 0) -> Iterator[bytes]:
        """Yield the file's bytes from an offset on, one part at a time. Raises LookupError if a part is gone."""
        part, skipped = divmod(offset, PART_BYTES)
        while part * PART_BYTES < file.bytes:
            with store_faults(self._client):
                content: Any = self._client.hget(keys.file_parts(file.id), str(part))
            if content is None:
                raise LookupError(f"part {part} of file {file.id!r} is gone")
            yield content[skipped:]
            part, skipped = part + 1, 0

    def _call(self, script: str, **given: scripts.Value) -> tuple[str, list[Any]]:
        with store_faults(self._client):
            return scripts.load(script).call(self._client, **given)


def _stored(file_id: str, fields: dict[str, str]) -> StoredFile:
    return StoredFile(
        id=file_id,
        tenant=text(fields.get("tenant", "")),
        filename=fields.get("filename", ""),
        purpose=fields.get("purpose", ""),
        bytes=integer(fields.get("bytes")),
        created_ms=integer(fields.get("created_ms")),
        expires_ms=integer(fields.get("expires_ms")),
    )

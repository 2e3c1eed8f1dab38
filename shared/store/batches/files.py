"""Files that clients upload and that batches write; each has an owner, a lifetime and a content in parts."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

import redis

from shared.errors import FilesUnavailable
from shared.store import keys, scripts
from shared.store.batches.folder import FilesFolder
from shared.store.batches.hashes import new_id, read_hash, read_page
from shared.store.batches.repeats import NOT_REPEATED, Repeats
from shared.store.decode import integer, pairs, text
from shared.store.redis_errors import store_faults

#: The length of each part of a file but the last, in bytes. One part is all of a file that a process holds.
PART_BYTES = 262_144
#: The ids of files begin with this.
ID_PREFIX = "file-"
#: Where the parts of files are kept.
STORE, FOLDER = "store", "folder"


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
    #: STORE or FOLDER: where its parts are.
    home: str


class Whose(StrEnum):
    """The bound that is exhausted."""

    #: The bytes that the tenant's jobs and files take.
    TENANT = "tenant"
    #: The bytes that the files of all tenants take.
    ALL = "all"


@dataclass(frozen=True)
class NoRoom:
    """Why something is not stored: whose bytes are exhausted, how many are taken, and how many may be taken."""

    whose: Whose
    taken: int
    most: int

    @classmethod
    def decode(cls, answer: list[Any]) -> Self:
        """Return the values that follow the word `exhausted` in the answer of a script."""
        whose, taken, most = answer
        return cls(Whose(text(whose)), int(taken), int(most))


class Deletion(StrEnum):
    """The result of deleting a file."""

    DELETED = "deleted"
    #: A batch that has not ended reads the file.
    USED = "used"
    GONE = "gone"


class Files:
    """All files. Every method raises StoreUnavailable if the store does not answer or cannot write.

    Their records are in the store. Their parts are in the folder, if there is one, and otherwise in the store.
    """

    def __init__(self, client: redis.Redis, folder: FilesFolder | None = None) -> None:
        self._client = client
        #: The folder with the parts, or None if they are in the store.
        self.folder = folder

    def new_id(self, prefix: str = ID_PREFIX) -> str:
        return new_id(self._client, prefix)

    def add_part(self, file_id: str, tenant: str, part: int, content: bytes, *, forced: bool = False) -> NoRoom | None:
        """Store one part of a file; a repetition has no effect. The parts must be added in order.

        Return NoRoom if the bytes of files are exhausted; with `forced`, the part is stored all the same.
        Raises LookupError if the parts before it are gone, and FilesUnavailable if the folder cannot be written.
        """
        if self.folder is not None:
            # Only after this the part counts as stored. If this process ends in between, another one writes it again.
            try:
                self.folder.write(file_id, part * PART_BYTES, content)
            except FilesUnavailable:
                # The files of a batch, which are forced, are written again with the same id (FilesFolder.remove).
                if part == 0 and not forced:
                    self._remove_content(file_id)
                raise
        word, rest = self._call(
            "file_add",
            id=file_id,
            tenant=tenant,
            home=STORE if self.folder is None else FOLDER,
            part=part,
            bytes=len(content),
            content=content if self.folder is None else b"",
            forced=int(forced),
        )
        if word == "gone":
            raise LookupError(f"file {file_id!r} is gone")
        if word == "exhausted":
            if part == 0:
                # The file has no record, so nobody else could find and delete its content.
                self._remove_content(file_id)
            return NoRoom.decode(rest)
        return None

    def close(
        self,
        file_id: str,
        tenant: str,
        *,
        purpose: str,
        filename: str,
        ttl_s: int,
        repeats: Repeats = NOT_REPEATED,
    ) -> StoredFile | None:
        """Finish a file, which is then kept for `ttl_s`; a repetition has no effect. Raises LookupError.

        At least one part must have been added. If a file was finished with the same Idempotency-Key before, delete this
        one, and return the earlier one, or None if its upload had another body.
        """
        if self.folder is not None:
            self.folder.sync(file_id)
        word, rest = self._call(
            "file_close",
            id=file_id,
            tenant=tenant,
            purpose=purpose,
            filename=filename,
            ttl_s=ttl_s,
            idem_digest=repeats.idem_digest,
            body_digest=repeats.body_digest,
        )
        if word in {"repeated", "mismatch"}:
            self.delete(file_id, tenant)
            return None if word == "mismatch" else _stored(text(rest[0]), pairs(rest[1]))
        if word == "gone":
            raise LookupError(f"file {file_id!r} is gone")
        return _stored(file_id, pairs(rest[0]))

    def find(self, file_id: str, tenant: str) -> StoredFile | None:
        return _complete(file_id, tenant, read_hash(self._client, keys.file(file_id)))

    def delete(self, file_id: str, tenant: str) -> Deletion:
        """Delete a file, unless a batch reads it."""
        deletion = Deletion(self._call("file_delete", id=file_id, tenant=tenant)[0])
        if deletion is Deletion.DELETED:
            self._remove_content(file_id)
        return deletion

    def page(
        self, tenant: str, *, limit: int, after: str | None, oldest_first: bool, purpose: str = ""
    ) -> tuple[list[StoredFile], bool]:
        """Return up to `limit` of the tenant's files behind the id `after`, and whether there are more.

        If `purpose` is not empty, only files with this purpose are returned.
        """
        return read_page(
            self._client,
            kind="files",
            owner=f"{tenant}.{purpose}" if purpose else tenant,
            limit=limit,
            after=after,
            oldest_first=oldest_first,
            decode=lambda file_id, fields: _complete(file_id, tenant, fields),
        )

    def read(self, file: StoredFile, offset: int = 0) -> Iterator[bytes]:
        """Yield the file's bytes from an offset on, one part at a time. Raises LookupError if a part is gone."""
        part, skipped = divmod(offset, PART_BYTES)
        while part * PART_BYTES < file.bytes:
            content = self._read_part(file, part)
            if content is None:
                raise LookupError(f"part {part} of file {file.id!r} is gone")
            yield content[skipped:]
            part, skipped = part + 1, 0

    def _remove_content(self, file_id: str) -> None:
        # If the folder cannot be used, its content is cleared later, like all contents without a record (home.py).
        with contextlib.suppress(FilesUnavailable):
            if self.folder is not None:
                self.folder.remove(file_id)

    def _read_part(self, file: StoredFile, part: int) -> bytes | None:
        if file.home == FOLDER:
            length = min(PART_BYTES, file.bytes - part * PART_BYTES)
            return None if self.folder is None else self.folder.read(file.id, part * PART_BYTES, length)
        with store_faults(self._client):
            content: Any = self._client.hget(keys.file_parts(file.id), str(part))
        return content  # type: ignore[no-any-return]  # redis-py declares the reply of another type

    def _call(self, script: str, **given: scripts.Value) -> tuple[str, list[Any]]:
        with store_faults(self._client):
            return scripts.load(script).call(self._client, **given)


def _complete(file_id: str, tenant: str, fields: dict[str, str]) -> StoredFile | None:
    return _stored(file_id, fields) if fields.get("tenant") == tenant and "created_ms" in fields else None


def _stored(file_id: str, fields: dict[str, str]) -> StoredFile:
    return StoredFile(
        id=file_id,
        tenant=text(fields.get("tenant", "")),
        filename=fields.get("filename", ""),
        purpose=fields.get("purpose", ""),
        bytes=integer(fields.get("bytes")),
        created_ms=integer(fields.get("created_ms")),
        expires_ms=integer(fields.get("expires_ms")),
        home=fields.get("home", STORE),
    )

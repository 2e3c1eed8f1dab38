"""Writes the answers of a batch's lines to its two files, in the order of the lines."""

import hashlib
from collections.abc import Callable

from shared.store.batches.batches import ERROR, OUTPUT, Batches, StoredBatch
from shared.store.batches.files import ID_PREFIX, PART_BYTES, Files, StoredFile
from shared.store.batches.hashes import id_at
from web.runtime.context import DoorContext

_NAMES = {OUTPUT: "output", ERROR: "error"}


class _FileWriter:
    """Writes lines to one file, whose id and parts are the same each time, so that a repetition has no effect."""

    def __init__(self, files: Files, batch: StoredBatch, kind: str) -> None:
        self._files, self._batch, self._kind = files, batch, kind
        digest = hashlib.sha256(f"{batch.id}|{_NAMES[kind]}".encode()).hexdigest()
        self._id = id_at(ID_PREFIX, batch.number("finalizing_ms"), digest)
        self._held, self._parts = bytearray(), 0

    def add(self, line: str) -> int:
        """Add a line; return how many parts were stored."""
        self._held += line.encode("utf-8", "replace") + b"\n"
        before = self._parts
        while len(self._held) >= PART_BYTES:
            self._store(PART_BYTES)
        return self._parts - before

    def close(self, ttl_s: int) -> StoredFile | None:
        """Finish the file; return None if it has no line."""
        if self._held:
            self._store(len(self._held))
        if not self._parts:
            return None
        name = f"{self._batch.id}_{_NAMES[self._kind]}.jsonl"
        return self._files.close(self._id, self._batch.tenant, purpose="batch_output", filename=name, ttl_s=ttl_s)

    def _store(self, count: int) -> None:
        # Computed answers are stored regardless of the tenant's bytes, which were counted when the answers came.
        content = bytes(self._held[:count])
        self._files.add_part(self._id, self._batch.tenant, self._parts, content, forced=True)
        del self._held[:count]
        self._parts += 1


def write_files(context: DoorContext, batch: StoredBatch, beat: Callable[[], None]) -> dict[str, str]:
    """Write the files; return the fields of the batch that name them. `beat` is called from time to time.

    Raises StoreUnavailable, and what `beat` raises.
    """
    files, batches = context.files, Batches(context.store.client)
    writers = {kind: _FileWriter(files, batch, kind) for kind in (OUTPUT, ERROR)}
    for _, answer in batches.answers(batch.id, batch.number("read_lines")):
        if answer[:1] in writers and writers[answer[0]].add(answer[1:]):
            beat()
    fields = {}
    for kind, writer in writers.items():
        beat()
        file = writer.close(context.settings.file_ttl_s)
        if file is not None:
            fields[f"{_NAMES[kind]}_file"] = file.id
    return fields

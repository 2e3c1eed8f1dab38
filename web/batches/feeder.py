"""The duty that feeds batches: each HTTP process claims one batch after the other for a pass, in a thread.

The thread also removes the contents of expired files from the folder, if files are kept in one.
"""

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable

from shared.errors import StoreUnavailable
from shared.log import get_logger
from shared.store.batches.batches import (
    ERROR,
    OUTPUT,
    Batches,
    BatchProgress,
    BatchStatus,
    ClaimedBatch,
    ClaimLost,
    StoredBatch,
)
from shared.store.batches.files import PART_BYTES, StoredFile
from shared.store.batches.hashes import id_at
from shared.store.batches.storage_location import remove_old_files
from web.batches.feeding import ClaimHolder, Feeding
from web.batches.lines import Validated, longest_line, read_lines, validate_lines
from web.http import shutdown
from web.jobs.callers import Caller, stored_caller
from web.runtime.context import DoorContext

#: How long a batch rests that another program has spoiled, in ms.
_SPOILED_REST_MS = 60_000


def work_on(context: DoorContext, claimed: ClaimedBatch) -> None:
    """Do the work for a batch that is possible now. Raises StoreUnavailable, and ClaimLost if the claim has ended."""
    batch, batches = claimed.batch, Batches(context.store.client)
    if batch.status is BatchStatus.VALIDATING:
        _validate(context, claimed, batches)
    elif batch.status in {BatchStatus.IN_PROGRESS, BatchStatus.CANCELLING}:
        _feed(context, claimed)
    elif batch.status is BatchStatus.FINALIZING:
        _finish(context, claimed, batches)
    else:
        log.error("batch.spoiled", batch=batch.id, status=batch.fields.get("status", "")[:60])
        batches.write(claimed, BatchProgress(), rest_ms=_SPOILED_REST_MS)


def _validate(context: DoorContext, claimed: ClaimedBatch, batches: Batches) -> None:
    batch, file = claimed.batch, _input_file(context, claimed)
    longest = longest_line(context.settings)
    try:
        if file is None:
            raise LookupError("the input file is gone")  # noqa: TRY301 - as a part that is gone
        checked = validate_lines(
            read_lines(context.files.read(file), longest=longest),
            endpoint=batch.fields.get("endpoint", ""),
            max_lines=context.settings.max_batch_lines,
            longest=longest,
            beat=ClaimHolder(batches, claimed, context.settings.lease_ms).beat,
        )
    except LookupError:
        problem = {"code": "input_file_lost", "message": "the input file is gone", "param": None, "line": None}
        checked = Validated(0, [problem])
    if checked.problems:
        errors = json.dumps(checked.problems, separators=(",", ":"))
        progress = BatchProgress({"errors": errors}, change=(BatchStatus.VALIDATING, BatchStatus.FAILED))
        batches.write(claimed, progress, rest_ms=0, ends=True)
        log.info("batch.invalid", batch=batch.id, tenant=batch.tenant, problems=len(checked.problems))
        return
    progress = BatchProgress({"total": str(checked.total)}, change=(BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS))
    batches.write(claimed, progress, rest_ms=0)


def _feed(context: DoorContext, claimed: ClaimedBatch) -> None:
    file = _input_file(context, claimed)
    caller = _caller(context, claimed)
    try:
        Feeding(context, claimed, file, caller).run()
    except LookupError as error:
        log.warning("batch.input_lost", batch=claimed.batch.id, error=str(error))
        # The next pass knows all lines that this one has opened, and answers them.
        Batches(context.store.client).write(claimed, BatchProgress({"input_lost": "1"}), rest_ms=0)


def _finish(context: DoorContext, claimed: ClaimedBatch, batches: Batches) -> None:
    batch = claimed.batch
    fields = write_files(context, batch, ClaimHolder(batches, claimed, context.settings.lease_ms).beat)
    ends_as = batch.fields.get("ends_as", "")
    status = BatchStatus(ends_as) if ends_as in {"cancelled", "expired", "failed"} else BatchStatus.COMPLETED
    batches.write(claimed, BatchProgress(fields, change=(BatchStatus.FINALIZING, status)), rest_ms=0, ends=True)
    log.info("batch.ended", batch=batch.id, tenant=batch.tenant, status=status.value)


def _input_file(context: DoorContext, claimed: ClaimedBatch) -> StoredFile | None:
    batch = claimed.batch
    if batch.fields.get("input_lost") == "1":
        return None
    return context.files.find(batch.fields.get("input_file", ""), batch.tenant)


def _caller(context: DoorContext, claimed: ClaimedBatch) -> Caller | None:
    """Return on whose behalf the lines are offered, or None while the tenant is disabled or the key is not valid."""
    fields = claimed.batch.fields
    return stored_caller(context, claimed.batch.tenant, fields.get("key_label", ""), fields.get("key_digest", ""))


_NAMES = {OUTPUT: "output", ERROR: "error"}


class _FileWriter:
    """Writes lines to one file, whose id and parts are the same each time, so that a repetition has no effect."""

    def __init__(self, context: DoorContext, batch: StoredBatch, kind: str) -> None:
        self._files, self._batch, self._kind = context.files, batch, kind
        digest = hashlib.sha256(f"{batch.id}|{_NAMES[kind]}".encode()).hexdigest()
        self._id = id_at(context.file_prefix, batch.number("finalizing_ms"), digest)
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
    batches = Batches(context.store.client)
    writers = {kind: _FileWriter(context, batch, kind) for kind in (OUTPUT, ERROR)}
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


log = get_logger()

#: The longest wait before a process looks whether a batch is due, and the wait after an error, in seconds.
_LOOK_S, _AFTER_ERROR_S = 1.0, 1.0
#: How often a process removes the contents of expired files from the folder, in seconds.
CLEAR_EVERY_S = 600.0


def start_feeding(context: DoorContext) -> None:
    """Start the thread."""
    threading.Thread(target=_run, args=(context,), name="batches", daemon=True).start()


def feed_once(context: DoorContext) -> float:
    """Work on the batch that is due, if there is one; return the seconds to wait.

    Raises StoreUnavailable.
    """
    claimed = Batches(context.store.client).claim(secrets.token_hex(8), lease_ms=context.settings.lease_ms)
    if claimed is None:
        return _LOOK_S
    if isinstance(claimed, int):
        return min(_LOOK_S, claimed / 1000)
    try:
        work_on(context, claimed)
    except ClaimLost:
        log.warning("batch.claim_lost", batch=claimed.batch.id)
    return 0.0


def clear_folder(context: DoorContext) -> None:
    """Remove the contents of expired files from the folder, if there is one."""
    folder = context.files.folder
    if folder is None:
        return
    try:
        removed = remove_old_files(context.store.client, folder)
    except StoreUnavailable as error:
        log.warning("files.not_cleared", error=str(error))
    else:
        log.info("files.cleared", removed=removed)


def _run(context: DoorContext) -> None:
    next_clearing_s = time.monotonic() + CLEAR_EVERY_S
    while not (shutdown.requested.is_set() or context.closed.is_set()):
        if time.monotonic() >= next_clearing_s:
            next_clearing_s = time.monotonic() + CLEAR_EVERY_S
            clear_folder(context)
        try:
            # Until the directory was read, the name of the cell is not known, which the ids of jobs and files have.
            rest_s = feed_once(context) if context.cells.is_read else _AFTER_ERROR_S
        except StoreUnavailable:
            rest_s = _AFTER_ERROR_S
        except Exception:
            # The batch is due again when the claim has ended; the others must not wait for it.
            log.exception("batch.fault")
            rest_s = _AFTER_ERROR_S
        if rest_s > 0:
            context.closed.wait(rest_s)

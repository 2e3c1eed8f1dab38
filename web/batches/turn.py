"""One turn of the process that has claimed a batch: validate its lines, feed them to the queue, or write its files."""

import json

from shared.accounts.api_keys import ApiKeys
from shared.errors import ConfigError
from shared.log import get_logger
from shared.store.batches.batches import Batches, BatchProgress, BatchStatus, ClaimedBatch
from shared.store.batches.files import StoredFile
from web.batches.claim_holder import ClaimHolder
from web.batches.feeding import Feeding
from web.batches.lines import longest_line, read_lines
from web.batches.results import write_files
from web.batches.validation import Validated, validate_lines
from web.http.api_errors import ApiError
from web.jobs.callers import Caller, enabled_policy
from web.runtime.context import DoorContext

log = get_logger()

#: How long a batch rests that another program has spoiled, in ms.
_SPOILED_REST_MS = 60_000


def take_turn(context: DoorContext, claimed: ClaimedBatch) -> None:
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
    try:
        checked = _check_lines(context, claimed, batches, file)
    except LookupError:
        problem = {"code": "input_file_lost", "message": "the input file is gone", "param": None, "line": None}
        checked = Validated(0, [problem])
    if checked.problems:
        errors = json.dumps(checked.problems, separators=(",", ":"))
        step = BatchProgress({"errors": errors}, change=(BatchStatus.VALIDATING, BatchStatus.FAILED))
        batches.write(claimed, step, rest_ms=0, ends=True)
        log.info("batch.invalid", batch=batch.id, tenant=batch.tenant, problems=len(checked.problems))
        return
    step = BatchProgress({"total": str(checked.total)}, change=(BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS))
    batches.write(claimed, step, rest_ms=0)


def _check_lines(context: DoorContext, claimed: ClaimedBatch, batches: Batches, file: StoredFile | None) -> Validated:
    if file is None:
        raise LookupError("the input file is gone")
    longest = longest_line(context.settings)
    return validate_lines(
        read_lines(context.files.read(file), longest=longest),
        endpoint=claimed.batch.fields.get("endpoint", ""),
        max_lines=context.settings.max_batch_lines,
        longest=longest,
        beat=ClaimHolder(batches, claimed, context.settings.lease_ms).beat,
    )


def _feed(context: DoorContext, claimed: ClaimedBatch) -> None:
    file = _input_file(context, claimed)
    caller = _caller(context, claimed)
    try:
        Feeding(context, claimed, file, caller).run()
    except LookupError as error:
        log.warning("batch.input_lost", batch=claimed.batch.id, error=str(error))
        # The next turn knows all lines that this one has opened, and answers them.
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
    batch, digest = claimed.batch, claimed.batch.fields.get("key_digest", "")
    try:
        policy = enabled_policy(context, batch.tenant)
        if context.settings.auth == "open" or not digest:
            return Caller(batch.tenant, batch.fields.get("key_label", ""), policy)
        record = ApiKeys(context.store.client).find(digest)
    except (ApiError, ConfigError):
        return None
    if record is None or not record.may_act_as(batch.tenant):
        return None
    return Caller(batch.tenant, record.label, policy, record.id, record.bounds, key_digest=digest)

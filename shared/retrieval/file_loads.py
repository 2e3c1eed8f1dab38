"""Statements with which doors claim files of vector stores to load them; one transaction each.

in_progress ─ claim ─> claimed ─ put_document, finish ─> completed
     ^                    │ ├── fail ─> failed
     └─ release, or the claim ends because its door has died

A file that was changed, canceled or deleted has lost its claim; then `put_document` and `finish` raise ClaimGone.
"""

from collections.abc import Collection, Sequence

from shared.retrieval.connecting import Connection
from shared.retrieval.errors import ClaimGone
from shared.retrieval.file_records import ErrorCode, FileLoad, NewFile
from shared.retrieval.tenant_documents import as_metadata
from shared.retrieval.transactions import keeper_transaction, tenant_transaction

#: Claims the next file of the tenant with the fewest claims. Among several such tenants, the oldest file decides.
_CLAIM = """
WITH waiting AS (
  SELECT d.tenant, count(*) FILTER (WHERE d.claimed_until > clock_timestamp()) AS running,
    min(d.number) FILTER (WHERE d.claimed_until IS NULL OR d.claimed_until <= clock_timestamp()) AS first
  FROM penstock.documents d JOIN penstock.collections c ON c.number = d.collection
  WHERE d.state = 'in_progress' AND NOT c.gone AND d.tenant <> ALL (%s) GROUP BY d.tenant
), next AS (
  SELECT first FROM waiting WHERE first IS NOT NULL ORDER BY running, first LIMIT 1
)
UPDATE penstock.documents d
SET claim = %s, claimed_until = clock_timestamp() + make_interval(secs => %s), attempts = attempts + 1
FROM penstock.collections c
WHERE d.number = (SELECT first FROM next) AND c.number = d.collection AND d.state = 'in_progress'
  AND (d.claimed_until IS NULL OR d.claimed_until <= clock_timestamp())
RETURNING d.tenant, c.name, d.id, coalesce(d.filename, d.id), d.metadata, d.chunk_tokens, d.overlap_tokens,
  coalesce(d.key_label, ''), coalesce(d.key_digest, ''), d.attempts
"""


def claim(
    connection: Connection, token: str, lease_s: float, without: Collection[str], until_s: float
) -> FileLoad | None:
    """Claim a file for `lease_s` seconds, but of no tenant in `without`. `token` must be unique.

    Returns None if no file waits, or if other processes were faster.
    """
    with keeper_transaction(connection, until_s):
        row = connection.execute(_CLAIM.encode(), (list(without), token, lease_s)).fetchone()
    if row is None:
        return None
    tenant, name, id_, filename, metadata, chunk_tokens, overlap_tokens, label, digest, attempts = row
    file = NewFile(id_, filename, as_metadata(metadata), chunk_tokens, overlap_tokens)
    return FileLoad(tenant, name, file, label, digest, attempts, token)


def renew(connection: Connection, tokens: Sequence[str], lease_s: float, until_s: float) -> frozenset[str]:
    """Prolong claims, and return those that have not ended."""
    with keeper_transaction(connection, until_s):
        rows = connection.execute(
            "UPDATE penstock.documents SET claimed_until = clock_timestamp() + make_interval(secs => %s) "
            "WHERE state = 'in_progress' AND claim = ANY (%s) RETURNING claim",
            (lease_s, list(tokens)),
        )
        return frozenset(str(row[0]) for row in rows)


def release(connection: Connection, load: FileLoad, rest_s: float, until_s: float) -> None:
    """Give a file back, which is claimed again after `rest_s` seconds at the earliest. The claim does not count."""
    with tenant_transaction(connection, load.tenant, until_s):
        connection.execute(
            "UPDATE penstock.documents SET claim = NULL, attempts = attempts - 1, "
            "claimed_until = clock_timestamp() + make_interval(secs => %s) "
            "WHERE tenant = %s AND state = 'in_progress' AND claim = %s",
            (rest_s, load.tenant, load.claim),
        )


def finish(connection: Connection, load: FileLoad, until_s: float) -> None:
    """Note that the chunks of a file are already those of its content. Raises ClaimGone."""
    with tenant_transaction(connection, load.tenant, until_s):
        changed = connection.execute(
            "UPDATE penstock.documents SET state = 'completed', claim = NULL, claimed_until = NULL "
            "WHERE tenant = %s AND state = 'in_progress' AND claim = %s",
            (load.tenant, load.claim),
        )
        if not changed.rowcount:
            raise ClaimGone


def fail(connection: Connection, load: FileLoad, code: ErrorCode, message: str, until_s: float) -> None:
    """Note why a file cannot be loaded, unless its claim has ended."""
    with tenant_transaction(connection, load.tenant, until_s):
        connection.execute(
            "UPDATE penstock.documents SET state = 'failed', error_code = %s, error = %s, claim = NULL, "
            "claimed_until = NULL WHERE tenant = %s AND state = 'in_progress' AND claim = %s",
            (code, message, load.tenant, load.claim),
        )

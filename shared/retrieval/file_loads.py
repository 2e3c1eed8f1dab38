"""Statements with which doors claim files of vector stores to load them; one transaction each.

in_progress ─ claim ─> claimed ─ put_document, finish ─> completed
     ^                    │ ├── fail ─> failed
     └─ release, or the claim ends because its door has died

A file that was changed, canceled or deleted has lost its claim; then `put_document` and `finish` raise ClaimGone.
"""

from collections.abc import Collection, Sequence

from psycopg.types.json import Jsonb

from shared.retrieval.connecting import Connection
from shared.retrieval.errors import ClaimGone
from shared.retrieval.file_records import ErrorCode, FileLoad, LoadsOverview, NewFile, UnloadedFile
from shared.retrieval.records import storable
from shared.retrieval.tenant_collections import unix_ms
from shared.retrieval.tenant_documents import as_metadata, count_change, lock_collection
from shared.retrieval.transactions import keeper_transaction, limit, tenant_transaction

#: The longest error of a load, in characters.
_MAX_ERROR = 1_000
#: How many files of each state operators see, and the statement for them.
_SHOWN = 20
_UNLOADED = """
SELECT d.tenant, c.name, coalesce(d.filename, d.id), d.state, coalesce(d.error, ''), d.added_at
FROM penstock.documents d JOIN penstock.collections c ON c.number = d.collection AND NOT c.gone
WHERE d.state = %s ORDER BY d.added_at {order}, d.number LIMIT %s
"""
#: Claims the next file of the tenant with the fewest claims. Among several such tenants, the oldest file decides.
#: A file that another transaction writes or changes now, which may take minutes, is passed over.
#: A repeated claim, whose answer was lost with its connection, gets the same file.
#: `tenants` and `models` are the pairs whose files rest.
_CLAIM = """
WITH loads AS (
  SELECT tenant, count(*) FILTER (WHERE claim IS NOT NULL AND claimed_until > clock_timestamp()) AS running
  FROM penstock.documents WHERE state = 'in_progress' GROUP BY tenant
), next AS (
  SELECT d.number FROM penstock.documents d JOIN penstock.collections c ON c.number = d.collection
  JOIN loads ON loads.tenant = d.tenant
  WHERE d.state = 'in_progress' AND NOT c.gone AND (d.claim = %(token)s OR d.tenant <> ALL (%(without)s)
    AND (d.claimed_until IS NULL OR d.claimed_until <= clock_timestamp())
    AND NOT EXISTS (SELECT FROM unnest(%(tenants)s::text[], %(models)s::text[]) AS resting (tenant, model)
      WHERE resting.tenant = d.tenant AND resting.model = c.model))
  ORDER BY d.claim IS DISTINCT FROM %(token)s, loads.running, d.number LIMIT 1 FOR NO KEY UPDATE OF d SKIP LOCKED
)
UPDATE penstock.documents d
SET claim = %(token)s, claimed_until = clock_timestamp() + make_interval(secs => %(lease_s)s), attempts = attempts + 1,
  error = NULL
FROM next, penstock.collections c
WHERE d.number = next.number AND c.number = d.collection
RETURNING d.tenant, c.name, d.id, coalesce(d.filename, d.id), d.metadata, d.chunk_tokens, d.overlap_tokens,
  coalesce(d.key_label, ''), coalesce(d.key_digest, ''), d.attempts, c.model,
  extract(epoch FROM clock_timestamp() - d.added_at)::float
"""
#: A file that is being written is locked. Nobody else can claim it meanwhile, so it needs no renewal, and the other
#: claims of its process do not wait for it.
_RENEW = """
WITH claimed AS (
  SELECT number FROM penstock.documents WHERE state = 'in_progress' AND claim = ANY (%(tokens)s)
  FOR NO KEY UPDATE SKIP LOCKED
), renewed AS (
  UPDATE penstock.documents d SET claimed_until = clock_timestamp() + make_interval(secs => %(lease_s)s)
  FROM claimed WHERE d.number = claimed.number
)
SELECT claim FROM penstock.documents WHERE state = 'in_progress' AND claim = ANY (%(tokens)s)
"""


def claim(
    connection: Connection,
    token: str,
    lease_s: float,
    without: Collection[str],
    resting: Collection[tuple[str, str]],
    until_s: float,
) -> FileLoad | None:
    """Claim a file for `lease_s` seconds. `token` must be unique.

    Files of the tenants in `without` are passed over, and those of the tenants and embedding models in `resting`.
    Returns None if no file waits.
    """
    with keeper_transaction(connection, until_s):
        values = {"without": list(without), "token": token, "lease_s": lease_s}
        values |= {"tenants": [tenant for tenant, _ in resting], "models": [model for _, model in resting]}
        row = connection.execute(_CLAIM.encode(), values).fetchone()
    if row is None:
        return None
    tenant, name, id_, filename, metadata, chunk_tokens, overlap_tokens, label, digest, attempts, model, waited_s = row
    file = NewFile(id_, filename, as_metadata(metadata), chunk_tokens, overlap_tokens)
    return FileLoad(tenant, name, file, label, digest, attempts, token, model, waited_s)


def renew(connection: Connection, tokens: Sequence[str], lease_s: float, until_s: float) -> frozenset[str]:
    """Prolong claims, and return those that have not ended."""
    with keeper_transaction(connection, until_s):
        rows = connection.execute(_RENEW.encode(), {"tokens": list(tokens), "lease_s": lease_s})
        return frozenset(str(row[0]) for row in rows)


def release(connection: Connection, load: FileLoad, rest_s: float, why: str, until_s: float) -> None:
    """Give a file back, which is claimed again after `rest_s` seconds at the earliest. The claim does not count.

    `why` is what operators read as the reason meanwhile.
    """
    with tenant_transaction(connection, load.tenant, until_s):
        connection.execute(
            "UPDATE penstock.documents SET claim = NULL, attempts = attempts - 1, error = %s, "
            "claimed_until = clock_timestamp() + make_interval(secs => %s) "
            "WHERE tenant = %s AND state = 'in_progress' AND claim = %s",
            (storable(why)[:_MAX_ERROR], rest_s, load.tenant, load.claim),
        )


def finish(connection: Connection, load: FileLoad, until_s: float) -> None:
    """Note that the chunks of a file are already those of its content, and give them the file's metadata.

    Raises ClaimGone and CollectionMissing.
    """
    with tenant_transaction(connection, load.tenant, until_s):
        number, _, _ = lock_collection(connection, load.tenant, load.collection)
        row = connection.execute(
            "UPDATE penstock.documents SET state = 'completed', claim = NULL, claimed_until = NULL "
            "WHERE tenant = %s AND state = 'in_progress' AND claim = %s RETURNING number, metadata",
            (load.tenant, load.claim),
        ).fetchone()
        if row is None:
            raise ClaimGone
        document, metadata = row[0], Jsonb(row[1])
        limit(connection, until_s)
        # As texts, because 1 and 1.0 are equal otherwise.
        changed = connection.execute(
            "UPDATE penstock.chunks SET metadata = %s WHERE collection = %s AND document = %s "
            "AND metadata::text <> %s::jsonb::text",
            (metadata, number, document, metadata),
        )
        if changed.rowcount:
            count_change(connection, number, 0, 0, 0)


def fail(connection: Connection, load: FileLoad, code: ErrorCode, message: str, until_s: float) -> None:
    """Note why a file cannot be loaded, unless its claim has ended."""
    with tenant_transaction(connection, load.tenant, until_s):
        connection.execute(
            "UPDATE penstock.documents SET state = 'failed', error_code = %s, error = %s, claim = NULL, "
            "claimed_until = NULL WHERE tenant = %s AND state = 'in_progress' AND claim = %s",
            (code, storable(message)[:_MAX_ERROR], load.tenant, load.claim),
        )


def read_overview(connection: Connection, until_s: float) -> LoadsOverview:
    """Return what operators see of the loads of all tenants: the files that failed last, and those that wait longest.

    Raises as `keeper_transaction` does.
    """
    with keeper_transaction(connection, until_s):
        counts = connection.execute(
            "SELECT count(*) FILTER (WHERE state = 'in_progress' AND NOT claimed), "
            "count(*) FILTER (WHERE state = 'in_progress' AND claimed), count(*) FILTER (WHERE state = 'failed') "
            "FROM (SELECT d.state, d.claim IS NOT NULL AND d.claimed_until > clock_timestamp() AS claimed "
            "FROM penstock.documents d JOIN penstock.collections c ON c.number = d.collection AND NOT c.gone "
            "WHERE d.state IN ('in_progress', 'failed')) AS loads"
        ).fetchone()
        rows = [
            row
            for state, order in (("failed", "DESC"), ("in_progress", "ASC"))
            for row in connection.execute(_UNLOADED.format(order=order).encode(), (state, _SHOWN))
        ]
    files = tuple(UnloadedFile(*(*row[:5], unix_ms(row[5]))) for row in rows)
    waiting, running, failed = map(int, counts or (0, 0, 0))
    return LoadsOverview(waiting, running, failed, files)

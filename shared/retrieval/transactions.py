"""Transactions for one tenant, or for work on all of them: each sets its role, its tenant and its time limit."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from shared.retrieval import schema
from shared.retrieval.connecting import Connection
from shared.retrieval.errors import InvalidInput, OutOfTime
from shared.retrieval.records import storable

#: How long a statement waits for a lock. Then its connection serves other calls first (shared/retrieval/calls.py).
_LOCK = "1s"
#: The two roles (shared/retrieval/schema.py).
TENANT_ROLE, KEEPER_ROLE = "penstock_tenant", "penstock_keeper"


@contextmanager
def tenant_transaction(
    connection: Connection, tenant: str, until_s: float, settings: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Run the block in a transaction that sees the rows of one tenant only.

    Each statement is canceled by the server at `until_s` (of time.monotonic), as far as `limit` is called before it.
    `settings` are further settings of the transaction. Raises OutOfTime if the time is over, DatabaseAway if the tables
    have another format than this version's, and psycopg.Error.
    """
    if not tenant or storable(tenant) != tenant:
        # Such a name would be stored as another one, which could be another tenant's.
        raise InvalidInput("tenant", tenant, "is not a tenant's name")
    wanted = {"role": TENANT_ROLE, "penstock.tenant": tenant, **(settings or {})}
    with _transaction(connection, until_s, wanted):
        yield


@contextmanager
def keeper_transaction(connection: Connection, until_s: float) -> Iterator[None]:
    """Run the block in a transaction that sees the rows of all tenants. Raises as `tenant_transaction` does."""
    with _transaction(connection, until_s, {"role": KEEPER_ROLE}):
        yield


def limit(connection: Connection, until_s: float) -> None:
    """Let the server cancel each later statement of the transaction at `until_s`. Raises OutOfTime if that is over."""
    connection.execute("SELECT set_config('statement_timeout', %s, true)", (_timeout(until_s),))


@contextmanager
def _transaction(connection: Connection, until_s: float, settings: Mapping[str, str]) -> Iterator[None]:
    limits = {"statement_timeout": _timeout(until_s), "lock_timeout": _LOCK}
    wanted = {**settings, **limits, "search_path": connection.search_path}
    calls = ", ".join(["set_config(%s, %s, true)"] * len(wanted))
    values = [text for item in wanted.items() for text in item]
    with connection.transaction():
        # The format is read in the same transaction, so that it cannot change until the transaction has ended.
        query = f"SELECT (SELECT number FROM penstock.format), {calls}"  # noqa: S608 - placeholders only
        row = connection.execute(query.encode(), values).fetchone()
        schema.check_format(row and row[0])
        yield


def _timeout(until_s: float) -> str:
    """Return the time that is left as statement_timeout. Raises OutOfTime if less than a millisecond is."""
    left_ms = int((until_s - time.monotonic()) * 1000)
    if left_ms < 1:
        raise OutOfTime(started=True)
    return f"{left_ms}ms"

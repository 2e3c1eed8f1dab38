"""Maps errors of the redis library to Penstock's exceptions: temporary errors become StoreUnavailable."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis import exceptions as failed

from shared.errors import StoreUnavailable

#: Error codes with which a server reports that it currently cannot answer or write. For an error inside a script, Redis
#: versions before 7 put the code in the middle of the message ("… @user_script:1: -OOM command not allowed …").
_TEMPORARY_CODE = re.compile(
    r"(?:^|[\s:-])(OOM|MISCONF|READONLY|LOADING|BUSY|MASTERDOWN|NOREPLICAS|CLUSTERDOWN|TRYAGAIN|UNBLOCKED)\s"
)

_TEMPORARY_ERRORS = (
    failed.ConnectionError,
    failed.TimeoutError,
    failed.OutOfMemoryError,
    failed.ReadOnlyError,
    failed.ClusterDownError,
    failed.TryAgainError,
    failed.InvalidResponse,
    OSError,
)


@contextmanager
def store_faults(client: redis.Redis) -> Iterator[None]:
    """Raise StoreUnavailable in place of each redis error inside the block that means the store cannot serve now.

    Other error replies (a script that raised, a key of the wrong type) are bugs in Penstock and are raised unchanged.
    After a READONLY error, the idle connections of the pool are closed, so that the next call looks up again which
    server is the primary.
    """
    try:
        yield
    except _TEMPORARY_ERRORS as error:
        if isinstance(error, failed.ReadOnlyError):
            client.connection_pool.disconnect(inuse_connections=False)
        raise StoreUnavailable(_message(error)) from error
    except failed.ResponseError as error:
        found = _TEMPORARY_CODE.search(str(error))
        if found is None:
            raise
        if found[1] == "READONLY":
            client.connection_pool.disconnect(inuse_connections=False)
        raise StoreUnavailable(_message(error)) from error


def raise_if_unavailable(client: redis.Redis, error: Exception) -> Exception:
    """Return `error`, an error reply of the store, unless it is temporary. Raises StoreUnavailable if it is."""
    try:
        with store_faults(client):
            raise error
    except StoreUnavailable:
        raise
    except redis.ResponseError as own_error:
        return own_error


def readable(reply: Any) -> Any:
    """Return one reply of a pipeline that raises no errors itself; None if its key holds a value of another type.

    So a key that another program has spoiled hides no other key of the same pipeline. Raises any other error of the
    reply, so call it inside store_faults.
    """
    if not isinstance(reply, Exception):
        return reply
    if str(reply).startswith("WRONGTYPE"):
        return None
    raise reply


def _message(error: Exception) -> str:
    return f"the store cannot serve: {type(error).__name__}: {error}"

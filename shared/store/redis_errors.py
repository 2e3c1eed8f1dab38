"""Which of our faults a failed call to the store is: everything that says `not now` is StoreUnavailable."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import redis
from redis import exceptions as failed

from shared.errors import StoreUnavailable

#: Error codes by which a server says that it cannot serve or write for now. Inside a script Redis
#: before 7 wraps them in a sentence of its own ("… @user_script:1: -OOM command not allowed …").
_NOT_NOW = re.compile(
    r"(?:^|[\s:-])(OOM|MISCONF|READONLY|LOADING|BUSY|MASTERDOWN|NOREPLICAS|CLUSTERDOWN|TRYAGAIN|UNBLOCKED)\s"
)

_NOT_NOW_TYPES = (
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
    """Turn what the library raises inside the block into StoreUnavailable, where the store is at fault.

    Other replies with an error (a script that raised, a key of the wrong type) pass through: they are
    our own fault. After READONLY the pool's idle connections are dropped, so that the next call looks
    up anew which server is the primary.
    """
    try:
        yield
    except _NOT_NOW_TYPES as error:
        if isinstance(error, failed.ReadOnlyError):
            client.connection_pool.disconnect(inuse_connections=False)
        raise StoreUnavailable(_sentence(error)) from error
    except failed.ResponseError as error:
        found = _NOT_NOW.search(str(error))
        if found is None:
            raise
        if found[1] == "READONLY":
            client.connection_pool.disconnect(inuse_connections=False)
        raise StoreUnavailable(_sentence(error)) from error


def own_fault(client: redis.Redis, error: Exception) -> Exception:
    """The error of a reply, if it is our own fault. Raises StoreUnavailable if it says `not now`."""
    try:
        with store_faults(client):
            raise error
    except StoreUnavailable:
        raise
    except redis.ResponseError as ours:
        return ours


def _sentence(error: Exception) -> str:
    return f"the store cannot serve: {type(error).__name__}: {error}"

"""Maps errors of the redis library to Penstock's exceptions: temporary errors become StoreUnavailable with a fault.

No other module reads the codes and messages with which a server or the library says why the store cannot serve.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis import exceptions as failed
from redis.sentinel import MasterNotFoundError

from shared.errors import StoreUnavailable
from shared.store.clients.quick_client import follow
from shared.store_fault import StoreFault

#: The faults of the error codes with which a server reports that it currently cannot answer or write. MISCONF has two.
_FAULT_OF_CODE = {
    "OOM": StoreFault.MEMORY_FULL,
    "MISCONF": StoreFault.DISK_FAILED,
    "READONLY": StoreFault.READ_ONLY,
    "LOADING": StoreFault.LOADING,
    "BUSY": StoreFault.BUSY,
    # A replica that has lost its primary and must not give old data.
    "MASTERDOWN": StoreFault.READ_ONLY,
    "NOREPLICAS": StoreFault.TOO_FEW_REPLICAS,
    "CLUSTERDOWN": StoreFault.OTHER,
    "TRYAGAIN": StoreFault.OTHER,
    # The server became a replica while a client waited.
    "UNBLOCKED": StoreFault.READ_ONLY,
}
#: For an error inside a script, Redis versions before 7 put the code in the middle of the message ("…
#: @user_script:1: -OOM command not allowed …").
_TEMPORARY_CODE = re.compile(rf"(?:^|[\s:-])({'|'.join(_FAULT_OF_CODE)})\s")
#: The reasons of MISCONF for a full disk (ENOSPC, EDQUOT), if the append-only file cannot be written.
_DISK_FULL = re.compile("No space left on device|Disk quota exceeded")

_TEMPORARY_ERRORS = (
    failed.ConnectionError,
    failed.TimeoutError,
    failed.OutOfMemoryError,
    failed.ReadOnlyError,
    failed.ClusterDownError,
    failed.TryAgainError,
    # The slot of the keys moves, or has moved, to another node of the cluster.
    failed.AskError,
    failed.InvalidResponse,
    OSError,
)
#: The fault of each class of errors, the first that matches. Most are subclasses of ConnectionError.
_FAULT_OF_CLASS: tuple[tuple[type[Exception], StoreFault], ...] = (
    (failed.BusyLoadingError, StoreFault.LOADING),
    (failed.AuthenticationError, StoreFault.PASSWORD_REFUSED),
    (failed.OutOfMemoryError, StoreFault.MEMORY_FULL),
    (failed.ReadOnlyError, StoreFault.READ_ONLY),
    (failed.MasterDownError, StoreFault.READ_ONLY),
    (failed.InvalidResponse, StoreFault.NO_STORE),
    (MasterNotFoundError, StoreFault.NO_PRIMARY),
    # All connections of this process's own pool are in use: the store answers none of them.
    (failed.MaxConnectionsError, StoreFault.TIMEOUT),
    (failed.TimeoutError, StoreFault.TIMEOUT),
    (TimeoutError, StoreFault.TIMEOUT),
)
#: Parts of the messages of errors without a class of their own.
_FAULT_OF_MESSAGE = (
    ("Authentication required", StoreFault.PASSWORD_MISSING),
    ("max number of clients reached", StoreFault.CONNECTIONS_FULL),
    ("Protocol error", StoreFault.NO_STORE),
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
    except (*_TEMPORARY_ERRORS, failed.ResponseError) as error:
        fault = find_fault(error)
        if fault is None:
            raise
        if isinstance(error, failed.AskError) and not follow(client, error):
            hint = "; the keys are on another node of a cluster, which is named by REDIS_URL=redis+cluster://…"
        else:
            hint = ""
        if fault is StoreFault.READ_ONLY:
            client.connection_pool.disconnect(inuse_connections=False)
        message = f"the store cannot serve: it {fault.says} ({type(error).__name__}: {error}){hint}"
        raise StoreUnavailable(message, fault) from error


def find_fault(error: Exception) -> StoreFault | None:
    """Return why the store cannot serve, or None if the error says nothing of the kind."""
    message = str(error)
    for part, fault in _FAULT_OF_MESSAGE:
        if part in message and isinstance(error, _TEMPORARY_ERRORS):
            return fault
    for error_class, fault in _FAULT_OF_CLASS:
        if isinstance(error, error_class):
            return fault
    if (found := _TEMPORARY_CODE.search(message)) is not None:
        fault = _FAULT_OF_CODE[found[1]]
        return StoreFault.DISK_FULL if fault is StoreFault.DISK_FAILED and _DISK_FULL.search(message) else fault
    if isinstance(error, failed.ConnectionError | OSError):
        return StoreFault.UNREACHABLE
    return StoreFault.OTHER if isinstance(error, _TEMPORARY_ERRORS) else None


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

"""Why the store cannot serve, as a closed set of reasons, in words for people who do not know its error codes.

shared/store/redis_errors.py finds the fault of an error. The values are published: in refusals, in the answer of
`/health/ready` and in `penstock doctor --json`. The words name no host, user or password, because anybody may read
them.
"""

from dataclasses import dataclass
from enum import Enum


class StoreFault(Enum):
    """Why the store cannot serve."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    LOADING = "loading"
    PASSWORD_REFUSED = "password_refused"  # noqa: S105 - a reason, no password
    PASSWORD_MISSING = "password_missing"  # noqa: S105 - a reason, no password
    DISK_FULL = "disk_full"
    DISK_FAILED = "disk_failed"
    MEMORY_FULL = "memory_full"
    READ_ONLY = "read_only"
    TOO_FEW_REPLICAS = "too_few_replicas"
    NO_PRIMARY = "no_primary"
    CONNECTIONS_FULL = "connections_full"
    BUSY = "busy"
    NO_STORE = "no_store"
    OTHER = "other"

    @property
    def label(self) -> str:
        """A few words for a badge, such as `Store away`."""
        return _WORDS[self].label

    @property
    def says(self) -> str:
        """The predicate of a sentence about the store, such as `cannot be reached`."""
        return _WORDS[self].says

    @property
    def advice(self) -> str:
        """The operator's next step, as a sentence without its full stop."""
        return _WORDS[self].advice

    @property
    def refuses_writes_only(self) -> bool:
        """Whether the store still answers reads, so that figures and ended jobs can be read."""
        return self in _REFUSES_WRITES_ONLY


@dataclass(frozen=True)
class _Words:
    label: str
    says: str
    advice: str


_WORDS = {
    StoreFault.UNREACHABLE: _Words(
        "Store away",
        "cannot be reached",
        "Check that the store runs, that REDIS_URL names its address, and that the network lets this machine reach it",
    ),
    StoreFault.TIMEOUT: _Words(
        "Store away",
        "does not answer in time",
        "Check whether the store's machine is overloaded or stopped, and the network to it",
    ),
    StoreFault.LOADING: _Words(
        "Store loading",
        "has started and is loading its data",
        "Wait: the store answers when its data is loaded, at some hundred megabytes a second",
    ),
    StoreFault.PASSWORD_REFUSED: _Words(
        "Store password",
        "refuses the user or the password in REDIS_URL",
        "Set the store's user and password in REDIS_URL, and restart the processes that use it",
    ),
    StoreFault.PASSWORD_MISSING: _Words(
        "Store password",
        "requires a password, and REDIS_URL has none that it accepted",
        "Set the store's user and password in REDIS_URL, and restart the processes that use it",
    ),
    StoreFault.DISK_FULL: _Words(
        "Store disk full",
        "refuses writes because its disk is full",
        "Free space on the store's disk; the store then accepts writes again by itself",
    ),
    StoreFault.DISK_FAILED: _Words(
        "Store disk",
        "refuses writes because it could not save its data to its disk",
        "Read the store's log for the reason (a full disk, missing rights), and mend it; then "
        "`penstock redis BGSAVE` makes the store accept writes again",
    ),
    StoreFault.MEMORY_FULL: _Words(
        "Store memory full",
        "refuses writes because its memory has reached maxmemory",
        "Raise maxmemory (`penstock redis CONFIG SET maxmemory 4gb`), or lower PENSTOCK_RESULT_TTL_S and the tenants' "
        "byte bounds",
    ),
    StoreFault.READ_ONLY: _Words(
        "Store read-only",
        "refuses writes because it is a replica",
        "Let REDIS_URL name the primary or its sentinels, or promote this server (`penstock redis REPLICAOF NO ONE`)",
    ),
    StoreFault.TOO_FEW_REPLICAS: _Words(
        "Replicas away",
        "has fewer replicas in sync than a write requires",
        "Start the replicas again, or lower PENSTOCK_ACK_REPLICAS and the store's min-replicas-to-write",
    ),
    StoreFault.NO_PRIMARY: _Words(
        "No primary",
        "has no primary that the sentinels know",
        "Wait for the failover; if it does not end, check the sentinels and the name of the service in REDIS_URL",
    ),
    StoreFault.CONNECTIONS_FULL: _Words(
        "Store connections",
        "has as many connections as its maxclients allows",
        "Stop other programs that use the store, or raise maxclients in its configuration and restart it",
    ),
    StoreFault.BUSY: _Words(
        "Store busy",
        "is busy with a script that does not end",
        "Look for other programs that run scripts; `penstock redis SCRIPT KILL` ends one that has written nothing",
    ),
    StoreFault.NO_STORE: _Words(
        "No store",
        "answers in another protocol, so it is no Redis or Valkey server",
        "Let REDIS_URL name the store: another server listens at its address, or it expects TLS (`rediss://`)",
    ),
    StoreFault.OTHER: _Words(
        "Store fault",
        "cannot serve the request",
        "Read the line `store.away` in the door's log, and run `penstock doctor`",
    ),
}

_REFUSES_WRITES_ONLY = frozenset(
    {
        StoreFault.DISK_FULL,
        StoreFault.DISK_FAILED,
        StoreFault.MEMORY_FULL,
        StoreFault.READ_ONLY,
        StoreFault.TOO_FEW_REPLICAS,
    }
)

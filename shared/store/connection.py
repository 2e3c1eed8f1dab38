"""Opens connections to the store, with fixed timeouts and without automatic retries.

No other module creates redis.Redis clients. shared/store/redis_errors.py maps errors of the redis library to
Penstock's exceptions. shared/store/preflight.py checks whether the store's configuration is safe for jobs.
"""

import select
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from shared.errors import ConfigError
from shared.settings.secret_values import without_password
from shared.settings.store_url import CLUSTER, normal_store_url
from shared.store.clients.cluster import NodeConnection, NodePool, SlotOwner, SSLNodeConnection
from shared.store.clients.hash_slots import hash_tag, slot_of
from shared.store.clients.key_prefix import KeyPrefixer
from shared.store.clients.quick_client import Poll, QuickClient, QuickPool


@dataclass(frozen=True)
class Timeouts:
    """How long a process waits for the store, in seconds, and how many connections it may have open."""

    connect_s: float
    answer_s: float
    connections: int


#: For the door, where a client waits for every call: if the store does not answer within a second, the client gets
#: `store_unavailable`. A store that needs 0.1 ms per call serves 512 calls in 50 ms, so if more than 512 calls are open
#: at the same time, the store has stopped answering.
DOOR = Timeouts(connect_s=0.25, answer_s=1.0, connections=512)
#: For workers. The answer timeout is long enough for a store that rewrites its append-only file, and short enough
#: that a lease of 15 s can still be renewed in time.
WORKER = Timeouts(connect_s=1.0, answer_s=4.0, connections=64)
#: For operators' commands. The timeouts are long, so that the commands work even if the store is busy.
OPERATOR = Timeouts(connect_s=2.0, answer_s=10.0, connections=8)

#: Options that REDIS_URL must not set, because this module fixes their values.
_FIXED_OPTIONS = (
    "retry",
    "retry_on_timeout",
    "retry_on_error",
    "socket_timeout",
    "socket_connect_timeout",
    "decode_responses",
)

_SENTINEL = "redis+sentinel://"
#: The values of the option `ssl` that turn it on.
_TRUE = frozenset({"1", "true", "yes"})


def open_client(
    url: str,
    *,
    name: str,
    prefix: str = "",
    timeouts: Timeouts = WORKER,
    make_poll: Callable[[], Poll] = select.poll,
) -> redis.Redis:
    """Return a client of the store at `url`. The client returns bytes, uses `timeouts` and never retries a call.

    `prefix` is the key prefix of the cell, which the client puts before each key (shared/store/clients/key_prefix.py).
    The client connects at its first command. CLIENT LIST shows `name`, which must not contain spaces. The URL starts
    with `redis://`, `rediss://` or `unix://`, or is `redis+sentinel://[user:password@]host:port[,…]/service[/db]` or
    `redis+cluster://[user:password@]host:port[,…]`; the other names of these schemes are those of
    shared/settings/store_url.py. The query of the URL may contain options of redis-py; for Sentinel and clusters also
    `ssl=true`, and for Sentinel the credentials of the sentinels themselves (`sentinel_username`, `sentinel_password`).
    `make_poll` is `select.poll`, which gevent replaces. Raises ConfigError for an invalid URL, and for a cluster if the
    prefix has no hash tag.
    """
    url = normal_store_url(url)
    try:
        if url.startswith(_SENTINEL):
            return _open_via_sentinel(url, name, prefix, timeouts)
        if url.startswith(CLUSTER):
            pool: QuickPool = _cluster_pool(url, name, prefix, timeouts)
        else:
            options = parse_url(url)
            _reject_fixed_options(url, options)
            pool = QuickPool(**(options | _connection_options(name, prefix, timeouts)))
    except ValueError as error:
        # Where the library expects the port, the beginning of a password can be that has a / in it.
        problem = "its port is no number; in a password, write / as %2F, ? as %3F, # as %23 and @ as %40"
        raise ConfigError(
            f"REDIS_URL={without_password(url)!r} cannot be used: {problem if 'Port' in str(error) else error}"
        ) from None
    pool.make_poll = make_poll
    return QuickClient.from_pool(pool)


def open_blocking_client(client: redis.Redis, *, block_s: float) -> redis.Redis:
    """Return a client of the same store for reads that block for up to `block_s` seconds.

    The socket timeout of the client is a second longer than `block_s`; otherwise the client would time out before the
    server answers. The client has its own connections, so that blocked reads do not delay scripts.
    """
    pool = client.connection_pool
    options = {key: value for key, value in pool.connection_kwargs.items() if key != "himport_registry"}
    options |= {"socket_timeout": block_s + 1.0, "max_connections": pool.max_connections}
    if isinstance(pool, SentinelConnectionPool):
        del options["connection_pool"]  # this object belongs to the old pool; the new pool creates its own
        options |= {"connection_class": pool.connection_class, "is_master": True}
        return QuickClient.from_pool(SentinelConnectionPool(pool.service_name, pool.sentinel_manager, **options))
    make = type(pool) if isinstance(pool, QuickPool) else QuickPool
    quick = make(connection_class=pool.connection_class, **options)
    quick.make_poll = getattr(pool, "make_poll", select.poll)
    return QuickClient.from_pool(quick)


def _connection_options(name: str, prefix: str, timeouts: Timeouts) -> dict[str, object]:
    packer = {"command_packer": KeyPrefixer(prefix)} if prefix else {}
    return packer | {
        "client_name": name,
        "socket_connect_timeout": timeouts.connect_s,
        "socket_timeout": timeouts.answer_s,
        # By default the library repeats a call that timed out, up to ten times. In Penstock only the caller repeats a
        # call, because only the caller knows whether that is safe.
        "retry": Retry(NoBackoff(), 0),
        "max_connections": timeouts.connections,
        "decode_responses": False,
        # Every server supports RESP2, and the scripts need no more. With RESP3, the library would also subscribe to
        # notifications that make it extend its timeouts.
        "protocol": 2,
        # With None, the library does not report its name and version on each new connection. This saves two round
        # trips, and the door must open a connection within its timeout.
        "driver_info": None,
    }


def _cluster_pool(url: str, name: str, prefix: str, timeouts: Timeouts) -> NodePool:
    """Return a pool of connections to the node that owns the cell's slot. Raises ValueError and ConfigError."""
    if not hash_tag(prefix):
        raise ValueError(f"a cluster needs a hash tag in PENSTOCK_KEY_PREFIX={prefix!r}, as in {{c1}}:")
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    if parts.path.strip("/") not in {"", "0"}:
        raise ValueError(f"a cluster has no database {parts.path.strip('/')!r}")
    options: dict[str, Any] = {key: values[0] for key, values in parse_qs(parts.query).items()}
    _reject_fixed_options(url, options)
    is_secure = options.pop("ssl", "false").lower() in _TRUE
    options |= _connection_options(name, prefix, timeouts) | _credentials(credentials)
    asking = {key: value for key, value in options.items() if key not in {"command_packer", "max_connections"}}
    # Any node answers at once. Meanwhile, all calls that need a new connection wait.
    asking["socket_timeout"] = timeouts.connect_s
    kind = SSLConnection if is_secure else Connection
    seeds = [_host_port(host, 6379, "node") for host in hosts.split(",")]
    owner = SlotOwner(seeds, slot_of(prefix), kind, **asking)
    return NodePool(connection_class=SSLNodeConnection if is_secure else NodeConnection, owner=owner, **options)


def _credentials(text: str) -> dict[str, object]:
    username, _, password = text.partition(":")
    return {"username": unquote(username) or None, "password": unquote(password) or None} if text else {}


def _open_via_sentinel(url: str, name: str, prefix: str, timeouts: Timeouts) -> redis.Redis:
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    service, _, db = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError(
            "the sentinels' addresses must be followed by the service, as in redis+sentinel://host:26379/mymaster"
        )
    options = {key: values[0] for key, values in parse_qs(parts.query).items()}
    _reject_fixed_options(url, options)
    connection_options = _connection_options(name, prefix, timeouts) | {"db": int(options.pop("db", db) or 0)}
    connection_options |= _credentials(credentials)
    if options.pop("ssl", "false").lower() in _TRUE:
        connection_options["ssl"] = True
    sentinel_options = {
        "socket_connect_timeout": timeouts.connect_s,
        "socket_timeout": timeouts.answer_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "username": options.pop("sentinel_username", None),
        "password": options.pop("sentinel_password", None),
    }
    sentinels = [_host_port(host, 26379, "sentinel") for host in hosts.split(",")]
    manager = Sentinel(sentinels, sentinel_kwargs=sentinel_options, **(options | connection_options))
    client: redis.Redis = manager.master_for(service, redis_class=QuickClient)
    return client


def _host_port(text: str, default: int, of: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = text, str(default)
    if not host or not port.isdigit():
        raise ValueError(f"{text!r} is not a {of}'s host:port")
    return host.strip("[]"), int(port)


def _reject_fixed_options(url: str, options: dict[str, object] | dict[str, str]) -> None:
    for name in _FIXED_OPTIONS:
        if name in options:
            raise ConfigError(
                f"REDIS_URL={without_password(url)!r} sets {name}, which is fixed: "
                "calls have fixed timeouts and are never retried automatically"
            )

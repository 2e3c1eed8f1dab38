"""Open the store: how long to wait for it, and never to repeat a call by itself; the only maker of redis.Redis.

Which of our faults a failed call is, is said in shared/store/redis_errors.py; whether a store is fit to hold
jobs, in shared/store/preflight.py.
"""

import re
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from shared.errors import ConfigError


@dataclass(frozen=True)
class Timeouts:
    """How long one party waits for the store, in seconds, and how many connections it may hold at once."""

    connect_s: float
    answer_s: float
    connections: int


#: A client waits behind the door: an answer within the second, or `store_unavailable`. A store that
#: answers in 0.1 ms serves 512 callers in 50 ms; more of them at once means that it does not answer.
DOOR = Timeouts(connect_s=0.25, answer_s=1.0, connections=512)
#: A worker has a lease of 15 s to keep: it outlasts a store that rewrites its file, and still renews in time.
WORKER = Timeouts(connect_s=1.0, answer_s=4.0, connections=64)
#: An operator's command may look at a busy store.
OPERATOR = Timeouts(connect_s=2.0, answer_s=10.0, connections=8)

#: What a URL may not say, because waiting and repeating are settled here.
_OURS = ("retry", "retry_on_timeout", "retry_on_error", "socket_timeout", "socket_connect_timeout", "decode_responses")

_SENTINEL = "redis+sentinel://"


def open_client(url: str, *, name: str, timeouts: Timeouts = WORKER) -> redis.Redis:
    """A client of the store at `url` that answers bytes, waits as `patience` says and never repeats a call.

    Connects with the first command. `name` (no blanks) is what CLIENT LIST shows. The URL is
    `redis://`, `rediss://`, `unix://` or `redis+sentinel://[user:password@]host:port[,…]/service[/db]`,
    with redis-py's options as query (for Sentinel also `ssl=true` and the sentinels' own
    `sentinel_username`, `sentinel_password`). Raises ConfigError when it is none of these.
    """
    try:
        if url.startswith(_SENTINEL):
            return _behind_sentinel(url, name, timeouts)
        options = parse_url(url)
    except ValueError as error:
        raise ConfigError(f"REDIS_URL={without_password(url)!r} cannot be used: {error}") from None
    _refuse_ours(url, options)
    return redis.Redis.from_pool(ConnectionPool(**(options | _policy(name, timeouts))))


def blocking_twin(client: redis.Redis, *, block_s: float) -> redis.Redis:
    """A client of the same store for reads that block up to `block_s` seconds.

    Its socket waits a second longer than the block, or the client would give up on a server that
    keeps its word; its connections are its own, so that no blocked read holds up a script.
    """
    pool = client.connection_pool
    options = {key: value for key, value in pool.connection_kwargs.items() if key != "himport_registry"}
    options |= {"socket_timeout": block_s + 1.0, "max_connections": pool.max_connections}
    if isinstance(pool, SentinelConnectionPool):
        del options["connection_pool"]  # the pool's own proxy: the twin makes another
        options |= {"connection_class": pool.connection_class, "is_master": True}
        return redis.Redis.from_pool(SentinelConnectionPool(pool.service_name, pool.sentinel_manager, **options))
    return redis.Redis.from_pool(ConnectionPool(connection_class=pool.connection_class, **options))


def without_password(url: str) -> str:
    """The URL as it may be printed: without a password, wherever it stands."""
    url = re.sub(r"(://[^:@/]*):[^@]*@", r"\1:***@", url)
    return re.sub(r"(password=)[^&]*", r"\1***", url)


def _policy(name: str, timeouts: Timeouts) -> dict[str, object]:
    return {
        "client_name": name,
        "socket_connect_timeout": timeouts.connect_s,
        "socket_timeout": timeouts.answer_s,
        # By default the library sends a timed-out call up to ten times more; a call that may be
        # repeated is repeated by whoever knows that it may.
        "retry": Retry(NoBackoff(), 0),
        "max_connections": timeouts.connections,
        "decode_responses": False,
        # Scripts answer in RESP2 on every server; with RESP3 the library would also ask for
        # notifications that stretch its timeouts.
        "protocol": 2,
        # Two round trips fewer for a connection that must be made within the door's second.
        "driver_info": None,
    }


def _behind_sentinel(url: str, name: str, timeouts: Timeouts) -> redis.Redis:
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    service, _, db = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError(
            "after the sentinels' addresses stands the service, as in redis+sentinel://host:26379/mymaster"
        )
    options = {key: values[0] for key, values in parse_qs(parts.query).items()}
    _refuse_ours(url, options)
    policy = _policy(name, timeouts) | {"db": int(options.pop("db", db) or 0)}
    username, _, password = credentials.partition(":")
    if credentials:
        policy |= {"username": unquote(username) or None, "password": unquote(password) or None}
    if options.pop("ssl", "false").lower() in {"1", "true", "yes"}:
        policy["ssl"] = True
    about_sentinels = {
        "socket_connect_timeout": timeouts.connect_s,
        "socket_timeout": timeouts.answer_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "username": options.pop("sentinel_username", None),
        "password": options.pop("sentinel_password", None),
    }
    sentinels = [_host_port(host) for host in hosts.split(",")]
    manager = Sentinel(sentinels, sentinel_kwargs=about_sentinels, **(options | policy))
    client: redis.Redis = manager.master_for(service)
    return client


def _host_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = text, "26379"
    if not host or not port.isdigit():
        raise ValueError(f"{text!r} is not a sentinel's host:port")
    return host.strip("[]"), int(port)


def _refuse_ours(url: str, options: dict[str, object] | dict[str, str]) -> None:
    for name in _OURS:
        if name in options:
            raise ConfigError(
                f"REDIS_URL={without_password(url)!r} sets {name}, which is fixed: a call is never repeated unseen"
            )

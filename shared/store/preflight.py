"""Checks whether the store answers and is safe for jobs: its version, its configuration, the format of its content."""

import re
import threading
from typing import Any

import redis
from redis import exceptions as failed

from shared import schema
from shared.errors import StoreUnavailable, StoreUnfit
from shared.settings.secret_values import without_password
from shared.store import keys
from shared.store.clients.cluster import NodePool
from shared.store.decode import text
from shared.store.redis_errors import store_faults
from shared.store_fault import StoreFault

#: Two settings of the server, the largest value of the first and the smallest of the second: with them, an ended job
#: keeps about a third of the memory (see SMALL_RECORDS in shared/store/embedded.py).
_STREAM_NODE_BYTES, _HASH_VALUE_BYTES = 256, 512
_READ_SETTINGS = ("maxmemory-policy", "appendonly", "maxmemory", "stream-node-max-bytes", "hash-max-ziplist-value")

#: The oldest version of Redis that has all commands that Penstock uses (scripts, streams, LPOS). Valkey reports the
#: version of Redis from which it was forked.
MIN_VERSION = (6, 2)
#: How long a store may take for its first answer, in seconds: the look-up of its name, the connection and one PING.
#: With the start of a command, which takes less than a second, an operator reads after 3 s that the store is away.
FIRST_ANSWER_S = 2.0
#: With these faults, a store answers PING with an error, and an operator's commands must still reach it.
_ANSWERS = frozenset({StoreFault.LOADING, StoreFault.BUSY})


def require_answer(client: redis.Redis, url: str, *, within_s: float = FIRST_ANSWER_S) -> None:
    """Return if the store answers a PING of `client` within `within_s` seconds. `url` is named in errors.

    Any answer of a store counts, even that it loads its data, is busy, refuses writes or forbids PING. Raises
    StoreUnavailable, whose message has the URL without its password, if nothing answers, a server refuses the password,
    or the server is not a store.
    """
    faults: list[tuple[StoreFault, str]] = []

    def ask() -> None:
        try:
            with store_faults(client):
                client.ping()
        except StoreUnavailable as error:
            if error.fault not in _ANSWERS and not error.fault.refuses_writes_only:
                faults.append((error.fault, f"{type(error.__cause__).__name__}: {error.__cause__}"))
        except failed.ResponseError:
            pass

    # In a thread, because nothing bounds how long the look-up of a name takes, and each address that it returns may
    # take the whole timeout for connections.
    asking = threading.Thread(target=ask, name="first-contact", daemon=True)
    asking.start()
    asking.join(within_s)
    if asking.is_alive():
        faults.append((StoreFault.TIMEOUT, f"it took longer than {within_s:g} s"))
    if faults:
        fault, details = faults[0]
        message = f"the store at {without_password(url)} {fault.says} ({details})"
        raise StoreUnavailable(message, fault)


def find_write_fault(client: redis.Redis) -> StoreFault | None:
    """Return why the store refuses writes although it answers, or None if it accepts them. Raises StoreUnavailable.

    The command is one that the server refuses on a full disk, a full memory or a replica, and that changes nothing: it
    would set the score of a tenant without a name, if there were one.
    """
    try:
        with store_faults(client):
            client.zadd(keys.tenants(), {"": 0}, xx=True)
    except StoreUnavailable as error:
        if error.fault.refuses_writes_only:
            return error.fault
        raise
    except failed.ResponseError:
        # The server would have written: another program has replaced the key, or an access list forbids the command.
        return None
    return None


def check_fitness(client: redis.Redis) -> list[str]:
    """Check that the store cannot silently lose jobs; return a warning for each setting that is unread or costs memory.

    Raises StoreUnfit, whose message quotes the unsafe value, and StoreUnavailable if the store does not answer. INFO is
    read in addition to CONFIG, because managed stores often forbid CONFIG.
    """
    with store_faults(client):
        info: dict[str, Any] = client.info("all")
        configured = {name: _configured(client, name) for name in _READ_SETTINGS}
    _check_version(str(info.get("redis_version", "")))
    warnings = _cluster_warnings(client) if str(info.get("cluster_enabled", "0")) == "1" else []
    policy = configured["maxmemory-policy"] or info.get("maxmemory_policy")
    if policy is None:
        warnings.append("the store does not report its maxmemory-policy; it must be noeviction, or jobs can be lost")
    elif policy != "noeviction":
        raise StoreUnfit(
            f"the store evicts keys: maxmemory-policy is {policy!r} and must be 'noeviction', or admitted jobs are "
            "lost silently (`penstock redis CONFIG SET maxmemory-policy noeviction`)"
        )
    if configured["appendonly"] is None:
        warnings.append(_durability_warning(info.get("aof_enabled")))
    elif configured["appendonly"] != "yes":
        raise StoreUnfit(
            f"the store keeps no append-only file: appendonly is {configured['appendonly']!r} and must be 'yes', or a "
            "restart loses admitted jobs (`penstock redis CONFIG SET appendonly yes`)"
        )
    warnings += [_limit_warning(configured["maxmemory"] or info.get("maxmemory")), *_record_warnings(configured)]
    return [warning for warning in warnings if warning]


def _cluster_warnings(client: redis.Redis) -> list[str]:
    """Return a warning if the loss of a node stops the others. Raises StoreUnfit if the client knows one node only."""
    if not isinstance(client.connection_pool, NodePool):
        raise StoreUnfit(
            "the store is a cluster: name it as REDIS_URL=redis+cluster://host:port,host:port, and set "
            "PENSTOCK_KEY_PREFIX with a hash tag, as in {c1}:, which puts all keys into one slot (docs/runbook.md)"
        )
    if _configured(client, "cluster-require-full-coverage") != "yes":
        return []
    warning = "cluster-require-full-coverage is 'yes': if slots lose their last node, all other cells stop too"
    return [f"{warning} (`CONFIG SET cluster-require-full-coverage no` on each node)"]


def check_format(client: redis.Redis) -> None:
    """Raise SchemaConflict if this version must not change what is in the store; for commands that change it.

    Doors and workers check the format when they write their settings (`Store.configure`).
    """
    with store_faults(client):
        stored: Any = client.hmget(keys.config(), ["schema", "schema_oldest"])
    if conflict := schema.conflict(*(None if field is None else text(field) for field in stored)):
        raise conflict


def _configured(client: redis.Redis, name: str) -> str | None:
    """Return the value of one server setting, or None if the store forbids the command CONFIG or does not have it."""
    try:
        answer: dict[str, str] = client.config_get(name)  # type: ignore[assignment]  # a synchronous client never returns a coroutine
    except failed.NoPermissionError:
        return None
    except failed.ResponseError as error:
        if "unknown command" in str(error).lower() or "not allowed" in str(error).lower():
            return None
        raise
    return answer.get(name)


def _durability_warning(aof_enabled: object) -> str:
    """Return the durability warning for a store that forbids CONFIG, or "" if INFO reports an append-only file."""
    if aof_enabled == 1:
        return ""
    return (
        f"the store forbids CONFIG and reports aof_enabled={aof_enabled}; "
        "unless it persists its data by other means, a restart of the store loses admitted jobs"
    )


def _limit_warning(maxmemory: object) -> str:
    """Return the warning for a store without a limit on its memory, or "" if it has one or does not report it."""
    if str(maxmemory) != "0":
        return ""
    return (
        "the store has no maxmemory: when jobs use up the machine's memory, the kernel kills the store or other "
        "processes; set it to about half of the memory (`penstock redis CONFIG SET maxmemory 4gb`)"
    )


def _record_warnings(configured: dict[str, str | None]) -> list[str]:
    """Return a warning if ended jobs take more memory than necessary. Settings that cannot be read are not judged."""
    node, value = configured["stream-node-max-bytes"], configured["hash-max-ziplist-value"]
    wrong = []
    # 0 means no limit; the server then allocates 4 KiB for each stream.
    if node is not None and not 0 < int(node) <= _STREAM_NODE_BYTES:
        wrong.append(f"stream-node-max-bytes is {node} and should be {_STREAM_NODE_BYTES}")
    if value is not None and int(value) < _HASH_VALUE_BYTES:
        wrong.append(f"hash-max-listpack-value is {value} and should be {_HASH_VALUE_BYTES}")
    if not wrong:
        return []
    return [f"ended jobs take up to three times the memory that they need: {'; '.join(wrong)} (docs/runbook.md)"]


def _check_version(version: str) -> None:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < MIN_VERSION:
        raise StoreUnfit(f"the store is version {version!r} and must be Redis 6.2 or newer, or Valkey")

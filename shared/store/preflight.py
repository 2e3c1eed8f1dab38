"""Whether a store is fit to hold admitted jobs: its version, its eviction policy, its append-only file."""

import re
from typing import Any

import redis
from redis import exceptions as failed

from shared.errors import StoreUnfit
from shared.store.redis_errors import store_faults

#: The oldest Redis whose scripts, streams and LPOS we use; Valkey reports the Redis it forked from.
OLDEST = (6, 2)


def check_fitness(client: redis.Redis) -> list[str]:
    """Refuse a store that could lose jobs silently; answer what could not be found out, a sentence each.

    Raises StoreUnfit with the value found, StoreUnavailable when the store does not answer.
    INFO is asked first, because managed stores forbid CONFIG.
    """
    with store_faults(client):
        info: dict[str, Any] = client.info("all")
        configured = {name: _configured(client, name) for name in ("maxmemory-policy", "appendonly")}
    _check_version(str(info.get("redis_version", "")))
    if str(info.get("cluster_enabled", "0")) == "1":
        raise StoreUnfit("the store is a Redis Cluster; a deployment needs one primary (docs/runbook.md)")
    warnings = []
    policy = configured["maxmemory-policy"] or info.get("maxmemory_policy")
    if policy is None:
        warnings.append("the store does not tell its maxmemory-policy; it must be noeviction, or jobs are lost")
    elif policy != "noeviction":
        raise StoreUnfit(
            f"the store evicts keys: maxmemory-policy is {policy!r} and must be 'noeviction', or admitted jobs are "
            "lost silently (`penstock redis CONFIG SET maxmemory-policy noeviction`)"
        )
    if configured["appendonly"] is None:
        warnings.append(_cannot_tell(info.get("aof_enabled")))
    elif configured["appendonly"] != "yes":
        raise StoreUnfit(
            f"the store keeps no append-only file: appendonly is {configured['appendonly']!r} and must be 'yes', or a "
            "restart loses admitted jobs (`penstock redis CONFIG SET appendonly yes`)"
        )
    return [warning for warning in warnings if warning]


def _configured(client: redis.Redis, name: str) -> str | None:
    """The value of one server setting, or None where CONFIG is forbidden or absent."""
    try:
        answer: dict[str, str] = client.config_get(name)  # type: ignore[assignment]  # never a coroutine here
    except failed.NoPermissionError:
        return None
    except failed.ResponseError as error:
        if "unknown command" in str(error).lower() or "not allowed" in str(error).lower():
            return None
        raise
    return answer.get(name)


def _cannot_tell(aof_enabled: object) -> str:
    if aof_enabled == 1:
        return ""
    return (
        f"the store forbids CONFIG and says aof_enabled={aof_enabled}; "
        "unless it is durable by other means, a restart of it loses admitted jobs"
    )


def _check_version(version: str) -> None:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST:
        raise StoreUnfit(f"the store is version {version!r} and must be Redis 6.2 or newer, or Valkey")

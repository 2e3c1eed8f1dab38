"""Checks whether the store is safe for jobs: its version, its eviction policy and its append-only file."""

import re
from typing import Any

import redis
from redis import exceptions as failed

from shared.errors import StoreUnfit
from shared.store.redis_errors import store_faults

#: The oldest version of Redis that has all commands that Penstock uses (scripts, streams, LPOS). Valkey reports the
#: version of Redis from which it was forked.
MIN_VERSION = (6, 2)


def check_fitness(client: redis.Redis) -> list[str]:
    """Check that the store cannot silently lose jobs; return a warning for each setting that could not be read.

    Raises StoreUnfit, whose message quotes the unsafe value, and StoreUnavailable if the store does not answer. INFO is
    read in addition to CONFIG, because managed stores often forbid CONFIG.
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
    return [warning for warning in warnings if warning]


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


def _check_version(version: str) -> None:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < MIN_VERSION:
        raise StoreUnfit(f"the store is version {version!r} and must be Redis 6.2 or newer, or Valkey")

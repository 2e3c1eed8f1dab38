"""What each tenant may do: its policy in the store, with the system's defaults where it names nothing.

A policy stands as plain text in the hash of its tenant (keys.tenant), one field each with the prefix
`policy_`, beside `policy` = `1`; a hash with a policy has no TTL. It is configuration and no job's state,
so plain commands in one MULTI write it; admit.lua and claim.lua read `policy_weight_milli`,
`policy_max_waiting` and `policy_max_waiting_tokens`.

When you add a field: TenantPolicy, FIELDS and the options of `penstock tenants` (shared/cli/commands/tenants.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import redis
from redis.client import Pipeline

from shared.errors import ConfigError
from shared.jobs.tenant_policy import FIELDS, TenantPolicy, Value
from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import store_faults

#: After its policy is removed a tenant's hash may still count waiting jobs, and the longest deadline that
#: PENSTOCK_MAX_DEADLINE_MS allows is one day; the next admission sets the usual TTL again.
_TTL_AFTER_REMOVAL_S = 2 * 86_400


@dataclass(frozen=True)
class TenantEntry:
    """One row of `penstock tenants ls`."""

    name: str
    #: None: seen by the door, but nothing was set for it.
    policy: TenantPolicy | None
    #: Wall ms by the store's TIME; None: no job of it was ever admitted.
    last_admission_ms: int | None


#: The rates, and the fields in which admit.lua notes how far each is used up.
_USED = {"policy_rpm": "rpm_ms", "policy_tpm": "tpm_ms"}
_RATES = tuple(_USED)


def check_name(tenant: str) -> str:
    """Answer the name itself. Raises ConfigError when it may not name a tenant."""
    if not keys.is_tenant_name(tenant):
        raise ConfigError(f"tenant={tenant!r} is not 1 to 64 of letters, digits, '_' and '-'")
    return tenant


class Tenants:
    """Policies by tenant. Every method raises ConfigError for a name that may not be one, and StoreUnavailable."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def get(self, tenant: str) -> TenantPolicy | None:
        """Answer the tenant's policy, or None when nothing was set for it."""
        with store_faults(self._client):
            return _read(tenant, self._client.hgetall(keys.tenant(check_name(tenant))))

    def set(self, tenant: str, policy: TenantPolicy) -> None:
        """Make this the tenant's whole policy; what it leaves open falls back to the system's default."""
        written: dict[Any, str] = {"policy": "1"}
        for name, field in FIELDS.items():
            value = getattr(policy, name)
            if value is not None:
                written[field.stored] = field.dump(value)
        unset = [field.stored for field in FIELDS.values() if field.stored not in written]
        key = keys.tenant(check_name(tenant))
        with store_faults(self._client), self._client.pipeline(transaction=True) as pipe:
            before: Any = self._client.hmget(key, _RATES)
            # What was used up of a former rate is no debt of a new one: it would hold for as long as that rate said.
            for rate, held in zip(_RATES, before, strict=True):
                if held is not None and text(held) != written.get(rate):
                    unset.append(_USED[rate])
            if unset:
                pipe.hdel(key, *unset)
            pipe.hset(key, mapping=written)
            pipe.persist(key)
            # 0: never admitted. The door writes the moment of each admission over it.
            pipe.zadd(keys.tenants(), {tenant: 0}, nx=True)
            pipe.execute()

    def change(self, tenant: str, changes: Mapping[str, Value | None]) -> TenantPolicy:
        """Set the named fields (None: back to the default) and answer the whole policy.

        Raises ConfigError for a field that a policy does not have. Of two changes at once the later wins whole.
        """
        unknown = sorted(set(changes) - set(FIELDS))
        if unknown:
            raise ConfigError(f"a tenant's policy has no field {', '.join(unknown)}")
        policy = replace(self.get(tenant) or TenantPolicy(), **changes)  # type: ignore[arg-type]  # checked at birth
        self.set(tenant, policy)
        return policy

    def remove(self, tenant: str) -> bool:
        """Back to the defaults; whether there was a policy. What the tenant waits for and was served stays."""
        key = keys.tenant(check_name(tenant))

        def forget(pipe: Pipeline) -> bool:
            known = bool(pipe.hexists(key, "policy"))
            #: Negative for one whose last admission the reaper found long ago.
            nothing_left = (pipe.zscore(keys.tenants(), tenant) or 0) <= 0
            pipe.multi()
            pipe.hdel(key, "policy", *(field.stored for field in FIELDS.values()), *_USED.values())
            if known:
                pipe.expire(key, _TTL_AFTER_REMOVAL_S)
            if nothing_left:
                pipe.zrem(keys.tenants(), tenant)
            return known

        # Watched, so that an admission in between does not lose its tenant from the set. The library types
        # the callable as answering nothing, and hands on what it answers.
        with store_faults(self._client):
            return bool(self._client.transaction(forget, key, value_from_callable=True))  # type: ignore[arg-type]

    def list(self) -> tuple[TenantEntry, ...]:
        """Every tenant that has a policy or was seen by the door, by name."""
        with store_faults(self._client):
            seen: Any = self._client.zrange(keys.tenants(), 0, -1, withscores=True)
            scores = {text(name): float(score) for name, score in seen}
            names = sorted(scores)
            with self._client.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.hgetall(keys.tenant(name))
                hashes = pipe.execute()
        return tuple(
            TenantEntry(name, _read(name, held), abs(int(scores[name])) or None)
            for name, held in zip(names, hashes, strict=True)
        )


def _read(tenant: str, held: Mapping[bytes | str, bytes | str]) -> TenantPolicy | None:
    texts = {text(name): text(value) for name, value in held.items()}
    if "policy" not in texts:
        return None
    values: dict[str, Value] = {}
    for name, field in FIELDS.items():
        if field.stored in texts:
            try:
                values[name] = field.parse(texts[field.stored])
            except ValueError:
                held_text = texts[field.stored]
                raise ConfigError(
                    f"tenant {tenant!r} holds {field.stored}={held_text!r} in the store, which is no value"
                ) from None
    return TenantPolicy(**values)  # type: ignore[arg-type]  # checked at birth

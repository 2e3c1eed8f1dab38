"""Reads and writes the tenants' policies in the store.

A policy is stored in its tenant's hash (keys.tenant): the field `policy` is `1`, and each policy field that is set is
stored under a name with the prefix `policy_`. For fields that are not set, the system's defaults apply. A hash with a
policy has no TTL. A policy is configuration and not the state of a job, so it is written with plain commands in one
MULTI instead of with a script. Scripts read the weight, the bounds and the rate limits; the door checks the other
fields.

To add a field: add it to TenantPolicy, to FIELDS and to the options of `penstock tenants`
(shared/cli/commands/tenants.py).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import redis
from redis.client import Pipeline

from shared.accounts.admin_actions import Actor, add_record, local_actor, record
from shared.accounts.groups import check_group_exists
from shared.accounts.stored_policy import describe, describe_changes, parse_policy, spoiled_fields, to_store, wrong_type
from shared.errors import ConfigError
from shared.jobs.tenant_policy import FIELDS, TenantPolicy, Value
from shared.store import keys, scripts
from shared.store.decode import text
from shared.store.redis_errors import raise_if_unavailable, readable, store_faults

#: The TTL of a tenant's hash after its policy was removed. The hash must outlive the queued jobs that it counts, and
#: the longest deadline that PENSTOCK_MAX_DEADLINE_MS allows is one day. The tenant's next admission sets the usual TTL
#: again.
_TTL_AFTER_REMOVAL_S = 2 * 86_400


@dataclass(frozen=True)
class TenantEntry:
    """One tenant, as listed by `penstock tenants ls`."""

    name: str
    #: None if the tenant has no policy; it is then listed because jobs of this tenant were admitted.
    policy: TenantPolicy | None
    #: In ms since the epoch by the store's TIME; None if no job of the tenant was ever admitted.
    last_admission_ms: int | None


#: For each rate limit, the field in which admit.lua stores how much of the limit is used up.
_RATE_STATE = {"policy_rpm": "rpm_ms", "policy_tpm": "tpm_ms"}
_RATES = tuple(_RATE_STATE)
#: How many tenants are read in one round trip. The store answers other clients in between.
_MAX_PIPELINED = 1_000


def check_name(tenant: str) -> str:
    """Return `tenant` if it is a valid tenant name. Raises ConfigError otherwise."""
    if not keys.is_tenant_name(tenant):
        raise ConfigError(f"tenant={tenant!r} is not a tenant name: 1 to 64 letters, digits, '_' and '-'")
    return tenant


class Tenants:
    """The policies of all tenants.

    Methods raise ConfigError for an invalid tenant name, and StoreUnavailable if the store does not answer.
    """

    def __init__(self, client: redis.Redis, actor: Actor | None = None) -> None:
        self._client = client
        #: The changes that these methods make are recorded as this actor's.
        self._actor = actor or local_actor()

    def get(self, tenant: str) -> TenantPolicy | None:
        """Return the tenant's policy, or None if the tenant has none."""
        return self.read(tenant)[0]

    def read(self, tenant: str) -> tuple[TenantPolicy | None, tuple[str, ...]]:
        """Return the tenant's policy, and a sentence about each of its fields that another program has spoiled.

        If another program has replaced the whole hash, the tenant has no policy.
        """
        stored = self._stored(tenant)
        return (None, wrong_type("tenant", tenant)) if stored is None else parse_policy(tenant, stored)

    def _stored(self, tenant: str) -> dict[Any, Any] | None:
        """Return the tenant's hash; None if another program has replaced it."""
        with store_faults(self._client), self._client.pipeline(transaction=False) as pipe:
            pipe.hgetall(keys.tenant(check_name(tenant)))
            (answer,) = pipe.execute(raise_on_error=False)
            stored: dict[Any, Any] | None = readable(answer)
        return stored

    def find_disabled(self, tenants: Collection[str]) -> frozenset[str]:
        """Return those of the tenants that are disabled, in one round trip for each _MAX_PIPELINED of them.

        A tenant whose hash cannot be read is not among them, so that a spoiled hash ends no open stream.
        """
        names, disabled = list(tenants), set()
        for start in range(0, len(names), _MAX_PIPELINED):
            asked = names[start : start + _MAX_PIPELINED]
            with store_faults(self._client), self._client.pipeline(transaction=False) as pipe:
                for name in asked:
                    pipe.hmget(keys.tenant(name), "policy", FIELDS["disabled"].stored)
                answers = pipe.execute(raise_on_error=False)
            for name, answer in zip(asked, answers, strict=True):
                if isinstance(answer, Exception):
                    raise_if_unavailable(self._client, answer)
                elif answer[0] is not None and answer[1] is not None and FIELDS["disabled"].parse(text(answer[1])):
                    disabled.add(name)
        return frozenset(disabled)

    def add(self, tenant: str, policy: TenantPolicy) -> bool:
        """Give the tenant a policy, as `set` does, unless it has one. Return whether it had none."""
        self._check_group(policy.group)
        with store_faults(self._client):
            scripts.load("mend_record").call(self._client, owner=check_name(tenant))
            if not self._client.hsetnx(keys.tenant(tenant), "policy", "1"):
                return False
        self.set(tenant, policy)
        return True

    def set(self, tenant: str, policy: TenantPolicy) -> None:
        """Replace the tenant's policy. For fields that are None, the system's defaults apply.

        A value that another program has stored in place of the tenant's hash is set aside (docs/states.md). Raises
        ConfigError if the policy names a group that does not exist.
        """
        values = {name: getattr(policy, name) for name in FIELDS}
        self._write(tenant, values, describe(values) or "the defaults")

    def change(self, tenant: str, changes: Mapping[str, Value | None]) -> TenantPolicy:
        """Set the fields in `changes`, where None restores the default, and return the resulting policy.

        Fields that another process sets at the same time stay. Raises ConfigError for an unknown field.
        """
        unknown = sorted(set(changes) - set(FIELDS))
        if unknown:
            raise ConfigError(f"a tenant's policy has no field {', '.join(unknown)}")
        stored = self._stored(tenant) or {}
        policy = parse_policy(tenant, stored)[0] or TenantPolicy()
        replace(policy, **changes)  # type: ignore[arg-type]  # TenantPolicy checks the types
        healed: dict[str, Value | None] = dict.fromkeys(spoiled_fields(policy, stored, FIELDS))
        self._write(tenant, healed | {**changes}, describe_changes(changes) or "the defaults")
        return self.get(tenant) or TenantPolicy()

    def _check_group(self, group: Value | None) -> None:
        if group is not None:
            check_group_exists(self._client, str(group))

    def _write(self, tenant: str, values: Mapping[str, Value | None], described: str) -> None:
        """Write these fields of the tenant's policy, and no others."""
        self._check_group(values.get("group"))
        written, unset = to_store(values, FIELDS)
        key = keys.tenant(check_name(tenant))
        with store_faults(self._client), self._client.pipeline(transaction=True) as pipe:
            scripts.load("mend_record").call(self._client, owner=tenant)
            rates = [rate for rate in _RATES if rate in written or rate in unset]
            before: Any = self._client.hmget(key, rates) if rates else []
            # If a rate limit changes, reset the usage that was counted against the old limit. Otherwise the tenant
            # could be refused for as long as the old limit required.
            for rate, old_value in zip(rates, before, strict=True):
                if old_value is not None and text(old_value) != written.get(rate):
                    unset.append(_RATE_STATE[rate])
            if unset:
                pipe.hdel(key, *unset)
            pipe.hset(key, mapping=written)
            pipe.persist(key)
            # The score 0 means that no job was ever admitted. Each admission overwrites it with its time.
            pipe.zadd(keys.tenants(), {tenant: 0}, nx=True)
            add_record(pipe, self._actor, "tenant.set", f"tenant {tenant}: {described}")
            pipe.execute()

    def remove(self, tenant: str) -> bool:
        """Remove the tenant's policy, so that the defaults apply. Return whether the tenant had a policy.

        The tenant's queued jobs and its service do not change.
        """
        key = keys.tenant(check_name(tenant))

        def remove_fields(pipe: Pipeline) -> bool:
            had_policy = bool(pipe.hexists(key, "policy"))
            # The score is 0 if no job of the tenant was ever admitted. It is negative if the last admission was so long
            # ago that the reaper would have removed a tenant without a policy.
            never_or_long_ago = (pipe.zscore(keys.tenants(), tenant) or 0) <= 0
            pipe.multi()
            pipe.hdel(key, "policy", *(field.stored for field in FIELDS.values()), *_RATE_STATE.values())
            if had_policy:
                pipe.expire(key, _TTL_AFTER_REMOVAL_S)
            if never_or_long_ago:
                pipe.zrem(keys.tenants(), tenant)
            return had_policy

        # The transaction watches the tenant's hash and starts again if it changes, so that a tenant whose job is
        # admitted at the same time is not removed from the set. By the library's type hints, the callable returns
        # nothing; in fact, `transaction` returns the callable's value.
        with store_faults(self._client):
            removed = bool(self._client.transaction(remove_fields, key, value_from_callable=True))  # type: ignore[arg-type]
        if removed:
            record(self._client, self._actor, "tenant.rm", f"tenant {tenant}")
        return removed

    def describe_if_new(self, tenant: str) -> str:
        """Return a sentence for the operator if the store has no record of the tenant, else "".

        A misspelled name is accepted like a new one, so the sentence names a known tenant whose name is close.
        """
        with store_faults(self._client):
            seen: Any = self._client.zrange(keys.tenants(), 0, -1)
        names = [text(name) for name in seen]
        if tenant in names:
            return ""
        close = get_close_matches(tenant, names, n=1, cutoff=0.75)
        return f"tenant {tenant!r} is new" + (f"; did you mean {close[0]!r}?" if close else "")

    def list(self) -> tuple[TenantEntry, ...]:
        """Return all tenants that have a policy or have had a job admitted, sorted by name.

        A tenant whose hash another program has replaced by something else is among them, as one without a policy.
        """
        return tuple(
            TenantEntry(name, parse_policy(name, stored or {})[0], abs(int(score)) or None)
            for name, (stored, score) in self._read_all().items()
        )

    def find_spoiled(self) -> tuple[str, ...]:
        """Return a sentence about each hash and each field of a policy that another program has spoiled."""
        return tuple(
            problem
            for name, (stored, _) in self._read_all().items()
            for problem in (wrong_type("tenant", name) if stored is None else parse_policy(name, stored)[1])
        )

    def _read_all(self) -> dict[str, tuple[dict[Any, Any] | None, float]]:
        """Return the hash, None if it is not one, and the score of each tenant, sorted by name."""
        with store_faults(self._client):
            seen: Any = self._client.zrange(keys.tenants(), 0, -1, withscores=True)
            scores = {text(name): float(score) for name, score in seen}
            names = sorted(scores)
            with self._client.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.hgetall(keys.tenant(name))
                hashes = pipe.execute(raise_on_error=False)
            return {name: (readable(stored), scores[name]) for name, stored in zip(names, hashes, strict=True)}

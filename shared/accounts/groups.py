"""Reads and writes the policies of groups of tenants in the store.

A group's policy is stored like a tenant's, in the record of the owner `@<group>` (keys.group_owner), and the set
keys.groups names all groups that have one. A tenant belongs to the group that its own policy names.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import redis

from shared.accounts.admin_actions import Actor, add_record, local_actor
from shared.accounts.stored_policy import (
    describe,
    describe_changes,
    parse_group_policy,
    spoiled_fields,
    to_store,
    wrong_type,
)
from shared.errors import ConfigError
from shared.jobs.group_policy import GROUP_FIELDS, GroupPolicy
from shared.jobs.tenant_policy import FIELDS, Value
from shared.store import keys, scripts
from shared.store.decode import integer, text
from shared.store.redis_errors import readable, store_faults

#: The TTL of a group's record after the group was removed: it must outlive the jobs that are charged to the group, and
#: the longest deadline that PENSTOCK_MAX_DEADLINE_MS allows is one day.
_TTL_AFTER_REMOVAL_S = 2 * 86_400
#: On the command line, this word in place of a group's name means that a tenant has no group.
_NO_GROUP = "default"


@dataclass(frozen=True)
class GroupEntry:
    """One group, as listed by `penstock groups ls`."""

    name: str
    policy: GroupPolicy
    #: How many tenants have this group in their policies.
    tenants: int


def check_group_name(group: str) -> str:
    """Return `group` if it is a valid name. Raises ConfigError otherwise."""
    if not keys.is_tenant_name(group) or group == _NO_GROUP:
        raise ConfigError(
            f"group={group!r} is not a group name: 1 to 64 letters, digits, '_' and '-', and not {_NO_GROUP!r}"
        )
    return group


class Groups:
    """The policies of all groups.

    Methods raise ConfigError for an invalid group name, and StoreUnavailable if the store does not answer.
    """

    def __init__(self, client: redis.Redis, actor: Actor | None = None) -> None:
        self._client = client
        #: The changes that these methods make are recorded as this actor's.
        self._actor = actor or local_actor()

    def get(self, group: str) -> GroupPolicy | None:
        """Return the group's policy, or None if there is no such group.

        If another program has replaced the whole hash, the group has the default policy.
        """
        stored = self._stored(group)
        return GroupPolicy() if stored is None else parse_group_policy(group, stored)[0]

    def _stored(self, group: str) -> dict[Any, Any] | None:
        """Return the group's hash; None if another program has replaced it."""
        with store_faults(self._client), self._client.pipeline(transaction=False) as pipe:
            pipe.hgetall(_record(check_group_name(group)))
            (answer,) = pipe.execute(raise_on_error=False)
            stored: dict[Any, Any] | None = readable(answer)
        return stored

    def add(self, group: str, policy: GroupPolicy) -> bool:
        """Create the group, unless it exists. Return whether it did not."""
        owner = keys.group_owner(check_group_name(group))
        with store_faults(self._client):
            scripts.load("mend_record").call(self._client, owner=owner)
            if not self._client.hsetnx(keys.tenant(owner), "policy", "1"):
                return False
        self.set(group, policy)
        return True

    def set(self, group: str, policy: GroupPolicy) -> None:
        """Create the group, or replace its policy. For fields that are None, the defaults apply.

        A value that another program has stored in place of the group's hash is set aside (docs/states.md).
        """
        values = {name: getattr(policy, name) for name in GROUP_FIELDS}
        self._write(group, values, describe(values) or "the defaults")

    def change(self, group: str, changes: Mapping[str, Value | None]) -> GroupPolicy:
        """Set the fields in `changes`, where None restores the default, and return the resulting policy.

        Fields that another process sets at the same time stay. Raises ConfigError if there is no such group.
        """
        stored = self._stored(group)
        policy = GroupPolicy() if stored is None else parse_group_policy(group, stored)[0]
        if policy is None:
            raise ConfigError(f"group={group!r} does not exist: create it with `penstock groups add`")
        replace(policy, **changes)  # type: ignore[arg-type]  # GroupPolicy checks the types
        healed: dict[str, Value | None] = dict.fromkeys(spoiled_fields(policy, stored or {}, GROUP_FIELDS))
        self._write(group, healed | {**changes}, describe_changes(changes) or "the defaults")
        return self.get(group) or GroupPolicy()

    def _write(self, group: str, values: Mapping[str, Value | None], described: str) -> None:
        """Write these fields of the group's policy, and no others."""
        written, unset = to_store(values, GROUP_FIELDS)
        key = _record(check_group_name(group))
        with store_faults(self._client), self._client.pipeline(transaction=True) as pipe:
            scripts.load("mend_record").call(self._client, owner=keys.group_owner(group))
            if unset:
                pipe.hdel(key, *unset)
            pipe.hset(key, mapping=written)
            pipe.persist(key)
            pipe.sadd(keys.groups(), group)
            add_record(pipe, self._actor, "group.set", f"group {group}: {described}")
            pipe.execute()

    def remove(self, group: str) -> bool:
        """Remove the group. Return whether it existed. Raises ConfigError while tenants belong to it."""
        members = _tenants_of_groups(self._client).get(check_group_name(group), [])
        if members:
            raise ConfigError(
                f"group={group!r} has {len(members)} tenants, such as {members[0]!r}: first move them to another group "
                f"with `penstock tenants set {members[0]} --group`"
            )
        key = _record(group)
        with store_faults(self._client), self._client.pipeline(transaction=True) as pipe:
            pipe.srem(keys.groups(), group)
            pipe.hdel(key, "policy", *(field.stored for field in GROUP_FIELDS.values()))
            pipe.expire(key, _TTL_AFTER_REMOVAL_S)
            add_record(pipe, self._actor, "group.rm", f"group {group}")
            return bool(pipe.execute()[0])

    def list(self) -> tuple[GroupEntry, ...]:
        """Return all groups, sorted by name."""
        members = _tenants_of_groups(self._client)
        return tuple(
            GroupEntry(name, parse_group_policy(name, record or {})[0] or GroupPolicy(), len(members.get(name, [])))
            for name, record in self._read_all().items()
        )

    def weights(self, groups: Collection[str]) -> dict[str, float]:
        """Return the weights of these groups; a group without a policy has the weight 1."""
        names = sorted(groups)
        with store_faults(self._client), self._client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hget(_record(name), GROUP_FIELDS["weight"].stored)
            stored = pipe.execute(raise_on_error=False)
        # A weight or a record that another program has spoiled counts as the default.
        milli = [integer(text(raw)) if isinstance(raw, bytes | str) else 0 for raw in stored]
        return {name: (weight if weight > 0 else 1000) / 1000 for name, weight in zip(names, milli, strict=True)}

    def find_spoiled(self) -> tuple[str, ...]:
        """Return a sentence about each hash and each field of a policy that another program has spoiled."""
        return tuple(
            problem
            for name, record in self._read_all().items()
            for problem in (wrong_type("group", name) if record is None else parse_group_policy(name, record)[1])
        )

    def _read_all(self) -> dict[str, dict[Any, Any] | None]:
        """Return the record of each group, None if it is not a hash, sorted by name."""
        with store_faults(self._client):
            named: Any = self._client.smembers(keys.groups())
            names = sorted(text(raw) for raw in named)
            with self._client.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.hgetall(_record(name))
                records = pipe.execute(raise_on_error=False)
            return {name: readable(record) for name, record in zip(names, records, strict=True)}


def _tenants_of_groups(client: redis.Redis) -> dict[str, list[str]]:
    """Return the tenants of each group, by their policies."""
    with store_faults(client):
        raw: Any = client.zrange(keys.tenants(), 0, -1)
        with client.pipeline(transaction=False) as pipe:
            for tenant in (tenants := [text(name) for name in raw]):
                pipe.hget(keys.tenant(tenant), FIELDS["group"].stored)
            groups = [readable(reply) for reply in pipe.execute(raise_on_error=False)]
    members: dict[str, list[str]] = {}
    for tenant, group in zip(tenants, groups, strict=True):
        if group is not None:
            members.setdefault(text(group), []).append(tenant)
    return members


def check_group_exists(client: redis.Redis, group: str) -> None:
    """Raise ConfigError if there is no such group. Raises StoreUnavailable."""
    with store_faults(client):
        if not client.sismember(keys.groups(), check_group_name(group)):
            raise ConfigError(f"group={group!r} does not exist: create it with `penstock groups add {group}`")


def _record(group: str) -> str:
    return keys.tenant(keys.group_owner(group))

"""Reads and writes the policies of groups of tenants in the store.

A group's policy is stored like a tenant's, in the record of the owner `@<group>` (keys.group_owner), and the set
keys.groups names all groups that have one. A tenant belongs to the group that its own policy names.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import redis
from redis.client import Pipeline

from shared.accounts.admin_actions import add_record
from shared.accounts.changed_accounts import AccountChange, AccountKind, note_change
from shared.accounts.stored_policy import StoredPolicies
from shared.errors import ConfigError
from shared.jobs.group_policy import GROUP_FIELDS, GroupPolicy
from shared.jobs.tenant_policy import FIELDS
from shared.store import keys
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


class Groups(StoredPolicies[GroupPolicy]):
    """The policies of all groups. If another program has replaced a group's hash, the group has the default policy."""

    kind = AccountKind.GROUP
    fields = GROUP_FIELDS
    default = if_replaced = GroupPolicy()

    def _check(self, name: str) -> str:
        return check_group_name(name)

    def _owner(self, name: str) -> str:
        return keys.group_owner(name)

    def names(self) -> list[str]:
        """Return the names of all groups, sorted."""
        with store_faults(self._client):
            named: Any = self._client.smembers(keys.groups())
        return sorted(text(raw) for raw in named)

    def _policy_of_new(self, name: str) -> GroupPolicy:
        raise ConfigError(f"group={name!r} does not exist: create it with `penstock groups add`")

    def _add_to_write(self, pipe: Pipeline, name: str, _written: Mapping[str, str], _unset: list[str]) -> None:
        pipe.sadd(keys.groups(), name)

    def remove(self, group: str) -> bool:
        """Remove the group. Return whether it existed. Raises ConfigError while tenants belong to it."""
        members = _tenants_of_groups(self._client).get(check_group_name(group), [])
        if members:
            raise ConfigError(
                f"group={group!r} has {len(members)} tenants, such as {members[0]!r}: first move them to another group "
                f"with `penstock tenants set {members[0]} --group`"
            )
        if removed := self._erase(group, recorded=True):
            note_change(AccountChange(self.kind, (group,), self._actor, "group.rm", f"group {group}"))
        return removed

    def _erase(self, name: str, *, recorded: bool = False) -> bool:
        key = _record(name)
        with store_faults(self._client), self._client.pipeline(transaction=True) as pipe:
            pipe.srem(keys.groups(), name)
            pipe.hdel(key, "policy", *(field.stored for field in GROUP_FIELDS.values()))
            pipe.expire(key, _TTL_AFTER_REMOVAL_S)
            if recorded:
                add_record(pipe, self._actor, "group.rm", f"group {name}")
            return bool(pipe.execute()[0])

    def list(self) -> tuple[GroupEntry, ...]:
        members = _tenants_of_groups(self._client)
        return tuple(
            GroupEntry(name, self.parse(name, stored)[0] or GroupPolicy(), len(members.get(name, [])))
            for name, stored in self._records(self.names()).items()
        )

    def weights(self, groups: Collection[str]) -> dict[str, float]:
        """Return the weights of these groups; a group without a policy has the weight 1."""
        if not groups:
            return {}
        names = sorted(groups)
        with store_faults(self._client), self._client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hget(_record(name), GROUP_FIELDS["weight"].stored)
            stored = pipe.execute(raise_on_error=False)
        # A weight or a record that another program has spoiled counts as the default.
        milli = [integer(text(raw)) if isinstance(raw, bytes | str) else 0 for raw in stored]
        return {name: (weight if weight > 0 else 1000) / 1000 for name, weight in zip(names, milli, strict=True)}


def _tenants_of_groups(client: redis.Redis) -> dict[str, list[str]]:
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

"""Reads and writes policies in the hashes of tenants and groups; a field that is not valid counts as its default.

A policy is stored in the hash of its owner: the field `policy` is `1`, and each policy field that is set is stored
under a name with the prefix `policy_`. For fields that are not set, the defaults apply. A hash with a policy has no
TTL. A policy is configuration and not the state of a job, so it is written with plain commands in one MULTI instead of
with a script.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

import redis
from redis.client import Pipeline

from shared.accounts.admin_actions import Actor, add_record, local_actor
from shared.accounts.changed_accounts import AccountChange, AccountKind, note_change
from shared.errors import ConfigError
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.tenant_policy import Field, TenantPolicy, Value
from shared.store import keys, scripts
from shared.store.decode import text
from shared.store.redis_errors import readable, store_faults

#: How many records are read in one round trip. The store answers other clients in between.
_READ_TOGETHER = 1_000
#: The longest value of a field that the record of an action has, in characters: more than a name of a model.
_LONGEST_SHOWN = 256
_Policy = TypeVar("_Policy", TenantPolicy, GroupPolicy)


class StoredPolicies(ABC, Generic[_Policy]):
    """The policies of all tenants, or of all groups.

    Methods raise ConfigError for an invalid name, and StoreUnavailable if the store does not answer.
    """

    #: The kind is `tenant` or `group` in messages.
    kind: AccountKind
    fields: Mapping[str, Field]
    default: _Policy
    #: The policy if another program has replaced the hash by something else.
    if_replaced: _Policy | None

    def __init__(self, client: redis.Redis, actor: Actor | None = None) -> None:
        self._client = client
        #: The changes that these methods make are recorded as this actor's.
        self._actor = actor or local_actor()

    @abstractmethod
    def _check(self, name: str) -> str:
        """Return `name` if it is a valid name. Raises ConfigError otherwise."""

    @abstractmethod
    def _owner(self, name: str) -> str:
        """Return the name under which the tenant or group has its hash."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all tenants or groups, sorted."""

    @abstractmethod
    def _policy_of_new(self, name: str) -> _Policy:
        """Return the policy that `change` starts from for a name without one, or raise ConfigError."""

    @abstractmethod
    def _add_to_write(self, pipe: Pipeline, name: str, written: Mapping[str, str], unset: list[str]) -> None:
        """Add further writes to a transaction, and to `unset` further fields that it has to delete."""

    def get(self, name: str) -> _Policy | None:
        return self.read(name)[0]

    def read(self, name: str) -> tuple[_Policy | None, tuple[str, ...]]:
        """Return the policy, and a sentence about each of its fields that another program has spoiled."""
        return self.parse(name, self._records([self._check(name)])[name])

    def read_many(self, names: Iterable[str]) -> dict[str, _Policy | None]:
        """Return the policies of these valid names, in one round trip."""
        return {name: self.parse(name, stored)[0] for name, stored in self._records(names).items()}

    def add(self, name: str, policy: _Policy) -> bool:
        """Store a policy, as `set` does, unless one is stored already. Return whether it was stored."""
        owner = self._owner(self._check(name))
        with store_faults(self._client):
            scripts.load("mend_record").call(self._client, owner=owner)
            if not self._client.hsetnx(keys.tenant(owner), "policy", "1"):
                return False
        self.set(name, policy)
        return True

    def set(self, name: str, policy: _Policy) -> None:
        """Replace the policy. For fields that are None, the defaults apply.

        A value that another program has stored in place of the hash is set aside (docs/states.md).
        """
        values = {field: getattr(policy, field) for field in self.fields}
        self._write(name, values, _describe(values))

    def change(self, name: str, changes: Mapping[str, Value | None]) -> _Policy:
        """Set the fields in `changes`, where None restores the default, and return the resulting policy.

        Fields that another process sets at the same time stay. Raises ConfigError for an unknown field.
        """
        unknown = sorted(set(changes) - set(self.fields))
        if unknown:
            raise ConfigError(f"a {self.kind}'s policy has no field {', '.join(unknown)}")
        stored = self._records([self._check(name)])[name]
        policy = self.parse(name, stored)[0] or self._policy_of_new(name)
        replace(policy, **changes)  # type: ignore[arg-type]  # the policy checks the types
        healed: dict[str, Value | None] = dict.fromkeys(self._spoiled_fields(policy, stored or {}))
        self._write(name, healed | {**changes}, describe_changes(changes))
        return self.get(name) or self.default

    def find_spoiled(self) -> tuple[str, ...]:
        """Return a sentence about each hash and each field of a policy that another program has spoiled."""
        records = self._records(self.names())
        return tuple(problem for name, stored in records.items() for problem in self.parse(name, stored)[1])

    def _records(self, names: Iterable[str]) -> dict[str, dict[Any, Any] | None]:
        """Return the hash of each name; None if another program has replaced it by something else."""
        asked = list(names)
        with store_faults(self._client), self._client.pipeline(transaction=False) as pipe:
            for name in asked:
                pipe.hgetall(keys.tenant(self._owner(name)))
            hashes = pipe.execute(raise_on_error=False)
            return {name: readable(stored) for name, stored in zip(asked, hashes, strict=True)}

    def _write(self, name: str, values: Mapping[str, Value | None], described: str) -> None:
        """Write these fields of a policy, and no others, so that changes of others at the same time stay."""
        written = {
            self.fields[field].stored: self.fields[field].dump(value)
            for field, value in values.items()
            if value is not None
        }
        unset = [self.fields[field].stored for field, value in values.items() if value is None]
        on = f"{self.kind} {name}: {described or 'the defaults'}"
        self._write_texts(name, written, unset, on)
        note_change(AccountChange(self.kind, (name,), self._actor, f"{self.kind}.set", on))

    def _write_texts(self, name: str, texts: Mapping[str, str], unset: list[str], recorded: str = "") -> None:
        """Write these stored fields of a policy, and delete those in `unset`; record the action if it is `recorded`."""
        owner = self._owner(self._check(name))
        key = keys.tenant(owner)
        written: dict[Any, str] = {"policy": "1", **texts}
        with store_faults(self._client), self._client.pipeline(transaction=True) as pipe:
            scripts.load("mend_record").call(self._client, owner=owner)
            self._add_to_write(pipe, name, written, unset)
            if unset:
                pipe.hdel(key, *unset)
            pipe.hset(key, mapping=written)
            pipe.persist(key)
            if recorded:
                add_record(pipe, self._actor, f"{self.kind}.set", recorded)
            pipe.execute()

    def texts(self, names: Iterable[str]) -> dict[str, dict[str, str] | None]:
        """Return the fields of policies as they are stored, spoiled ones included; None without a policy.

        A name is left out if another program has replaced its hash by something else.
        """
        asked, found = list(names), dict[str, dict[str, str] | None]()
        fields = ["policy", *(field.stored for field in self.fields.values())]
        for start in range(0, len(asked), _READ_TOGETHER):
            part = asked[start : start + _READ_TOGETHER]
            with store_faults(self._client), self._client.pipeline(transaction=False) as pipe:
                for name in part:
                    pipe.hmget(keys.tenant(self._owner(name)), fields)
                answers = [readable(answer) for answer in pipe.execute(raise_on_error=False)]
            for name, answer in zip(part, answers, strict=True):
                if answer is None:
                    continue
                has_policy, *values = answer
                stored = zip(fields[1:], values, strict=True) if has_policy is not None else ()
                texts = {field: text(value) for field, value in stored if value is not None}
                found[name] = None if has_policy is None else texts
        return found

    def put_texts(self, name: str, texts: Mapping[str, str] | None) -> None:
        """Replace a policy by fields that `texts` has returned, or remove it. The action is not recorded."""
        if texts is None:
            self._erase(name)
        else:
            unset = [field.stored for field in self.fields.values() if field.stored not in texts]
            self._write_texts(name, texts, unset)

    @abstractmethod
    def _erase(self, name: str) -> bool:
        """Remove a policy. Return whether there was one."""

    def parse(self, name: str, stored: Mapping[Any, Any] | None) -> tuple[_Policy | None, tuple[str, ...]]:
        """Return the policy, None without one, and a sentence about each field that is not valid.

        The scripts count such fields as missing too (shared/lua/lib/admission/facts.lua), and the tenant must not be
        shut out.
        """
        if stored is None:
            sentence = f"{self.kind} {name!r} has a value of another type in the store in place of its hash"
            return self.if_replaced, (sentence,)
        texts = {text(field): text(value) for field, value in stored.items()}
        if "policy" not in texts:
            return None, ()
        values: dict[str, Any] = {}
        problems = []
        for field_name, field in self.fields.items():
            if (stored_text := texts.get(field.stored)) is None:
                continue
            try:
                value = field.parse(stored_text)
                field.check(field_name, value)
            except (ValueError, ArithmeticError, ConfigError):
                problems.append(self._problem(name, field, stored_text, "is not a valid value"))
            else:
                values[field_name] = value
        if "models" in values and values.get("default_model") not in (None, *values["models"]):
            stored_text = values.pop("default_model")
            problems.append(self._problem(name, self.fields["default_model"], stored_text, "is not among its models"))
        return replace(self.default, **values), tuple(problems)

    def _problem(self, name: str, field: Field, stored: str, why: str) -> str:
        return f"{self.kind} {name!r} has {field.stored}={stored[:80]!r} in the store, which {why}"

    def _spoiled_fields(self, policy: _Policy, stored_fields: Mapping[Any, Any]) -> list[str]:
        """Return the fields that are stored, although the policy that was parsed from them has their defaults."""
        texts = {text(name): text(value) for name, value in stored_fields.items()}
        found = []
        for name, field in self.fields.items():
            stored, value = texts.get(field.stored), getattr(policy, name)
            if stored is not None and (value is None or (value is False and stored != field.dump(value))):
                found.append(name)
        return found


def _describe(values: Mapping[str, Value | None]) -> str:
    """Return the fields of a policy that differ from its defaults, for the record of an action."""
    set_fields = {name: value for name, value in values.items() if value is not None and value is not False}
    return " ".join(f"{name}={_shown(value)}" for name, value in set_fields.items())


def describe_changes(changes: Mapping[str, Value | None]) -> str:
    """Return changes of a policy as the records of actions have them."""
    return " ".join(f"{name}={'default' if value is None else _shown(value)}" for name, value in changes.items())


def _shown(value: Value) -> str:
    """Return a value on one line; of a long text only its length."""
    text_of_value = str(value)
    return text_of_value if len(text_of_value) <= _LONGEST_SHOWN else f"({len(text_of_value)} characters)"

"""Reads and writes the tenants' policies in the store.

Scripts read the weight, the bounds and the rate limits; the door checks the other fields.

To add a field: add it to TenantPolicy, to FIELDS and to the options of `penstock tenants`
(shared/cli/policy_options.py), its text to shared/jobs/policy_texts.py, and its line in the console's form
(web/console/policy_form.py).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from typing import Any

from redis.client import Pipeline

from shared.accounts.admin_actions import record
from shared.accounts.changed_accounts import AccountChange, AccountKind, note_change
from shared.accounts.groups import check_group_exists
from shared.accounts.stored_policy import StoredPolicies
from shared.errors import ConfigError
from shared.jobs.tenant_policy import FIELDS, TenantPolicy, Value
from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import raise_if_unavailable, store_faults

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


class Tenants(StoredPolicies[TenantPolicy]):
    """The policies of all tenants. If another program has replaced a tenant's hash, the tenant has no policy.

    Methods that write raise ConfigError if the policy names a group that does not exist.
    """

    kind = AccountKind.TENANT
    fields = FIELDS
    default = TenantPolicy()
    if_replaced = None

    def _check(self, name: str) -> str:
        return check_name(name)

    def _owner(self, name: str) -> str:
        return name

    def names(self) -> list[str]:
        """Return the names of all tenants, sorted."""
        return sorted(self._scores())

    def _scores(self) -> dict[str, float]:
        with store_faults(self._client):
            seen: Any = self._client.zrange(keys.tenants(), 0, -1, withscores=True)
        # Another program may have given a tenant the score `inf`.
        return {text(name): score if isfinite(score) else 0.0 for name, score in seen}

    def _policy_of_new(self, _name: str) -> TenantPolicy:
        return TenantPolicy()

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

    def add(self, name: str, policy: TenantPolicy) -> bool:
        self._check_group(policy.group)
        return super().add(name, policy)

    def _check_group(self, group: Value | None) -> None:
        if group is not None:
            check_group_exists(self._client, str(group))

    def _write(self, name: str, values: Mapping[str, Value | None], described: str) -> None:
        self._check_group(values.get("group"))
        super()._write(name, values, described)

    def _add_to_write(self, pipe: Pipeline, name: str, written: Mapping[str, str], unset: list[str]) -> None:
        rates = [rate for rate in _RATES if rate in written or rate in unset]
        before: Any = self._client.hmget(keys.tenant(name), rates) if rates else []
        # If a rate limit changes, reset the usage that was counted against the old limit. Otherwise the tenant could be
        # refused for as long as the old limit required.
        for rate, old_value in zip(rates, before, strict=True):
            if old_value is not None and text(old_value) != written.get(rate):
                unset.append(_RATE_STATE[rate])
        # The score 0 means that no job was ever admitted. Each admission overwrites it with its time.
        pipe.zadd(keys.tenants(), {name: 0}, nx=True)

    def remove(self, tenant: str) -> bool:
        """Remove the tenant's policy, so that the defaults apply. Return whether the tenant had a policy.

        The tenant's queued jobs and its service do not change.
        """
        if removed := self._erase(tenant):
            record(self._client, self._actor, "tenant.rm", f"tenant {tenant}")
            note_change(AccountChange(self.kind, (tenant,), self._actor, "tenant.rm", f"tenant {tenant}"))
        return removed

    def _erase(self, name: str) -> bool:
        key = keys.tenant(check_name(name))

        def remove_fields(pipe: Pipeline) -> bool:
            had_policy = bool(pipe.hexists(key, "policy"))
            # The score is 0 if no job of the tenant was ever admitted. It is negative if the last admission was so long
            # ago that the reaper would have removed a tenant without a policy.
            never_or_long_ago = (pipe.zscore(keys.tenants(), name) or 0) <= 0
            pipe.multi()
            pipe.hdel(key, "policy", *(field.stored for field in FIELDS.values()), *_RATE_STATE.values())
            if had_policy:
                pipe.expire(key, _TTL_AFTER_REMOVAL_S)
            if never_or_long_ago:
                pipe.zrem(keys.tenants(), name)
            return had_policy

        # The transaction watches the tenant's hash and starts again if it changes, so that a tenant whose job is
        # admitted at the same time is not removed from the set.
        transaction: Any = self._client.transaction  # by its type hints, the callable's value is lost
        with store_faults(self._client):
            return bool(transaction(remove_fields, key, value_from_callable=True))

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
        scores = self._scores()
        return tuple(
            TenantEntry(name, self.parse(name, stored)[0], abs(int(scores[name])) or None)
            for name, stored in self._records(sorted(scores)).items()
        )

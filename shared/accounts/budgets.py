"""Reads the budgets of tokens of tenants and groups, and the used parts.

shared/lua/lib/ledgers/budget.lua writes the counts into the records of the owners, and describes them. Where an owner
has jobs in other cells, their counts are included as this cell was told them last (shared/cells/spending.py).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import redis

from shared import store_clock
from shared.accounts.groups import Groups
from shared.accounts.tenants import Tenants
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.decode import integer, text
from shared.store.redis_errors import readable, store_faults

Period = Literal["day", "month"]

_COUNTS = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}) ([0-9]+) ([0-9]+) ([0-9]+)")
_ELSEWHERE = re.compile(rf"[A-Za-z0-9]+ ([0-9]+) ({_COUNTS.pattern.replace('(', '(?:')})")
#: How long reserved tokens of another cell may count: no job lives for longer.
_LONGEST_JOB_MS = 86_400_000
#: How many records are read in one round trip. The store answers other clients in between.
_MAX_PIPELINED = 1_000


@dataclass(frozen=True)
class Budget:
    """One budget and its used part, in tokens by the owner's weights. Times are UTC, by the store's clock."""

    kind: Literal["tenant", "group"]
    name: str
    period: Period
    max_tokens: int
    #: The tokens of the jobs that ended in the period, in all cells.
    counted_tokens: int
    #: The most that the inflight jobs can use, in all cells.
    reserved_tokens: int
    #: When the budget begins anew, such as 2026-11-24T00:00:00Z.
    resets_at: str
    #: Whether no other cell has used more. Of several cells, this one then alerts.
    has_most: bool = True

    @property
    def used_tokens(self) -> int:
        """The tokens that count against the budget. They may exceed it if it was lowered."""
        return self.counted_tokens + self.reserved_tokens

    def as_dict(self) -> dict[str, int | str]:
        shown = {name: value for name, value in vars(self).items() if name != "has_most"}
        return shown | {"left_tokens": max(0, self.max_tokens - self.used_tokens)}


class Budgets:
    """The budgets of all tenants and groups. Methods raise StoreUnavailable if the store does not answer."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._tenants, self._groups = Tenants(client), Groups(client)

    def of_tenant(self, tenant: str) -> list[Budget]:
        now_ms, (record,) = self._read([keys.tenant(tenant)])
        policy = self._tenants.parse(tenant, record)[0]
        found = list(_budgets("tenant", tenant, policy, record, now_ms))
        if policy is not None and policy.group is not None:
            _, (of_group,) = self._read([keys.tenant(keys.group_owner(policy.group))])
            found += _budgets("group", policy.group, self._groups.parse(policy.group, of_group)[0], of_group, now_ms)
        return found

    def of_tenants(self, tenants: Sequence[str]) -> dict[str, list[Budget]]:
        """Return the budgets of each of these tenants, without those of their groups, in one round trip."""
        now_ms, records = self._read([keys.tenant(tenant) for tenant in tenants])
        return {
            tenant: list(_budgets("tenant", tenant, self._tenants.parse(tenant, record)[0], record, now_ms))
            for tenant, record in zip(tenants, records, strict=True)
        }

    def of_groups(self, groups: Sequence[str]) -> dict[str, list[Budget]]:
        """Return the budgets of each of these groups, in one round trip."""
        now_ms, records = self._read([keys.tenant(keys.group_owner(group)) for group in groups])
        return {
            group: list(_budgets("group", group, self._groups.parse(group, record)[0], record, now_ms))
            for group, record in zip(groups, records, strict=True)
        }

    def read_all(self) -> list[Budget]:
        with store_faults(self._client):
            seen: Any = self._client.zrange(keys.tenants(), 0, -1)
            named: Any = self._client.smembers(keys.groups())
        tenants, groups = sorted(text(raw) for raw in seen), sorted(text(raw) for raw in named)
        owners = [*tenants, *(keys.group_owner(group) for group in groups)]
        found: list[Budget] = []
        for start in range(0, len(owners), _MAX_PIPELINED):
            asked = owners[start : start + _MAX_PIPELINED]
            now_ms, records = self._read([keys.tenant(owner) for owner in asked])
            for owner, record in zip(asked, records, strict=True):
                name = owner.removeprefix("@")
                if owner.startswith("@"):
                    found += _budgets("group", name, self._groups.parse(name, record)[0], record, now_ms)
                else:
                    found += _budgets("tenant", name, self._tenants.parse(name, record)[0], record, now_ms)
        return found

    def _read(self, records: Sequence[str]) -> tuple[int, Sequence[Mapping[Any, Any]]]:
        """Return the store's time in ms, and these records, a spoiled one as an empty record."""
        with store_faults(self._client), self._client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.mget(keys.of_time())
            for key in records:
                pipe.hgetall(key)
            time, marks, *found = [readable(reply) for reply in pipe.execute(raise_on_error=False)]
        return store_clock.parse(time, marks).now_ms, [record or {} for record in found]


def join_budgets(of_cells: Iterable[Iterable[Budget]]) -> list[Budget]:
    """Return each budget once, as the cell shows it that knows of the most use: each shows the use of all cells."""
    joined: dict[tuple[str, str, Period], Budget] = {}
    for budgets in of_cells:
        for budget in budgets:
            key = budget.kind, budget.name, budget.period
            if key not in joined or joined[key].used_tokens < budget.used_tokens:
                joined[key] = budget
    return list(joined.values())


def _budgets(
    kind: Literal["tenant", "group"],
    name: str,
    policy: TenantPolicy | GroupPolicy | None,
    record: Mapping[Any, Any],
    now_ms: int,
) -> Iterator[Budget]:
    if policy is None:
        return
    today = datetime.fromtimestamp(now_ms / 1000, UTC).date()
    parts = _parts(record, now_ms, today.isoformat())
    resets = {"day": today + timedelta(days=1), "month": (today.replace(day=1) + timedelta(days=32)).replace(day=1)}
    bounds: dict[Period, int | None] = {"day": policy.tokens_per_day, "month": policy.tokens_per_month}
    for period, most in bounds.items():
        if most is not None:
            counted, reserved = sum(part[period] for part in parts), sum(part["reserved"] for part in parts)
            own, *others = [part[period] + part["reserved"] for part in parts]
            has_most = all(own >= other for other in others)
            yield Budget(kind, name, period, most, counted, reserved, f"{resets[period]}T00:00:00Z", has_most)


def _parts(record: Mapping[Any, Any], now_ms: int, today: str) -> list[dict[Period | Literal["reserved"], int]]:
    """Return the tokens counted in the day and in the month, and the reserved ones: of this cell, then of others."""
    fields = {text(field): text(value) for field, value in record.items()}
    stored = [(now_ms, fields.get("budget", ""))]
    stored += [(integer(found[1]), found[2]) for found in _ELSEWHERE.finditer(fields.get("budget_elsewhere", ""))]
    parts = []
    for read_ms, counts in stored:
        match = _COUNTS.fullmatch(counts)
        day, of_day, of_month, reserved = match.groups() if match else ("", "0", "0", "0")
        part: dict[Period | Literal["reserved"], int] = {
            "day": integer(of_day) if day == today else 0,
            "month": integer(of_month) if day[:7] == today[:7] else 0,
            "reserved": integer(reserved) if now_ms - read_ms < _LONGEST_JOB_MS else 0,
        }
        parts.append(part)
    return parts

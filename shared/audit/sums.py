"""The part of invariant 3 about sums: those in the records of tenants and pools, and the bytes of a tenant's jobs."""

import re
from collections import Counter
from collections.abc import Iterator

from shared.audit.snapshot import StoreSnapshot
from shared.store.decode import is_integer

#: The tokens reserved for one job in the budget of an owner, and those for all jobs
#: (shared/lua/lib/ledgers/budget.lua).
_HOLD = re.compile(r"(@?[\w-]+) [0-9]+ [0-9]+ ([0-9]+)", re.ASCII)
_RESERVED = re.compile(r"[0-9-]{10} [0-9]+ [0-9]+ ([0-9]+)")


def check_tenants(snapshot: StoreSnapshot) -> Iterator[str]:
    for tenant, fields in snapshot.tenants.items():
        mine = [record for record in snapshot.records.values() if record.get("penstock_tenant") == tenant]
        waiting = [record for record in mine if record.get("penstock_state") == "queued"]
        tokens = sum(number_in(r, "prompt_tokens") + number_in(r, "max_tokens") for r in waiting)
        expected = {
            "waiting": len(waiting),
            "waiting_tokens": tokens,
            "waiting_mwt": sum(number_in(r, "cost_mwt") for r in waiting),
            "running": sum(1 for r in mine if r.get("penstock_state") == "running"),
            "paused": sum(1 for r in mine if is_paused(r)),
        }
        for name, value in expected.items():
            held = fields.get(name, "0")
            if not is_integer(held):
                yield f"tenant {tenant}: {name} is {held!r}, which is not a number"
            elif off := int(held) - value:
                yield f"tenant {tenant}: {name} is off by {off:+d}"
        bounds = (fields.get("policy_max_waiting", ""), snapshot.config.get("max_queue_size", ""))
        # Like the scripts, this ignores a value that cannot be set.
        bound = next((bound for bound in bounds if bound.isdecimal() and int(bound) >= 1), "")
        fresh = sum(1 for record in waiting if record.get("penstock_first_claim_ms") is None)
        if bound and fresh > int(bound):
            yield f"tenant {tenant}: more jobs are queued than its bound of {bound}"


def check_budgets(snapshot: StoreSnapshot) -> Iterator[str]:
    """Check the tokens reserved in the budgets of tenants and groups for their inflight jobs."""
    expected = Counter[str]()
    for record in snapshot.records.values():
        if record.get("penstock_state") in {"queued", "running"}:
            tenant = record.get("penstock_tenant", "")
            for owner, reserved in _HOLD.findall(record.get("penstock_budget", "")):
                if owner == tenant or owner.startswith("@"):
                    expected[owner] += int(reserved)
    for owner, fields in (snapshot.tenants | snapshot.groups).items():
        held = _RESERVED.fullmatch(fields.get("budget", ""))
        if (reserved := int(held[1]) if held else 0) != expected[owner]:
            yield f"{owner} has {reserved} tokens reserved in its budget, but its jobs have {expected[owner]}"


def check_groups(snapshot: StoreSnapshot) -> Iterator[str]:
    expected = {group: Counter({"waiting": 0, "waiting_tokens": 0, "waiting_mwt": 0}) for group in snapshot.groups}
    for record in snapshot.records.values():
        slug = record.get("penstock_slug", "")
        group = snapshot.tenants.get(record.get("penstock_tenant", ""), {}).get(f"g|{slug}", "")
        if record.get("penstock_state") == "queued" and group in expected:
            tokens, cost_mwt = (
                number_in(record, "prompt_tokens") + number_in(record, "max_tokens"),
                number_in(record, "cost_mwt"),
            )
            expected[group].update({"waiting": 1, "waiting_tokens": tokens, "waiting_mwt": cost_mwt})
            expected[group].update({f"n|{slug}": 1, f"t|{slug}": tokens, f"b|{slug}": cost_mwt})
            is_batch = priority_of(record) < 0
            expected[group].update({f"bn|{slug}": int(is_batch), f"bb|{slug}": is_batch * cost_mwt})
    for group, sums in expected.items():
        for name, value in sums.items():
            if (held := snapshot.groups[group].get(name, "0")) != str(value):
                yield f"group {group}: {name} is {held!r}, but its jobs have {value}"


def check_pools(snapshot: StoreSnapshot) -> Iterator[str]:
    """Check each pool's numbers of queued, running and paused jobs, and the sums of its tenants and groups."""
    for slug, held in snapshot.pool_sums.items():
        mine = [record for record in snapshot.records.values() if record.get("penstock_slug") == slug]
        for name, state in (("waiting", "queued"), ("running", "running")):
            jobs = [record for record in mine if record.get("penstock_state") == state]
            # A store of format 1 has no number of queued jobs until its sums are recomputed.
            if held.get(name, str(len(jobs))) != str(len(jobs)):
                yield f"the pool of {slug} counts {held[name]!r} {state} jobs, but has {len(jobs)}"
        yield from _check_rows(snapshot, slug, [record for record in mine if record.get("penstock_state") == "running"])
        yield from _check_queued(
            snapshot, slug, [record for record in mine if record.get("penstock_state") == "queued"]
        )


def _check_queued(snapshot: StoreSnapshot, slug: str, queued: list[dict[str, str]]) -> Iterator[str]:
    """Check each tenant's counts of the jobs queued for a pool, and those of batch jobs."""
    held = snapshot.pool_sums[slug]
    batch_mwt = sum(number_in(record, "cost_mwt") for record in queued if priority_of(record) < 0)
    if held.get("batch_mwt", "0") != str(batch_mwt):
        yield f"the pool of {slug} counts {held.get('batch_mwt')!r} mwt of batch jobs, but has {batch_mwt}"
    for tenant, fields in snapshot.tenants.items():
        own = [record for record in queued if record.get("penstock_tenant") == tenant]
        batch = [record for record in own if priority_of(record) < 0]
        number = fields.get(f"n|{slug}", str(len(own)))
        if number != str(len(own)):
            yield f"tenant {tenant} counts {number!r} jobs queued for {slug}, but has {len(own)}"
        counted = fields.get(f"bn|{slug}", "0"), fields.get(f"bb|{slug}", "0")
        has = str(len(batch)), str(sum(number_in(record, "cost_mwt") for record in batch))
        if counted != has:
            yield f"tenant {tenant} counts {counted} batch jobs and mwt of them for {slug}, but has {has}"


def _check_rows(snapshot: StoreSnapshot, slug: str, running: list[dict[str, str]]) -> Iterator[str]:
    rows = Counter[str]()
    for record in running:
        tenant, group = record.get("penstock_tenant", ""), record.get("penstock_group", "")
        kinds = ("", "b") if priority_of(record) < 0 else ("",)
        owners, kind = ({tenant}, "p") if is_paused(record) else ({tenant, group or tenant}, "c")
        rows.update(f"{kind}{batch}|{owner}" for batch in kinds for owner in owners)
    # A pool without any number has no job that this version claimed, or they are to be counted again.
    if snapshot.rows[slug] and snapshot.rows[slug] != {name: str(jobs) for name, jobs in rows.items()}:
        yield f"the numbers of jobs in slots of {slug} are {snapshot.rows[slug]}, but its jobs have {dict(rows)}"
    paused_jobs = sum(1 for record in running if is_paused(record))
    if (held := snapshot.pool_sums[slug].get("paused", "0")) != str(paused_jobs):
        yield f"the pool of {slug} counts {held!r} paused jobs, but has {paused_jobs}"


def is_paused(record: dict[str, str]) -> bool:
    return record.get("penstock_state") == "running" and number_in(record, "paused_since_ms") > 0


def check_bytes(snapshot: StoreSnapshot) -> Iterator[str]:
    for tenant, fields in snapshot.kept.items():
        wrong = sorted(name for name, value in fields.items() if not is_integer(value))
        if wrong:
            yield f"tenant {tenant}: the bytes of its jobs are not numbers in {wrong[:5]}"
            continue
        mine = [record for record in snapshot.records.values() if record.get("penstock_tenant") == tenant]
        # If another program deletes the record of a queued job, its bytes stay counted until recount has examined the
        # tenant's jobs, or until the tenant has no inflight job.
        off = int(fields.get("live", "0")) - sum(number_in(record, "bytes") for record in mine)
        if off < 0 or (off and not any(mine)):
            yield f"tenant {tenant}: the bytes of its inflight jobs are off by {off:+d}"
        by_period = sum(int(value) for name, value in fields.items() if name.isdecimal())
        if off := int(fields.get("ended", "0")) - by_period:
            yield f"tenant {tenant}: the bytes of its ended jobs are off by {off:+d} from their sum by time of expiry"


def number_in(record: dict[str, str], name: str) -> int:
    """Return a number from a job's record, or 0 if the field is missing or is not a number."""
    value = record.get(f"penstock_{name}", "")
    return int(value) if value.isdecimal() else 0


def priority_of(record: dict[str, str]) -> int:
    """Return the priority in a job's record: 1, 0 or -1. Like the scripts, this reads anything else as 0."""
    return {"1": 1, "-1": -1}.get(record.get("penstock_priority", ""), 0)

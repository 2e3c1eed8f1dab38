"""Repairs the whole store at once, for `penstock doctor --repair`: what the duties mend in parts, and the rest."""

import redis

from shared.audit.invariants import find_breaches
from shared.audit.key_owners import family_of, unowned_keys
from shared.audit.sweeper import Sweeper
from shared.store import keys
from shared.store.decode import is_integer, text
from shared.store.redis_errors import store_faults
from shared.store.store import Store

#: The time for which a key is kept that has no owner and has lost its TTL.
_UNOWNED_TTL_S = 86_400


def repair(store: Store, *, timely: bool) -> list[str]:
    """Repair everything, and return one line for each change. Raises StoreUnavailable.

    `timely` says whether some process reaps, as in `find_breaches`.
    """
    before = find_breaches(store.client, timely=timely)
    sweeper = Sweeper(store)
    changes = _counted(sweeper.sweep_all(), "repair of an inflight job, a setting or a pool's sums")
    changes += _counted(store.recount_workers(), "repair of the sums over workers")
    with store_faults(store.client):
        queues: list[bytes] = store.client.zrange(keys.queues(), 0, -1)  # type: ignore[assignment]  # a synchronous client
    for queue in queues:
        tenant, _, slug = text(queue).partition(".")
        changes += _counted(store.reconcile(tenant, slug), f"repair of the queue {tenant}.{slug}")
    # The records that reconcile has rebuilt may change the pools' sums.
    changes += _counted(sweeper.sweep_all(), "repair of a pool's sums")
    changes += [f"{key} had no TTL and no owner: it expires in a day" for key in give_ttls(store.client)]
    changes += _restore_counters(store.client)
    after = find_breaches(store.client, timely=timely)
    return [*changes, *(f"mended: {breach.message}" for breach in before if breach not in after)]


def give_ttls(client: redis.Redis) -> list[str]:
    """Give a TTL to keys that must have one and have lost it, and return them. Raises StoreUnavailable.

    Keys of unknown families are left alone, because a newer version of Penstock may own them.
    """
    found = [key for key in unowned_keys(client) if (row := family_of(key)) and row.dies in {"ttl", "with the job"}]
    with store_faults(client):
        for key in found:
            client.expire(key, _UNOWNED_TTL_S)
    return found


def _counted(number: int, what: str) -> list[str]:
    return [f"{number} x {what}"] if number else []


def _restore_counters(client: redis.Redis) -> list[str]:
    """Count jobs as admitted or as forgotten until invariant 4 holds again, if counters were lost. Return the changes.

    The counters only ever increase, as those of a metric must. Only an operator may call this, because a difference
    that no other program has caused is a bug that a repair would hide.
    """
    with store_faults(client):
        names = ["admitted", *(text(raw) for raw in client.hkeys(keys.stats()) if _is_total_of_ends(text(raw)))]
        pipe = client.pipeline(transaction=True)
        pipe.hmget(keys.stats(), names)
        pipe.zcard(keys.inflight())
        values, inflight = pipe.execute()
        spoiled = [name for name, raw in zip(names, values, strict=True) if raw and not is_integer(text(raw))]
        if spoiled:
            client.hdel(keys.stats(), *spoiled)
        admitted, *ended = [int(text(raw)) if raw and is_integer(text(raw)) else 0 for raw in values]
        missing = sum(ended) + inflight - admitted
        if missing == 0:
            return []
        name = "admitted" if missing > 0 else "ended|forgotten"
        client.hincrby(keys.stats(), name, abs(missing))
    return [f"the counter {name} was increased by {abs(missing)}"]


def _is_total_of_ends(name: str) -> bool:
    return name.startswith("ended|") and name.count("|") == 1

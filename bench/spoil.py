"""Spoils every key of the store and every field in turn, and judges whether all jobs end and both pools continue.

Run: `python -m bench.spoil` (`make spoil`). Each case takes a store in use (bench/spoil_scene.py), changes one value as
another program could, and lets half a minute of store time pass. `--every N` runs only each N-th case, `--again` spoils
the same value again each second for five seconds, and `--only WORD` selects cases by name.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import redis

from bench.common import environment, print_environment, private_store, write_results
from bench.spoil_scene import PAUSED_JOB, POOLS, RETURNED_JOB, ROUTE, ROUTED_JOB, TENANTS, Scene
from shared.audit.key_owners import family_of
from shared.store import keys
from shared.store.decode import text

#: The replacements for a text that should be a number or a time.
_VALUES = ("abc", "", "-1", "1e300", "1152921504606846976", "9223372036854775807", "inf", "nan", "1.5")
_SCORES = ("inf", "-inf", "-1", "1e300", "1152921504606846976", "0")
#: The jobs whose keys and fields are spoiled: one that ended, one that computes, one that is paused, one that was given
#: back with its ids, and queued ones, among them one that came by a route and one batch job.
_JOBS = ("ann-m-0", "ann-n-0", PAUSED_JOB, RETURNED_JOB, "ann-m-1", "bob-m-3", "ann-n-3", ROUTED_JOB, "dot-m-0")
#: How many steps pass before, and after, the value is spoiled. A step is half a second.
_STEPS_AFTER = 60
#: All jobs that were there must have ended by this step after the damage, and no call may fail after the second one.
#: Without damage all jobs end within 15 steps.
_ENDED_BY, _CALM_FROM = 50, 14


@dataclass(frozen=True)
class Case:
    """One value to spoil. `field` is a field of a hash or a member of a zset, or "" for the whole key."""

    key: str
    field: str
    way: str

    def __str__(self) -> str:
        return f"{self.key} {self.field} {self.way}"


def cases(client: redis.Redis) -> list[Case]:
    """Return all cases of a new scene, in a fixed order."""
    Scene(client)
    found: list[Case] = []
    for raw in sorted(client.keys("*")):
        key = text(raw)
        if key != "penstock:clock" and _is_chosen(key):
            found += [Case(key, *damage) for damage in _damages(client, key)]
    return found


def _is_chosen(key: str) -> bool:
    family = family_of(key)
    has_job = family is not None and (family.part == "id" or family in {keys.idem, keys.supersede})
    return not has_job or any(job_id in key for job_id in _JOBS)


def _damages(client: redis.Redis, key: str) -> Iterator[tuple[str, str]]:
    yield "", "delete"
    yield "", "wrong type"
    kind = text(client.type(key))
    if kind == "string":
        yield from (("", value) for value in ("abc", "-1", "1e300"))
    elif kind == "hash":
        for field in sorted(text(raw) for raw in client.hkeys(key)):
            is_statistic = key == "penstock:stats"
            values = ("abc", "9223372036854775807") if is_statistic else _VALUES
            yield from ((field, way) for way in ("delete field", *values))
    elif kind == "zset":
        members = [text(raw) for raw in client.zrange(key, 0, -1)]
        for member in members[:2]:
            yield from ((member, way) for way in ("delete member", *_SCORES))
        yield "odd name:x.y z", "0"
        yield "odd name:x.y z", "inf"
    elif kind in {"list", "set"}:
        yield "odd name:x.y z", "add"


def spoil(client: redis.Redis, case: Case) -> None:
    """Change the value as the case says."""
    kind = text(client.type(case.key))
    if case.way == "delete":
        client.delete(case.key)
    elif case.way == "wrong type":
        client.delete(case.key)
        if kind == "string":
            client.rpush(case.key, "other", "program")
        else:
            client.set(case.key, "other program")
    elif case.way == "delete field":
        client.hdel(case.key, case.field)
    elif case.way == "delete member":
        client.zrem(case.key, case.field)
    elif case.way == "add":
        (client.rpush if kind == "list" else client.sadd)(case.key, case.field)
    elif case.field and kind in {"hash", "none"}:
        client.hset(case.key, case.field, case.way)
    elif case.field and kind == "zset":
        client.execute_command("ZADD", case.key, case.way, case.field)
    elif not case.field:
        client.set(case.key, case.way)


def judge(client: redis.Redis, case: Case | None, *, again: bool = False) -> list[str]:
    """Run one case, and return what was wrong afterwards: nothing, if the damage has healed."""
    scene = Scene(client)
    before = list(scene.jobs)
    if case is not None:
        spoil(client, case)
    spoiled_at, ended_at = scene.faults.step, 0
    for step in range(1, _STEPS_AFTER + 1):
        if case is not None and again and step % 2 == 0 and step <= 10:
            spoil(client, case)
        scene.advance()
        if step in {2, 8, 20, 30}:
            scene.offer_later()
        if not ended_at and step % 5 == 0 and not any(_lives(scene.state_of(job_id)) for job_id in before):
            ended_at = step
    return [*_complaints(scene, case, before, ended_at), *_faults(scene, spoiled_at)]


def _lives(state: str) -> bool:
    return state in {"queued", "running"}


def _faults(scene: Scene, spoiled_at: int) -> Iterator[str]:
    for step, what, error in scene.faults.found:
        # A program that reads a key without a script may fail until the next sweep; a script may not.
        if what not in {"wait", "register", "doctor", "operator"} or step - spoiled_at > _CALM_FROM:
            yield f"{what} raised {error[:160]} in step {step - spoiled_at}"


def _complaints(scene: Scene, case: Case | None, before: list[str], ended_at: int) -> Iterator[str]:
    if not ended_at or ended_at > _ENDED_BY:
        stuck = [job_id for job_id in before if _lives(scene.state_of(job_id))]
        yield f"jobs ended in step {ended_at or 'never'}: {stuck[:4]}"
    for job_id in scene.jobs:
        state = scene.state_of(job_id)
        is_own = case is not None and (job_id in case.key or job_id in case.field)
        if state != "succeeded" and not (is_own and not _lives(state)):
            yield f"{job_id} is {state}"
    for name in [f"{tenant}-{pool}" for tenant in TENANTS for pool in POOLS] + [ROUTE]:
        if f"later-{name}-4" not in scene.later and not _is_closed(name, case):
            yield f"the last job of {name} was refused"
    for breach in scene.breaches():
        # Counters that are gone cannot be counted again.
        if not (case is not None and case.key == "penstock:stats" and breach.startswith("4:")):
            yield f"doctor: {breach}"


def _is_closed(name: str, case: Case | None) -> bool:
    """Return whether a pool or the route takes no jobs until an operator sets again what was spoiled."""
    if case is None:
        return False
    # A cap that cannot be read allows nothing.
    is_capped = case.key == keys.books("m") and case.field == "policy_day_cap_micro" and name.endswith("-m")
    return is_capped or (case.key == keys.routes() and name == ROUTE)


def run_share(first: int, every: int, only: str, *, again: bool) -> tuple[Counter[str], dict[str, list[str]]]:
    """Run each `every`-th case in a store of its own; return the cases by key, and what did not heal, by case."""
    counts, unhealed = Counter[str](), dict[str, list[str]]()
    with private_store() as client:
        for case in [case for case in cases(client) if only in str(case)][first::every]:
            row = family_of(case.key)
            counts[row.pattern if row else case.key] += 1
            if found := judge(client, case, again=again):
                unhealed[str(case)] = found
                print(case, *found, sep="\n    ", flush=True)
    return counts, unhealed


def main() -> None:
    """Run the cases, print each one that did not heal, and write the counts."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=1, help="how many processes share the cases")
    options.add_argument("--every", type=int, default=1)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--only", default="")
    options.add_argument("--again", action="store_true")
    chosen = options.parse_args()
    with private_store() as client:
        facts = environment(0, client)
        print_environment(facts)
        if found := judge(client, None):
            raise SystemExit(f"the scene itself is not sound: {found}")
    began_s, counts, unhealed = time.monotonic(), Counter[str](), dict[str, list[str]]()
    every = chosen.every * chosen.jobs
    with ProcessPoolExecutor(max_workers=chosen.jobs) as pool:
        firsts = [chosen.first + i * chosen.every for i in range(chosen.jobs)]
        shares = [pool.submit(run_share, first, every, chosen.only, again=chosen.again) for first in firsts]
        for share in shares:
            own_counts, own_unhealed = share.result()
            counts += own_counts
            unhealed |= own_unhealed
    figures = {"cases": counts.total(), "by_key": dict(counts), "unhealed": unhealed, "again": chosen.again}
    print(f"{counts.total()} cases, {len(unhealed)} unhealed, {time.monotonic() - began_s:.0f} s")
    if not chosen.only and chosen.every == 1:
        write_results("spoil-again" if chosen.again else "spoil", facts, figures)
    raise SystemExit(1 if unhealed else 0)


if __name__ == "__main__":
    main()

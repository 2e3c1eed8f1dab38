"""Tests of the history: points in the store that say what happened when, by tenant and by pool."""

import random
from typing import Any

import pytest

from shared.history.points import AMOUNTS, RINGS, Entry, parse, summed
from shared.history.report import iso
from shared.history.stored import StoredHistory
from shared.jobs.outcomes import Outcome, Refusal
from shared.store import keys, scripts
from shared.store.replies import Refused
from shared.store.store import Store
from tests.support.builders import (
    a_job,
    admitted,
    advance_clock,
    an_ending,
    claim_one,
    heartbeat,
    stat,
)

LIMIT_BYTES = 16 * 2**20


@pytest.fixture
def history(store: Store) -> StoredHistory:
    """The history of a store whose time is the beginning of an hour, with one point in it."""
    store.client.set(keys.clock(), f"={1_800_000_000_000 + 3_600_000}")
    stored = StoredHistory(store.client)
    assert stored.write_point(LIMIT_BYTES)[1]
    return stored


def next_point(history: StoredHistory, store: Store):
    """Write the next point, and return it."""
    advance_clock(store, 10_000)
    while history.write_point(LIMIT_BYTES)[0] == 0:
        pass
    return points_of(history, 10)[-1]


def points_of(history: StoredHistory, length_s: int):
    now_ms = history.now_ms()
    return history.read(length_s, now_ms - 40 * 86_400_000, now_ms)


def count(store: Store, tenant: str, slug: str = "m", **amounts: int) -> None:
    """Count amounts as the scripts do."""
    with store.client.pipeline() as pipe:
        for what, by in amounts.items():
            pipe.hincrby(keys.history_now(), f"{what}|{tenant}|{slug}", by)
        pipe.execute()


def test_a_point_has_what_happened_to_the_jobs_of_each_tenant(store, history):
    heartbeat(store)
    for tenant in ("blue", "blue", "red"):
        admitted(store, a_job(tenant))
    store.client.hset(keys.tenant("red"), "policy_max_waiting", 1)
    answer = store.admit(a_job("red"))
    assert isinstance(answer, Refused)
    store.count_refusals("red", "m", Refusal.TENANT_QUEUE_FULL, 100, [50, 60])
    for outcome in (Outcome.SUCCEEDED, Outcome.FAILED):
        store.settle(an_ending(claim_one(store), outcome), "w1")
    point = next_point(history, store)

    total = point.total
    assert (point.tenants["blue"]["admitted"], point.tenants["red"]["admitted"]) == (2, 1)
    assert (total["succeeded"], total["failed"], total["waiting"], total["running"]) == (1, 1, 1, 0)
    assert total["completion"] == stat(store, "tokens|blue|m|completion") + stat(store, "tokens|red|m|completion") > 0
    assert point.tenants["red"].refused[Refusal.TENANT_QUEUE_FULL.value] == 3
    assert sum(total.first.values()) == 2
    assert summed(point.pools.values()).amounts == total.amounts


def test_a_point_is_written_once_however_many_processes_ask(store, history):
    count(store, "blue", admitted=3)
    advance_clock(store, 10_000)
    answers = [history.write_point(LIMIT_BYTES) for _ in range(3)]
    assert [wrote for _, wrote, _ in answers] == [True, False, False]
    assert {due for due, _, _ in answers} == {10_000}
    assert points_of(history, 10)[-1].total["admitted"] == 3


def test_longer_points_are_the_sums_of_the_short_ones(store, history):
    chance = random.Random(5)
    for _ in range(100):
        for tenant in ("blue", "red", "green"):
            count(store, tenant, admitted=chance.randrange(9), completion=chance.randrange(100), **{"first.30": 2})
        next_point(history, store)
    sums = {length_s: summed(point.total for point in points_of(history, length_s)) for length_s, _ in RINGS}
    assert sums[10] == sums[300] == sums[3_600]
    assert sums[10].first == {30: 600}
    assert sum(point.samples for point in points_of(history, 3_600)) == 101


def test_points_older_than_an_hour_remain_only_in_the_longer_ones(store, history):
    count(store, "blue", admitted=7)
    first = next_point(history, store)
    advance_clock(store, 3_600_000)
    count(store, "blue", admitted=1)
    last = next_point(history, store)
    # Nobody wrote for an hour, so the last point covers that hour.
    assert (last.from_ms, last.total["admitted"]) == (first.to_ms, 1)
    assert points_of(history, 10) == [last]
    assert summed(point.total for point in points_of(history, 300))["admitted"] == 8


def test_the_tenants_beyond_the_fifty_busiest_are_summed_up(store, history):
    for number in range(80):
        count(store, f"t{number}", admitted=1, completion=number)
    point = next_point(history, store)
    assert set(point.tenants) == {f"t{number}" for number in range(30, 80)}
    assert (point.rest["admitted"], point.rest["completion"]) == (30, sum(range(30)))
    assert point.total["admitted"] == 80


def cpu_ms(store: Store) -> float:
    """Return the CPU time that the store has used, in ms."""
    used: Any = store.client.info("cpu")
    return 1_000 * (float(used["used_cpu_user"]) + float(used["used_cpu_sys"]))


def test_the_memory_is_bounded_with_two_thousand_tenants(store, history, capsys):
    reasons = [reason.value for reason in Refusal]
    spent_ms, calls_ms = [], []
    for _ in range(6):
        with store.client.pipeline() as pipe:
            for number in range(2_000):
                counts = {"admitted": 12_345, "succeeded": 999, "prompt": 1_234_567, "completion": 654_321}
                more = {
                    "cost_micro": 77,
                    f"first.{number % 60 + 10}": 1,
                    f"refused.{reasons[number % len(reasons)]}": 23,
                }
                for what, by in (counts | more).items():
                    field = f"{what}|tenant-with-a-long-name-{number:04}|some-model-{number % 70}"
                    pipe.hincrby(keys.history_now(), field, by)
            pipe.execute()
        taken = store.client.memory_usage(keys.history_now(), samples=0)
        advance_clock(store, 10_000)
        moved, due_in_ms = 0, 0
        calls_ms.append([])
        while due_in_ms == 0:
            before_ms = cpu_ms(store)
            due_in_ms, _, counted = history.write_point(LIMIT_BYTES)
            calls_ms[-1].append(cpu_ms(store) - before_ms)
            moved += counted
        spent_ms.append(sum(calls_ms[-1]))
        assert moved == 2_000 * 7
    longest = max(store.client.hvals(keys.history()), key=len)
    assert parse(longest.decode()) is not None
    # As if each point were as long as the longest.
    with store.client.pipeline() as pipe:
        for length_s, points in RINGS:
            for place in range(points):
                pipe.hset(keys.history(), f"{length_s}:{place}", longest)
        pipe.execute()
    taken += sum(store.client.memory_usage(name, samples=0) for name in (keys.history(), keys.history_busy()))
    named = len(points_of(history, 10)[-1].tenants)
    with capsys.disabled():
        print(
            f"\n2,000 tenants: {taken / 2**20:.1f} MiB, {named} named, the store's CPU time for a point "
            f"{min(spent_ms):.0f} ms in {len(calls_ms[0])} calls, the longest {max(map(max, calls_ms)):.0f} ms"
        )
    assert taken <= LIMIT_BYTES


def test_counts_beyond_the_most_bytes_are_summed_up(store, history):
    heartbeat(store)
    admitted(store, a_job("early"))
    store.client.hset(keys.history_now(), "bytes", 2_359_296)
    admitted(store, a_job("late"))
    admitted(store, a_job("early"))
    assert store.client.hget(keys.history_now(), "admitted|(other)|m") == b"1"
    point = next_point(history, store)
    assert (point.tenants["early"]["admitted"], point.rest["admitted"]) == (2, 1)
    assert not store.client.exists(keys.history_now())


@pytest.mark.parametrize("spoiled", ["", "abc", "1 2 3", "9" * 20, "1800003600000 1 2 3\nt blue x;;\nq\n"])
def test_a_spoiled_point_is_skipped_and_written_anew(store, history, spoiled):
    for length_s, points in RINGS:
        store.client.hset(keys.history(), mapping={f"{length_s}:{place}": spoiled for place in range(points)})
    store.client.hset(keys.history(), "last_ms", "x")
    store.client.hset(keys.history_now(), "nonsense", "x")
    count(store, "blue", admitted=1)
    point = next_point(history, store)
    assert point.tenants["blue"]["admitted"] == 1


def test_keys_of_another_type_are_put_aside(store, history):
    for key in (keys.history(), keys.history_now(), keys.history_busy()):
        store.client.delete(key)
        store.client.set(key, "x")
    heartbeat(store)
    admitted(store, a_job("blue"))
    assert next_point(history, store).tenants["blue"]["admitted"] == 1


def test_an_erased_tenant_is_part_of_the_rest(store, history):
    for tenant in ("blue", "red"):
        count(store, tenant, admitted=2, completion=9)
    next_point(history, store)
    count(store, "blue", admitted=1)
    assert history.erase("blue", LIMIT_BYTES) == len(RINGS)
    next_point(history, store)
    for key in (keys.history(), keys.history_now(), keys.history_busy()):
        assert b"blue" not in (store.client.dump(key) or b"")
    for length_s, _ in RINGS:
        points = points_of(history, length_s)
        assert summed(point.total for point in points)["admitted"] == 5
        assert summed(point.rest for point in points)["admitted"] == 3


def test_the_first_token_has_percentiles():
    entry = Entry(first={4 * 9: 98, 4 * 12: 2})  # 98 jobs at up to 512 ms, two at up to 4,096 ms
    assert 430 < entry.first_token_ms(0.5) < 512
    assert 3_444 < entry.first_token_ms(0.99) < 4_096
    assert Entry().first_token_ms(0.5) is None


def test_scripts_and_reader_agree_on_the_form():
    _, text = scripts.read("lib/ledgers/history_rows.lua")
    listed = text.partition("POINT_AMOUNTS = {")[2].partition("}")[0]
    assert tuple(word.strip(" '\n") for word in listed.split(",")) == AMOUNTS
    for length_s, points in RINGS:
        length = "SHORTEST_MS" if length_s == 10 else str(1_000 * length_s)
        assert f"{{ {length}, {points} }}" in text


def test_numbers_that_another_program_has_written_are_not_counted():
    endless = "9" * 5_000
    point = parse(f"0 999999999999999 999999999999999 1\nt blue {endless} 7;{endless}:1 4:2;tpm:3\n")
    assert point is not None
    assert point.tenants["blue"] == Entry({"succeeded": 7}, {4: 2}, {"tpm": 3})
    assert iso(point.to_ms) == "9999-12-31T23:59:59Z"


def test_an_erased_tenant_is_not_named_by_the_rest_of_an_unfinished_point(store, history):
    store.client.hset(keys.history(), "open_named", "a-1 blue blue-2")
    history.erase("blue", LIMIT_BYTES)
    assert store.client.hget(keys.history(), "open_named") == b"a-1 blue-2"


def test_an_erased_tenant_is_in_no_point_that_another_program_has_spoiled(store, history):
    count(store, "blue", admitted=2)
    next_point(history, store)
    for field, text in store.client.hgetall(keys.history()).items():
        if b":" in field:
            store.client.hset(keys.history(), field, b"x" + text)
    history.erase("blue", LIMIT_BYTES)
    assert not [text for text in store.client.hvals(keys.history()) if b"blue" in text]

"""Tests how workers share the rounds over all queues, and what one pass of the reconciler repairs."""

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from shared.audit.invariants import find_breaches
from shared.store import keys
from shared.store.connection import open_client
from shared.store.replies import PatrolStep
from shared.store.store import Store
from tests.support.builders import MODEL, a_job, admitted, heartbeat
from tests.support.cell import KEY_PREFIX
from workers.duties.reconciler import PERIOD_S, Reconciler

START_MS = 1_790_000_000_000


@pytest.fixture
def patrolled(store: Store) -> Store:
    """A store whose clock stands still, so that only the test moves it."""
    set_clock(store, 0)
    return store


def set_clock(store: Store, ms: int) -> None:
    store.client.set(keys.clock(), f"={START_MS + ms}")


def add_queues(store: Store, number: int) -> set[tuple[str, str]]:
    """Add queues whose last results have not expired yet, and which have no jobs."""
    store.client.zadd(keys.queues(), {f"t{i}.m": START_MS + 10**9 + i for i in range(number)})
    return {(f"t{i}", "m") for i in range(number)}


def ask(store: Store, asker: str = "w1") -> PatrolStep:
    return store.patrol(asker, limit=64, rest_ms=3_000, pause_ms=250)


def one_round(
    store: Store, asker: str = "w1", first: PatrolStep | None = None
) -> tuple[list[tuple[str, str]], int, int]:
    """Ask until the round is over. Return its queues, the ms that it takes, and the largest number of queues a call."""
    step = first or ask(store, asker)
    queues, took_ms, most = list(step.queues), 0, len(step.queues)
    while step.rest_ms < 3_000:
        took_ms += step.rest_ms
        step = ask(store, asker)
        queues += step.queues
        most = max(most, len(step.queues))
    return queues, took_ms, most


def test_ten_thousand_queues_are_reached_within_a_minute_and_a_few_at_a_time(patrolled):
    added = add_queues(patrolled, 10_000)
    queues, took_ms, most = one_round(patrolled)
    assert set(queues) == added
    assert took_ms < 60_000
    assert most < 200
    assert len(queues) < 10_500, "ZSCAN may return a queue twice, but rarely"


def test_queues_that_move_in_the_order_during_a_round_hide_no_other_queue(patrolled):
    added = add_queues(patrolled, 2_000)
    step, queues, score = ask(patrolled), [], START_MS + 2 * 10**9
    while step.rest_ms < 3_000:
        queues += step.queues
        for tenant, slug in step.queues:
            score += 1
            patrolled.client.zadd(keys.queues(), {f"{tenant}.{slug}": score})
        step = ask(patrolled)
    assert set(queues + step.queues) == added


def test_one_process_is_on_patrol_and_the_others_ask_again_later(patrolled):
    added = add_queues(patrolled, 1_000)
    first = ask(patrolled, "w1")
    assert first.begins_round
    for asker in ("w2", "w3"):
        assert ask(patrolled, asker) == PatrolStep(3_000, first.round, begins_round=False, queues=[])
    queues, _, _ = one_round(patrolled, first=first)
    assert set(queues) == added
    assert ask(patrolled, "w1").begins_round


def test_another_process_continues_where_a_dead_one_stopped(patrolled):
    added = add_queues(patrolled, 1_000)
    seen = [*ask(patrolled, "dead").queues, *ask(patrolled, "dead").queues]
    set_clock(patrolled, 9_999)
    assert ask(patrolled, "w2").queues == []
    set_clock(patrolled, 10_000)
    queues, _, _ = one_round(patrolled, "w2")
    assert set(seen) | set(queues) == added


DAMAGES = {
    "a patrol that ends in a year": lambda client: client.hset(keys.patrol(), "until_ms", START_MS + 365 * 86_400_000),
    "an end that is no number": lambda client: client.hset(keys.patrol(), "until_ms", "soon"),
    "a cursor that is no number": lambda client: client.hset(keys.patrol(), mapping={"cursor": "x", "until_ms": 0}),
    "a round that is no number": lambda client: client.hset(keys.patrol(), mapping={"round": "x", "until_ms": 0}),
    "no record": lambda client: client.delete(keys.patrol()),
    "a record of another type": lambda client: (client.delete(keys.patrol()), client.set(keys.patrol(), "x")),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_record_stops_no_patrol(patrolled, name):
    added = add_queues(patrolled, 100)
    ask(patrolled, "w1")
    DAMAGES[name](patrolled.client)
    assert set(ask(patrolled, "w2").queues) == added


def test_an_empty_store_has_nothing_to_reconcile(patrolled):
    step = ask(patrolled)
    assert (step.queues, step.rest_ms) == ([], 3_000)
    assert Reconciler(patrolled).one_pass() == PERIOD_S


def test_each_pass_over_a_few_queues_repairs_their_lists_and_sums_and_those_of_the_workers(store):
    heartbeat(store)
    admitted(store, a_job())
    duty = Reconciler(store)
    for damage in (
        lambda: store.client.hincrby(keys.tenant("blue"), "running", 1),
        lambda: store.client.hincrby(keys.tenant("blue"), "waiting_mwt", 1),
        lambda: store.client.delete(f"rq:queue:blue.{MODEL}"),
        lambda: store.client.hincrby(keys.config(), "live_slots", 5),
    ):
        damage()
        assert find_breaches(store.client) != []
        assert duty.one_pass() == PERIOD_S
        assert find_breaches(store.client) == []


def test_sums_of_many_queues_are_recomputed_a_few_at_a_time(store):
    heartbeat(store)
    for number in range(16):
        admitted(store, a_job(f"t{number}"))
        store.client.hincrby(keys.tenant(f"t{number}"), "running", 1)
    duty = Reconciler(store)
    duty.one_pass()
    left = len(find_breaches(store.client))
    assert 0 < left < 16
    for _ in range(3):
        duty.one_pass()
    assert find_breaches(store.client) == []


def test_two_reconcilers_share_the_work(store):
    heartbeat(store)
    admitted(store, a_job())
    first, second = Reconciler(store), Reconciler(store)
    first.one_pass()
    store.client.delete(f"rq:queue:blue.{MODEL}")
    second.one_pass()
    assert find_breaches(store.client) != []
    first.one_pass()
    assert find_breaches(store.client) == []


@pytest.fixture
def narrow(store_url: str, store: Store) -> Iterator[Store]:
    """The same store for a user who may not use the lists in RQ's format of tenants whose names begin with a `b`."""
    allowed = [f"~{KEY_PREFIX}{keys_of}" for keys_of in ("penstock:*", "rq:[^q]*", "rq:queues", "rq:queue:[^b]*")]
    store.client.execute_command("ACL", "SETUSER", "narrow", "on", "nopass", "+@all", *allowed)
    with open_client(store_url, name="penstock-test", prefix=KEY_PREFIX) as client:
        client.execute_command("AUTH", "narrow", "any")
        yield Store(client)
    store.client.execute_command("ACL", "DELUSER", "narrow")


def test_a_queue_that_cannot_be_reconciled_holds_up_no_other_and_is_logged_once(store, narrow):
    heartbeat(store)
    tenants = ["barred", *(f"t{number}" for number in range(20))]
    for tenant in tenants:
        admitted(store, a_job(tenant))
        store.client.delete(f"rq:queue:{tenant}.{MODEL}")
    duty = Reconciler(narrow)
    with capture_logs() as logs:
        assert [duty.one_pass() for _ in range(2)] == [PERIOD_S] * 2
    assert [tenant for tenant in tenants if not store.client.exists(f"rq:queue:{tenant}.{MODEL}")] == ["barred"]
    assert [line["tenant"] for line in logs if line["event"] == "reconcile.fault"] == ["barred"]
    store.client.execute_command("ACL", "SETUSER", "narrow", "~*")
    duty.one_pass()
    assert store.client.llen(f"rq:queue:barred.{MODEL}") == 1
    assert find_breaches(store.client) == []

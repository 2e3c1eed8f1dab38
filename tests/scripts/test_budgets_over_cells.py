"""Tests of budgets over cells: what one cell is told of the others, how long it counts, and how it is told."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis

from shared.accounts.budgets import Budgets
from shared.accounts.groups import Groups
from shared.accounts.tenants import Tenants
from shared.alerts.findings import budgets
from shared.cells.spending import PART, REPEAT_S, SpendingExchange
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.job import NewJob, Usage
from shared.jobs.key_bounds import KeyBounds
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.connection import open_client
from shared.store.replies import Refused
from shared.store.scripts import load
from shared.store.store import Store
from tests.support.budgets import LAST_MS, MIDDLE_MS, MOST, at, end_one, set_budget
from tests.support.builders import MODEL, a_job, admitted, advance_clock, an_ending
from tests.support.cells import open_stores
from tests.support.routed import a_route, serve, set_terms, to

pytestmark = [pytest.mark.no_prefix]

DAY_MS = 86_400_000


@pytest.fixture
def cells(redis_client: redis.Redis, store_url: str, settings) -> Iterator[dict[str, Store]]:
    """Three cells ten seconds before the end of a day, in which blue may use the tokens of three jobs a day."""
    with open_stores(store_url, settings) as stores:
        for store in stores.values():
            at(store, MIDDLE_MS)
            set_budget(store, tokens_per_day=3 * MOST)
        yield stores


@pytest.fixture
def away(tmp_path) -> Iterator[redis.Redis]:
    """A client of a store that does not answer."""
    with open_client(f"unix://{tmp_path}/none.sock", name="penstock-test") as client:
        yield client


def exchange(cells: dict[str, Store], by: SpendingExchange | None = None, **others: redis.Redis) -> dict[str, int]:
    """Make one pass, by default of a process that has made none before. Return how many values were new to each cell.

    `others` replaces the clients of some cells.
    """
    if by is None:
        cells["b"].client.delete(keys.spending_exchange())
    done = (by or SpendingExchange()).exchange({name: store.client for name, store in cells.items()} | others)
    assert done is not None
    assert done.away.keys() == others.keys()
    return dict(done.changed)


def ask(store: Store, job: NewJob | None = None) -> Refused:
    answer = store.admit(job or a_job())
    assert isinstance(answer, Refused), answer
    return answer


def tell(store: Store, cell: str, counts: str, read_ms: int) -> int:
    """Tell a cell what blue had used in another one. Return 1 if that is new to it, else 0."""
    return load("spent_elsewhere").call(store.client, entries=["blue", cell, read_ms, counts])[1][0]


def used(store: Store, owner: str = "blue") -> tuple[int, int]:
    """Return the counted and the reserved tokens of the owner's first budget, as they are shown."""
    found = next(one for one in Budgets(store.client).read_all() if one.name == owner)
    return found.counted_tokens, found.reserved_tokens


def test_a_cell_counts_what_the_others_have_used_and_reserved_from_the_next_exchange_on(cells):
    for name in ("default", "b"):
        admitted(cells[name], a_job())
    end_one(cells["b"], 10, 15)
    admitted(cells["c"], a_job())
    assert exchange(cells) == {"default": 2, "b": 2, "c": 2}
    for store in cells.values():
        assert used(store) == (25, 60)
        answer = ask(store)
        assert (answer.reason, answer.limit, answer.value) == ("budget_exhausted", "tenant_tokens_per_day", 85)
        assert answer.resets_ms == MIDDLE_MS + 10_000
        quote = store.quote(a_job())
        assert quote.refused is not None
        assert quote.refused.value == 85
    end_one(cells["default"], 10, 0)
    admitted(cells["default"], a_job(max_tokens=10))
    assert used(cells["c"]) == (25, 60), "until the next exchange"


def test_of_several_cells_the_one_with_the_greatest_part_tells_that_a_budget_is_used(cells):
    for name in ("b", "b", "c"):
        admitted(cells[name], a_job())
    exchange(cells)
    assert [len(list(budgets(cells[name].client))) for name in ("default", "b", "c")] == [0, 1, 0]


def test_what_a_tenant_has_used_follows_it_when_it_moves(cells):
    for _ in range(3):
        admitted(cells["default"], a_job())
        end_one(cells["default"])
    exchange(cells)
    assert ask(cells["c"]).value == 3 * MOST


def test_a_group_is_counted_over_cells_also_if_its_tenants_have_no_budget(cells):
    for store in cells.values():
        Groups(store.client).set("team", GroupPolicy(tokens_per_month=2 * MOST, answer_weight=2.0))
        set_budget(store, tokens_per_day=None, group="team")
    admitted(cells["default"], a_job())
    assert exchange(cells) == {"default": 0, "b": 1, "c": 1}
    assert (used(cells["b"], "team"), ask(cells["b"]).limit) == ((0, 50), "group_tokens_per_month")
    end_one(cells["default"], 2, 2)
    exchange(cells)
    assert used(cells["b"], "team") == (6, 0)
    admitted(cells["b"], a_job())


def test_a_period_ends_in_all_cells_without_an_exchange(cells):
    for store in cells.values():
        at(store, LAST_MS - DAY_MS)
        set_budget(store, tokens_per_day=MOST, tokens_per_month=2 * MOST)
    admitted(cells["default"], a_job())
    end_one(cells["default"])
    exchange(cells)
    assert ask(cells["b"]).limit == "tenant_tokens_per_day"
    for store in cells.values():
        at(store, LAST_MS)
    admitted(cells["b"], a_job())
    exchange(cells)
    assert [ask(cells[name]).limit for name in ("default", "c")] == ["tenant_tokens_per_month"] * 2
    end_one(cells["b"])
    exchange(cells)
    tell(cells["c"], "gone", "2027-01-31 5 5 0", LAST_MS - 2 * DAY_MS)
    for store in cells.values():
        at(store, LAST_MS + 10_000)
        assert used(store) == (0, 0)
        admitted(store, a_job())
    exchange(cells)
    held = cells["c"].client.hget(keys.tenant("blue"), "budget_elsewhere").decode()
    assert [entry.split()[0] for entry in held.split(";")] == ["b", "default"]


def test_a_cell_that_is_away_keeps_what_it_was_told_and_still_counts_in_the_others(cells, away):
    admitted(cells["b"], a_job())
    by = SpendingExchange()
    exchange(cells, by)
    admitted(cells["c"], a_job())
    assert exchange(cells, by, b=away) == {"default": 1, "c": 0}
    assert (used(cells["default"]), used(cells["b"])) == ((0, 60), (0, 30))
    end_one(cells["b"])
    exchange(cells, by)
    assert {used(store) for store in cells.values()} == {(30, 30)}


def test_a_cell_that_comes_back_as_a_backup_has_it_is_told_everything_again(cells, monkeypatch):
    def fail(*_, **__):
        raise redis.ConnectionError("connection refused")

    admitted(cells["c"], a_job())
    by, client = SpendingExchange(), cells["b"].client
    exchange(cells, by)
    with monkeypatch.context() as patch:
        patch.setattr(client, "evalsha", fail)
        done = by.exchange({name: store.client for name, store in cells.items()})
        assert (done.away.keys(), done.changed) == ({"b"}, {"default": 0, "c": 0})
    client.hdel(keys.tenant("blue"), "budget_elsewhere")
    exchange(cells, by)
    assert used(cells["b"]) == (0, 30)


def test_a_job_that_ends_is_told_also_if_its_tenant_asks_for_nothing_more(cells):
    by = SpendingExchange()
    for name in ("blue", "red"):
        Tenants(cells["b"].client).set(name, TenantPolicy(tokens_per_day=1_000))
        Tenants(cells["c"].client).set(name, TenantPolicy(tokens_per_day=1_000))
        admitted(cells["b"], a_job(name))
    exchange(cells, by)
    for reserved in (30, 0):
        for store in cells.values():
            advance_clock(store, 1)
        end_one(cells["b"])
        exchange(cells, by)
        assert sum(used(cells["c"], name)[1] for name in ("blue", "red")) == reserved


def test_jobs_of_a_cell_that_never_answers_again_stay_reserved_for_a_day_and_their_tokens_for_the_period(cells):
    set_budget(cells["b"], tokens_per_month=1_000)
    set_budget(cells["c"], tokens_per_month=1_000)
    for _ in range(2):
        admitted(cells["c"], a_job())
    end_one(cells["c"])
    exchange(cells)
    at(cells["b"], MIDDLE_MS + DAY_MS - 1)
    assert used(cells["b"]) == (0, 30)
    at(cells["b"], MIDDLE_MS + DAY_MS)
    months = [one for one in Budgets(cells["b"].client).read_all() if one.period == "month"]
    assert [(one.counted_tokens, one.reserved_tokens) for one in months] == [(30, 0)]


def test_a_new_budget_knows_within_one_exchange_what_was_used_in_other_cells_before(cells):
    for store in cells.values():
        set_budget(store, tokens_per_day=None)
    by = SpendingExchange()
    admitted(cells["b"], a_job())
    end_one(cells["b"])
    for store in cells.values():
        at(store, MIDDLE_MS + 1)
    assert exchange(cells, by) == {"default": 0, "b": 0, "c": 0}
    for store in cells.values():
        set_budget(store, tokens_per_day=100)
    admitted(cells["default"], a_job())
    assert exchange(cells, by) == {"default": 1, "b": 1, "c": 2}
    assert used(cells["c"]) == (30, 30)


def test_only_differences_are_written_and_all_of_them_again_after_a_while(cells):
    names = [f"t{number}" for number in range(2 * PART + 1)]
    for store in cells.values():
        for name in names:
            store.client.hset(keys.tenant(name), mapping={"policy": "1", "policy_tokens_per_day": "100"})
        store.client.zadd(keys.tenants(), dict.fromkeys(names, MIDDLE_MS))
    for name in names:
        cells["b"].client.hset(keys.tenant(name), "budget", "2027-01-15 7 9 0")
    now = [0.0]
    by = SpendingExchange(clock=lambda: now[0])
    told = {"default": len(names), "b": 0, "c": len(names)}
    assert exchange(cells, by) == told
    calls = cells["b"].client.info("commandstats")["cmdstat_hset"]["calls"]
    assert exchange(cells, by) == dict.fromkeys(told, 0)
    assert cells["b"].client.info("commandstats")["cmdstat_hset"]["calls"] == calls
    for name in names[:5]:
        cells["c"].client.hdel(keys.tenant(name), "budget_elsewhere")
    assert exchange(cells, by)["c"] == 0
    now[0] = REPEAT_S
    assert exchange(cells, by) == {"default": 0, "b": 0, "c": 5}


def test_one_process_makes_the_passes_until_it_has_made_none_for_a_while(cells):
    first, second = SpendingExchange(), SpendingExchange()
    clients = {name: store.client for name, store in cells.items()}
    admitted(cells["b"], a_job())
    assert first.exchange(clients) is not None
    assert second.exchange(clients) is None
    assert first.exchange(clients) is not None
    clients["b"].delete(keys.spending_exchange())
    admitted(cells["c"], a_job())
    assert second.exchange(clients).changed == {"default": 1, "b": 1, "c": 0}
    assert first.exchange(clients) is None


def test_a_value_that_was_read_earlier_does_not_replace_a_later_one(cells):
    assert tell(cells["b"], "c", "2027-01-15 50 50 0", MIDDLE_MS) == 1
    assert tell(cells["b"], "c", "2027-01-15 20 20 90", MIDDLE_MS - 1) == 0
    assert used(cells["b"]) == (50, 0)
    assert tell(cells["b"], "c", "2027-01-15 20 20 10", MIDDLE_MS + 1) == 1
    assert used(cells["b"]) == (20, 10)


def test_with_one_cell_nothing_is_asked(away):
    done = SpendingExchange().exchange({"default": away})
    assert (done.changed, done.away) == ({}, {})


@pytest.mark.parametrize("spoiled", ["much", "c -1 2027-01-15 5 5 5", "c 5 2027-01-15 x 5 5;;"])
def test_spoiled_values_count_nothing_and_are_replaced(cells, spoiled):
    key = keys.spending_exchange()
    cells["b"].client.hset(keys.tenant("blue"), "budget_elsewhere", spoiled)
    assert used(cells["b"]) == (0, 0)
    admitted(cells["b"], a_job())
    cells["c"].client.hset(keys.tenant("blue"), "budget", "2027-01-15 30 30 0")
    cells["c"].client.zadd(keys.tenants(), {"blue": MIDDLE_MS})
    cells["b"].client.hset(key, "no", "string")
    by = SpendingExchange()
    exchange(cells, by)
    assert used(cells["b"]) == (30, 30)
    assert cells["b"].client.get(key)
    exchange(cells, by)
    assert cells["b"].client.hget(keys.tenant("blue"), "budget_elsewhere").startswith(b"c ")


def test_a_cell_without_the_owners_policy_stores_nothing(cells):
    admitted(cells["b"], a_job())
    cells["c"].client.delete(keys.tenant("blue"))
    assert exchange(cells) == {"default": 1, "b": 0, "c": 0}
    assert not cells["c"].client.exists(keys.tenant("blue"))


def test_a_job_escalates_only_if_the_budget_allows_it_over_all_cells(cells):
    store = cells["default"]
    serve(store, "small", "big")
    job = to(a_route(store, "small", "big"), escalates=True)
    pools = [replace(pool, max_tokens=most) for pool, most in zip(job.routing.pools, (20, 60), strict=True)]
    admitted(store, replace(job, routing=replace(job.routing, pools=tuple(pools))))
    admitted(cells["c"], a_job())
    exchange(cells)
    (small,) = store.claim("worker-of-small", "claim-1", "small", room=1, cells_free=10**6)
    assert store.escalate(an_ending(small.held)) is None
    store.settle(an_ending(small.held, usage=Usage(10, 0, 5)), "worker-of-small")
    assert used(store) == (15, 30)


def test_a_pools_cap_holds_over_cells_for_one_day(cells):
    for store in cells.values():
        set_budget(store, tokens_per_day=None)
        set_terms(store, MODEL, answer_price_micro=1_000, day_cap_micro=50)
    by = SpendingExchange()
    admitted(cells["b"], a_job())
    assert exchange(cells, by) == {"default": 1, "b": 0, "c": 1}
    admitted(cells["default"], a_job())
    exchange(cells, by)
    for store in cells.values():
        answer = ask(store)
        assert (answer.reason, answer.limit, answer.value, answer.max) == ("budget_exhausted", "spent_today", 40, 50)
        assert 0 < store.client.ttl(keys.spent("2027-01-15")) <= 40 * 86_400
    end_one(cells["b"], 10, 0)
    exchange(cells, by)
    assert exchange(cells, by) == {"default": 0, "b": 0, "c": 0}
    admitted(cells["c"], a_job())
    cells["c"].client.hset(keys.spent("2027-01-15"), f"@cells|{MODEL}", "spoiled; b x 5")
    admitted(cells["c"], a_job())
    exchange(cells)
    assert ask(cells["c"]).value == 60
    for store in cells.values():
        at(store, MIDDLE_MS + 10_000)
    exchange(cells)
    admitted(cells["c"], a_job())


# Bounds of single cells.


def test_a_keys_rates_and_a_tenants_bounds_hold_in_each_cell(cells):
    for store in cells.values():
        set_budget(store, tokens_per_day=None, max_waiting=2)
        admitted(store, a_job(key_id="one", key_bounds=KeyBounds(rpm=1)))
        assert ask(store, a_job(key_id="one", key_bounds=KeyBounds(rpm=1))).limit == "key_requests_per_minute"
        admitted(store, a_job())
        assert ask(store).limit == "tenant_waiting_jobs"

"""Tests of reservations: whom they put before whom, and what they never do."""

from typing import Any

import pytest

from shared.accounts.groups import Groups
from shared.accounts.tenants import Tenants
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.outcomes import Refused
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.replies import Admitted
from tests.support.builders import MODEL, a_heartbeat, a_job, claim, reconfigure, stat

#: The rates of a pool that computes 1,000 weighted tokens a second, with a backlog of at most 8 s.
RATES = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}


class Pool:
    """A pool whose four slots are taken by the tenant `filler`, and in which no real time passes."""

    def __init__(self, store, clock, rates=RATES) -> None:
        self.store, self._clock, self._rates = store, clock, rates
        self.beat()
        for _ in range(4):
            assert isinstance(store.admit(a_job("filler")), Admitted)
        assert len(claim(store, room=4)) == 4

    def beat(self) -> None:
        self.store.renew(a_heartbeat(slots=4, facts=self._rates), [])

    def wait(self, ms: int) -> None:
        self._clock.set(ms)
        self.beat()

    def offer(self, name: str, weighted_tokens: int, *, tenant: str = "blue", attempt: int = 0, **fields: Any):
        job = a_job(tenant, body_digest=name.encode().hex().ljust(64, "0"), cost_mwt=1_000 * weighted_tokens, **fields)
        return self.store.admit(job, attempt=attempt)

    def fill(self, tenant: str = "blue") -> None:
        """Queue the tenant's jobs until its threshold is reached."""
        while isinstance(self.offer("filling", 500, tenant=tenant), Admitted):
            pass

    def serve(self, jobs: int) -> None:
        """Take jobs out of the queue, as if more slots had become free."""
        assert len(claim(self.store, "w2", room=jobs)) == jobs

    @property
    def reserved(self) -> list[bytes]:
        return [member for member in self.store.client.zrange(keys.reservations(MODEL), 0, -1) if b"blue" in member]


@pytest.fixture
def pool(store, settings, clock):
    reconfigure(store, settings, max_inflight=1_000, max_queue_size=100, result_ttl_s=3_600)
    return Pool(store, clock)


@pytest.fixture
def told(pool):
    """The refusal of blue's request `told`, whose hint has ended; nothing was claimed since."""
    pool.fill()
    refused = pool.offer("told", 600, deadline_ms=600_000)
    assert isinstance(refused, Refused)
    assert refused.retry_ms > 0
    assert refused.return_window_ms >= 2_000
    pool.wait(refused.retry_hint_ms)
    return refused


def test_a_client_that_is_due_is_admitted_where_a_new_request_of_its_tenant_is_refused(pool, told):
    pool.serve(2)
    assert isinstance(pool.offer("new", 600), Refused)
    assert isinstance(pool.offer("told", 600, attempt=1, deadline_ms=600_000), Admitted)
    assert stat(pool.store, "hint_returns|blue|admitted") == 1


def test_a_due_client_leaves_other_tenants_as_they_are(pool, told):
    pool.serve(2)
    assert isinstance(pool.offer("new", 600, tenant="green"), Admitted)


def test_a_return_ticket_works_without_the_same_body(pool, told):
    pool.serve(2)
    ticket = {"ticket_id": b"told".hex().ljust(16, "0"), "ticket_ms": told.retry_ms}
    assert isinstance(pool.offer("another body", 600, **ticket), Admitted)
    # The ticket admits one job: the same one again counts as none.
    assert isinstance(pool.offer("third body", 600, **ticket), Refused)
    assert pool.reserved == [] or b"told".hex().encode() not in b"".join(pool.reserved)


@pytest.mark.parametrize(
    "fields",
    [
        {"ticket_ms": 1_800_000_000_001},
        {"ticket_id": "f" * 16},
        {"tenant": "green"},
        {"max_tokens": 30},
        {"prompt_tokens": 40},
    ],
    ids=["another time", "another reservation", "another tenant", "a longer answer", "a longer prompt"],
)
def test_a_ticket_for_anything_else_counts_as_none(pool, told, fields):
    pool.fill("green")
    ticket = {"ticket_id": b"told".hex().ljust(16, "0"), "ticket_ms": told.retry_ms}
    pool.serve(2)
    assert isinstance(pool.offer("other", 600, **(ticket | fields)), Refused)
    assert sum(stat(pool.store, f"hint_returns|{tenant}|admitted") for tenant in ("blue", "green")) == 0


def test_a_late_client_is_a_newcomer(pool, told):
    pool.serve(2)
    pool.wait(told.return_window_ms + 1)
    pool.fill()
    assert isinstance(pool.offer("told", 600, attempt=1), Refused)
    assert stat(pool.store, "hint_returns|blue|late") == 1


def test_a_client_that_does_not_come_back_holds_no_room_after_its_window(pool, told):
    pool.serve(2)
    assert isinstance(pool.offer("new", 600), Refused)
    pool.wait(told.return_window_ms + 1)
    # The threshold of the recent past counts only while clients are due.
    pool.store.client.delete(keys.reservations(MODEL))
    assert isinstance(pool.offer("new", 600), Admitted)


def test_a_reservation_lifts_neither_the_tenants_share_nor_a_bound(pool, settings, told):
    assert isinstance(again := pool.offer("told", 600, attempt=1, deadline_ms=600_000), Refused)
    assert again.reason == "tenant_share_full"
    inflight = pool.store.client.zcard(keys.inflight())
    reconfigure(pool.store, settings, max_inflight=inflight, max_queue_size=100)
    assert pool.offer("told", 600, attempt=2, deadline_ms=600_000).reason == "inflight_full"


def test_a_due_client_that_is_refused_gets_a_new_ticket_and_a_shorter_hint_than_new_requests(pool, told):
    strangers = [pool.offer(f"stranger{i}", 600, deadline_ms=600_000) for i in range(10)]
    again = pool.offer("told", 600, attempt=1, deadline_ms=600_000)
    assert isinstance(again, Refused)
    assert again.retry_ms > told.retry_ms
    assert again.retry_hint_ms < strangers[-1].retry_hint_ms


def test_a_client_that_comes_too_early_keeps_its_place(pool):
    pool.fill()
    first = pool.offer("told", 600, deadline_ms=600_000)
    pool.wait(first.retry_hint_ms // 2)
    early = pool.offer("told", 600, attempt=1, deadline_ms=600_000)
    assert isinstance(early, Refused)
    assert early.retry_ms == first.retry_ms
    assert stat(pool.store, "hint_returns|blue|early") == 1
    assert sum(b"told".hex().encode() in member for member in pool.reserved) == 1


def test_only_the_first_return_of_a_client_is_counted(pool, told):
    for attempt in range(1, 4):
        again = pool.offer("told", 600, attempt=attempt, deadline_ms=600_000)
        pool.wait(again.retry_hint_ms)
    assert stat(pool.store, "hint_returns|blue|refused") == 1
    assert sum(stat(pool.store, f"hint_returns|blue|{word}") for word in ("admitted", "late", "early")) == 0


def test_a_free_slot_is_never_kept_empty_for_clients_that_are_due(pool, told):
    while claim(pool.store, "w2", room=4):
        pass
    pool.store.renew(a_heartbeat("w3", slots=60, facts=RATES), [])
    assert isinstance(pool.offer("new", 600), Admitted)


def test_the_first_place_in_a_tenants_queue_is_never_kept_empty(pool, told):
    pool.fill("green")
    while any(job.tenant == "blue" for job in claim(pool.store, "w2", room=1)):
        pass
    while pool.store.client.zcard(keys.order(f"blue.{MODEL}")):
        claim(pool.store, "w2", room=1)
    assert isinstance(pool.offer("new", 600), Admitted)


def test_new_requests_leave_places_in_the_tenants_list_for_clients_that_are_due(pool, settings):
    reconfigure(pool.store, settings, max_inflight=1_000, max_queue_size=4)
    for i in range(4):
        assert isinstance(pool.offer(f"a{i}", 10), Admitted)
    refused = pool.offer("told", 10)
    assert refused.reason == "tenant_queue_full"
    pool.wait(refused.retry_hint_ms)
    pool.serve(1)
    assert pool.offer("new", 10).reason == "tenant_queue_full"
    assert isinstance(pool.offer("told", 10, attempt=1), Admitted)


def test_a_quote_counts_clients_that_are_due_as_admission_does(pool, told):
    pool.serve(2)
    quote = pool.store.quote(a_job())
    assert quote.refused is not None
    assert quote.refused.reason == "tenant_share_full"


def test_the_smallest_threshold_that_another_program_spoiled_counts_as_unknown(pool, told):
    pool.store.client.hset(keys.room(MODEL), mapping={"room_mwt": "nan", "room_ms": "soon"})
    pool.serve(6)
    assert isinstance(pool.offer("told", 600, attempt=1, deadline_ms=600_000), Admitted)


def test_a_client_that_reserves_much_and_does_not_come_back_keeps_half_of_the_room_at_most(pool):
    pool.fill()
    for i in range(64):
        pool.offer(f"hoarded{i}", 600, deadline_ms=600_000)
    pool.wait(5_000)
    pool.serve(7)
    assert isinstance(pool.offer("new", 500), Admitted)
    assert pool.offer("newer", 500).reason == "tenant_share_full"


def test_a_request_that_replaces_a_queued_job_needs_no_room(pool, settings):
    reconfigure(pool.store, settings, max_inflight=1_000, max_queue_size=4)
    for i in range(4):
        assert isinstance(pool.offer(f"a{i}", 10, supersede_digest="draft" if i == 0 else ""), Admitted)
    refused = pool.offer("told", 10)
    pool.wait(refused.retry_hint_ms)
    assert isinstance(pool.offer("a4", 10, supersede_digest="draft"), Admitted)


def test_a_free_slot_is_not_kept_empty_while_jobs_of_other_tenants_are_about_to_be_claimed(pool, told):
    pool.serve(2)
    assert isinstance(pool.offer("new", 600), Refused)
    pool.store.renew(a_heartbeat("w3", slots=60, facts=RATES), [])
    assert isinstance(pool.offer("new", 600), Admitted)


def test_new_requests_leave_room_in_the_tenants_tokens(pool, settings):
    reconfigure(pool.store, settings, max_inflight=1_000, max_queue_size=100, max_queue_tokens=300)
    for i in range(10):
        assert isinstance(pool.offer(f"a{i}", 10), Admitted)
    refused = pool.offer("told", 10)
    assert refused.reason == "tenant_tokens_full"
    pool.wait(refused.retry_hint_ms)
    pool.serve(1)
    assert pool.offer("new", 10).reason == "tenant_tokens_full"
    assert isinstance(pool.offer("told", 10, attempt=1), Admitted)


def test_while_rates_are_unknown_new_requests_leave_room_in_the_tenants_work(store, settings, clock):
    reconfigure(store, settings, max_inflight=1_000, max_queue_size=10)
    pool = Pool(store, clock, {})
    assert isinstance(pool.offer("large", 63_000, deadline_ms=600_000), Admitted)
    assert isinstance(pool.offer("small", 2_000), Admitted)
    refused = pool.offer("told", 1_000)
    assert refused.limit == "tenant_waiting_work"
    pool.wait(refused.retry_hint_ms)
    pool.serve(1)
    assert pool.offer("new", 2_000).reason == "tenant_tokens_full"
    assert isinstance(pool.offer("told", 1_000, attempt=1), Admitted)


def test_a_due_client_comes_before_new_requests_of_its_tenant_and_not_of_its_group(pool):
    Groups(pool.store.client).set("team", GroupPolicy())
    for tenant in ("blue", "red"):
        Tenants(pool.store.client).set(tenant, TenantPolicy(group="team"))
    pool.fill()
    told = pool.offer("told", 600)
    pool.wait(told.retry_hint_ms)
    pool.serve(2)
    assert pool.offer("new", 600).reason == "tenant_share_full"
    assert isinstance(pool.offer("new", 600, tenant="red"), Admitted)
    pool.fill("red")
    # Red's jobs took the group's room, and a reservation does not lift the group's share.
    assert pool.offer("told", 600, attempt=1).reason == "tenant_share_full"


def test_a_used_ticket_counts_as_none_so_a_repeat_is_recognized_by_its_body(pool, told):
    """OpenAI's client repeats a refused request with the ticket that was in its body."""
    ticket = {"ticket_id": b"told".hex().ljust(16, "0"), "ticket_ms": told.retry_ms, "deadline_ms": 600_000}
    again = pool.offer("told", 600, **ticket)
    assert isinstance(again, Refused)
    pool.wait(again.retry_hint_ms)
    pool.serve(2)
    assert isinstance(pool.offer("told", 600, attempt=1, **ticket), Admitted)


def test_each_of_many_equal_requests_gets_a_reservation_of_its_own(pool):
    pool.fill()
    for _ in range(60):
        assert pool.offer("told", 1, deadline_ms=600_000).retry_ms > 0
    assert sum(b"told".hex().encode() in member for member in pool.reserved) == 60

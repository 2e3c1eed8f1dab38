"""Tests of retry hints as promises: how they are spread, and how the return of each refused client is counted."""

import pytest

from shared.accounts.tenants import Tenants
from shared.jobs.outcomes import Refused
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.replies import Admitted
from tests.support.builders import MODEL, a_heartbeat, a_job, reconfigure, refused, stat

#: The rates of a pool that computes 1,000 weighted tokens a second.
RATES = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}


@pytest.fixture
def full(store, settings, clock):
    """A pool with known rates, whose only place is taken by the tenant `filler`."""
    store.renew(a_heartbeat(slots=4, facts=RATES), [])
    reconfigure(store, settings, max_inflight=1)
    assert isinstance(store.admit(a_job("filler")), Admitted)
    return store


def open_up(store, settings, places: int = 100) -> None:
    reconfigure(store, settings, max_inflight=places)
    store.renew(a_heartbeat(slots=4, facts=RATES), [])


def body(name: str, tenant: str = "blue", **fields):
    """Return a new job for the body with this name, as each send of the same request makes one."""
    return a_job(tenant, body_digest=name.encode().hex().ljust(64, "0"), **fields)


def come_back(store, clock, job, ms: int, attempt: int = 1):
    clock.set(ms)
    store.renew(a_heartbeat(slots=4, facts=RATES), [])
    return store.admit(job, attempt=attempt)


def returns(store, tenant: str = "blue") -> dict[str, int]:
    results = ("admitted", "refused", "late", "early")
    found = {result: stat(store, f"hint_returns|{tenant}|{result}") for result in results}
    return {result: count for result, count in found.items() if count}


def reserved(store) -> int:
    return store.client.zcard(keys.reservations(MODEL))


def test_a_client_that_comes_back_at_its_hint_and_is_admitted_counts_as_admitted(full, settings, clock):
    hint_ms = refused(full, body("a")).retry_hint_ms
    open_up(full, settings)
    assert isinstance(come_back(full, clock, body("a"), hint_ms), Admitted)
    assert returns(full) == {"admitted": 1}
    assert reserved(full) == 0


def test_clients_of_one_tenant_are_judged_each_by_its_own_hint(full, settings, clock):
    hints = {name: refused(full, body(name)).retry_hint_ms for name in "abcd"}
    assert hints["d"] > hints["a"] + 100
    open_up(full, settings)
    passed_ms = 0
    for name, hint_ms in sorted(hints.items(), key=lambda item: item[1]):
        assert isinstance(come_back(full, clock, body(name), hint_ms - passed_ms), Admitted)
        passed_ms = hint_ms
    assert returns(full) == {"admitted": 4}


def test_a_client_that_comes_back_at_its_hint_and_is_refused_again_gets_a_new_hint(full, clock):
    hint_ms = refused(full, body("a")).retry_hint_ms
    again = come_back(full, clock, body("a"), hint_ms)
    assert isinstance(again, Refused)
    assert returns(full) == {"refused": 1}
    assert reserved(full) == 1


@pytest.mark.parametrize(
    ("share", "plus_ms", "result"), [(0.5, 0, "early"), (1, 2_000, "admitted"), (1, 2_001, "late")]
)
def test_a_return_counts_as_early_or_late_outside_its_window_of_at_least_2_s(
    full, settings, clock, share, plus_ms, result
):
    hint_ms = refused(full, body("a")).retry_hint_ms
    assert hint_ms < 10_000
    open_up(full, settings)
    assert isinstance(come_back(full, clock, body("a"), int(share * hint_ms) + plus_ms), Admitted)
    assert returns(full) == {result: 1}


def test_the_window_of_a_long_hint_is_a_fifth_of_it(full, settings, clock):
    hint_ms = refused(full, body("a", cost_mwt=8_000_000, deadline_ms=600_000)).retry_hint_ms
    assert hint_ms > 25_000
    open_up(full, settings)
    assert isinstance(come_back(full, clock, body("a", deadline_ms=600_000), hint_ms + hint_ms // 6), Admitted)
    assert returns(full) == {"admitted": 1}


@pytest.mark.parametrize(
    ("again", "attempt"),
    [
        (body("a"), 0),
        (body("b"), 1),
        (body("a", "green"), 1),
        (a_job("blue"), 1),
    ],
    ids=["not sent as a repeat", "another body", "another tenant", "no digest"],
)
def test_only_the_same_tenants_same_body_sent_as_a_repeat_is_a_return(full, settings, clock, again, attempt):
    hint_ms = refused(full, body("a")).retry_hint_ms
    open_up(full, settings)
    assert isinstance(come_back(full, clock, again, hint_ms, attempt), Admitted)
    assert returns(full) == returns(full, "green") == {}


def test_of_several_requests_with_one_body_each_is_judged_once(full, settings, clock):
    for _ in range(3):
        refused(full, body("a"))
    open_up(full, settings)
    clock.set(1_000)
    for _ in range(5):
        come_back(full, clock, body("a"), 100)
    assert sum(returns(full).values()) == 3
    assert reserved(full) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"deadline_ms": 700, "deadline_source": "body"},
        {"start_within_ms": 50, "start_named": True},
        {"cost_mwt": 900_000_000},
    ],
    ids=["deadline", "start deadline", "a wait of more than a minute"],
)
def test_a_client_that_is_told_not_to_come_back_is_not_expected(full, fields):
    refused(full, body("a", **fields))
    refused(full, body("b", **fields))
    assert reserved(full) == 0


def test_a_proxys_repeat_of_a_refused_request_is_expected_once_at_the_hint_that_its_client_receives(
    full, settings, clock
):
    job = body("a")
    refused(full, job)
    clock.set(100)
    full.renew(a_heartbeat(slots=4, facts=RATES), [])
    second = refused(full, job)
    assert reserved(full) == 1
    assert second.retry_ms > 0
    open_up(full, settings)
    assert isinstance(come_back(full, clock, body("a"), second.retry_hint_ms), Admitted)
    assert returns(full) == {"admitted": 1}


def test_at_most_as_many_clients_of_a_tenant_are_expected_as_jobs_of_it_may_wait(full, settings, clock):
    reconfigure(full, settings, max_inflight=1, max_queue_size=5)
    for i in range(20):
        refused(full, body(f"a{i}", cost_mwt=1_000))
    refused(full, body("other", "green"))
    assert reserved(full) == 6


def test_at_most_64_clients_of_a_tenant_are_expected_in_a_pool(full, settings, clock):
    reconfigure(full, settings, max_inflight=1, max_queue_size=1_000)
    for i in range(80):
        refused(full, body(f"a{i}", cost_mwt=1_000))
    assert reserved(full) == 64


def test_clients_that_did_not_come_back_make_room_for_others(full, settings, clock):
    reconfigure(full, settings, max_inflight=1, max_queue_size=5)
    for i in range(5):
        refused(full, body(f"a{i}", cost_mwt=1_000))
    clock.pass_ms(6_000, beating="w1")
    refused(full, body("late", cost_mwt=1_000))
    assert reserved(full) == 5
    late = body("late").request.body_digest[:16].encode()
    assert any(late in member for member in full.client.zrange(keys.reservations(MODEL), 0, -1))


def test_what_tenants_left_behind_is_forgotten_although_they_never_return(full, clock):
    for i in range(40):
        refused(full, body("a", f"gone{i}"))
    clock.pass_ms(80_000, beating="w1")
    for i in range(400):
        full.admit(body(f"b{i}", "blue"))
    assert not [member for member in full.client.zrange(keys.reservations(MODEL), 0, -1) if member.startswith(b"gone")]


def test_hints_for_waits_of_more_than_a_minute_are_spread_over_50_to_60_s(full):
    hints = [refused(full, body(f"a{i}", cost_mwt=900_000_000)) for i in range(40)]
    assert all(answer.too_long for answer in hints)
    assert all(50_000 <= answer.retry_hint_ms <= 60_000 for answer in hints)
    assert len({answer.retry_hint_ms // 1_000 for answer in hints}) > 5


def test_a_hint_is_not_shorter_than_its_base_just_below_a_minute(store, clock):
    """A tenant whose rate allows its next job in 58 s is not told to come back before that."""
    store.renew(a_heartbeat(), [])
    Tenants(store.client).set("blue", TenantPolicy(rpm=1))
    assert isinstance(store.admit(a_job()), Admitted)
    clock.set(2_000)
    store.renew(a_heartbeat(), [])
    hints = [refused(store, a_job()) for _ in range(20)]
    assert all(57_000 <= answer.retry_hint_ms <= 60_000 and not answer.too_long for answer in hints)


def test_spoiled_members_are_passed_over_and_removed(full, settings, clock):
    hint_ms = refused(full, body("a")).retry_hint_ms
    key = keys.reservations(MODEL)
    full.client.zadd(key, {"blue|x": 0, "blue|1|zz": 0, f"blue|1|00|{10**15}|1|1|1": 0, "noise": 0, "green|1": 5})
    for i in range(300):
        full.admit(body(f"b{i}", "red"))
    left = [member for member in full.client.zrange(key, 0, -1) if not member.startswith(b"red")]
    assert len(left) == 1
    open_up(full, settings)
    come_back(full, clock, body("a"), hint_ms)
    assert returns(full) == {"admitted": 1}


def test_hints_of_a_tenant_whose_appointment_is_as_late_as_it_may_be_are_spread_too(full):
    """The tenant has offered more than its share does in the minute after its queued work."""
    for i in range(100):
        refused(full, body(f"a{i}", cost_mwt=2_000_000))
    hints = [refused(full, body(f"b{i}", cost_mwt=2_000_000)) for i in range(40)]
    assert all(answer.too_long for answer in hints)
    assert all(50_000 <= answer.retry_hint_ms <= 60_000 for answer in hints)
    assert len({answer.retry_hint_ms // 1_000 for answer in hints}) > 5

"""Every broken book is found, named by its invariant; sound ones are not."""

import pytest

from shared.audit.invariants import INVARIANTS, Breach, breaches
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import MODEL, a_job, admitted, an_ending, beat, claim_one, shift

QUEUE = keys.queue_name("blue", MODEL)


class Books:
    """A store with two waiting jobs of blue, one running and one ended; nobody audits it afterwards."""

    def __init__(self, client, settings) -> None:
        self.client = client
        self.store = Store(client)
        self.store.configure(settings)
        beat(self.store)
        self.ended, self.running, self.first, self.second = (admitted(self.store, a_job()) for _ in range(4))
        self.store.settle(an_ending(claim_one(self.store).held), "w1")
        self.held = claim_one(self.store).held

    def broken(self, *, timely: bool = False) -> dict[int, str]:
        found: dict[int, str] = {}
        for breach in breaches(self.client, timely=timely):
            found[breach.invariant] = f"{found.get(breach.invariant, '')}{breach.what}\n"
        return found


@pytest.fixture
def books(redis_client, settings) -> Books:
    return Books(redis_client, settings)


def set_field(job: str, name: str, value: str):
    return lambda books: books.client.hset(keys.rq_job(getattr(books, job)), name, value)


#: What somebody does to the books, the invariant it breaks and a word of the sentence that says so.
DEEDS = {
    "a waiting job leaves its list": (lambda b: b.client.zrem(keys.order(QUEUE), b.first), 1, "first"),
    "an ended job stands in a list": (lambda b: b.client.zadd(keys.order(QUEUE), {b.ended: 1}), 1, "not inflight"),
    "a running job loses its lease": (lambda b: b.client.zrem(keys.leases(), b.running), 1, "without a lease"),
    "a waiting job is under a lease too": (lambda b: b.client.zadd(keys.leases(), {b.first: 1}), 2, "at once"),
    "an inflight job says it has ended": (set_field("first", "penstock_state", "failed"), 1, "'failed'"),
    "a place stays taken by nobody": (lambda b: b.client.zadd(keys.inflight(), {"ghost": 1}), 2, "ghost"),
    "a waiting job lost its place": (lambda b: b.client.zrem(keys.inflight(), b.first), 2, "differs"),
    "the bound is passed": (lambda b: b.client.hset(keys.config(), "max_inflight", "2"), 2, "more are inflight than"),
    "a sum is wrong": (lambda b: b.client.hincrby(keys.tenant("blue"), "waiting_tokens", 5), 3, "waiting_tokens"),
    "running is counted twice": (lambda b: b.client.hincrby(keys.tenant("blue"), "running", 1), 3, "running is off"),
    "a list is longer than its bound": (
        lambda b: b.client.hset(keys.config(), "max_queue_size", "1"),
        3,
        "more wait than its bound of 1",
    ),
    "an end is counted twice": (lambda b: b.client.hincrby(keys.stats(), "ended|failed", 1), 4, "differ by -1"),
    "a claim came after the deadline": (set_field("running", "penstock_deadline_ms", "1"), 5, "after its deadline"),
    "a tenant with work is not active": (lambda b: b.client.zrem(keys.active(MODEL), "blue"), 7, "blue"),
    "a tenant without work is active": (lambda b: b.client.zadd(keys.active(MODEL), {"red": 0}), 7, "red"),
    "a tenant stands at another service": (lambda b: b.client.zadd(keys.active(MODEL), {"blue": 7}), 7, "stands at 7"),
    "a tenant's lists do not name the model": (lambda b: b.client.srem(keys.lists("blue"), MODEL), 7, "do not name"),
    "a list is out of order": (set_field("first", "penstock_latest_us", "9999999999999999"), 7, "not in order"),
    "a record is gone": (lambda b: b.client.delete(keys.rq_job(b.first)), 8, "no record"),
    "a record is of another type": (
        lambda b: (b.client.delete(keys.rq_job(b.first)), b.client.set(keys.rq_job(b.first), "x")),
        8,
        "no record",
    ),
    "rq's status is another": (set_field("first", "status", "finished"), 8, "'finished'"),
    "rq's list is no mirror": (lambda b: b.client.lrem(f"rq:queue:{QUEUE}", 0, b.first), 8, "mirror"),
    "rq's started registry lost a job": (lambda b: b.client.delete(f"rq:wip:{QUEUE}"), 8, "started registry"),
    "rq's started registry names another": (lambda b: b.client.zadd(f"rq:wip:{QUEUE}", {"x:y": 1}), 8, "x:y"),
    "an ended job is in two registries": (
        lambda b: (b.client.zadd(f"rq:failed:{QUEUE}", {b.ended: 9e9}), b.client.expire(f"rq:failed:{QUEUE}", 60)),
        8,
        "'failed', 'finished'",
    ),
    "a request of no job is left": (lambda b: b.client.set("penstock:payload:ghost", 1), 6, "payload:ghost"),
    "a key has neither ttl nor owner": (lambda b: b.client.set("penstock:result:ghost", 1), 9, "result:ghost"),
}


def test_sound_books_have_no_breach(books):
    assert breaches(books.client, timely=True) == []


@pytest.mark.parametrize("deed", list(DEEDS))
def test_what_somebody_does_to_the_books_is_found(books, deed):
    do, invariant, told = DEEDS[deed]
    do(books)
    found = books.broken()
    assert invariant in found, found
    assert (getattr(books, told) if hasattr(books, told) else told) in found[invariant]


@pytest.mark.parametrize("name", ["prompt_tokens", "cost_mwt", "latest_us", "deadline_ms"])
@pytest.mark.parametrize("value", [None, "soon"])
def test_a_spoiled_number_is_no_fault_of_the_audit_and_a_breach_where_it_is_summed(books, name, value):
    record = keys.rq_job(books.first)
    if value is None:
        books.client.hdel(record, f"penstock_{name}")
    else:
        books.client.hset(record, f"penstock_{name}", value)
    assert set(books.broken()) == ({3} if name in {"prompt_tokens", "cost_mwt"} else set())


@pytest.mark.parametrize(("name", "invariant"), [("waiting", 3), ("running", 3), ("service_mwt", 7)])
def test_a_tenants_sum_that_is_no_number_is_a_breach_and_no_fault_of_whoever_looks(books, name, invariant):
    books.client.hset(keys.tenant("blue"), name, "many")
    found = books.broken()
    assert set(found) == {invariant}
    assert "many" in found[invariant]
    assert [tenant.name for tenant in books.store.snapshot().tenants] == ["blue"]


def test_bounds_that_are_no_numbers_are_no_fault_of_the_audit(books):
    """Python counts these signs as digits, and makes no number of them."""
    books.client.hset(keys.config(), "max_inflight", "²")
    books.client.hset(keys.tenant("blue"), "policy_max_waiting", "²")
    assert books.broken() == {}


def test_service_beyond_what_a_score_can_hold_is_no_breach(books):
    """A score is a double; from 2^53 on it stands for its neighbours too."""
    books.client.hset(keys.tenant("blue"), "service_mwt", 2**53 + 1)
    books.client.zadd(keys.active(MODEL), {"blue": 2**53 + 1})
    assert books.broken() == {}


def test_a_key_of_another_type_is_a_breach_and_no_fault_of_the_audit(books):
    books.client.delete(keys.order(QUEUE))
    books.client.set(keys.order(QUEUE), "x")
    assert {1, 8} <= set(books.broken())


def test_what_waits_past_its_deadline_is_late_only_where_somebody_reaps(books):
    shift(books.store, 63_000)
    assert books.broken() == {}
    found = books.broken(timely=True)
    assert set(found) == {10}
    assert books.first in found[10]
    assert books.running in found[10]


def test_leases_that_are_held_after_a_gap_are_not_late(books):
    shift(books.store, 20_000)
    assert 10 in books.broken(timely=True)
    books.store.reap()
    assert books.broken(timely=True) == {}


def test_a_requeued_job_beyond_the_bound_is_no_breach(books):
    books.client.hset(keys.config(), "max_queue_size", "2")
    books.store.release("w1", [books.held])
    assert books.broken() == {}


def test_every_breach_names_an_invariant_that_is_explained(books):
    assert {number for _, number, _ in DEEDS.values()} <= set(INVARIANTS)
    assert sorted(INVARIANTS) == list(range(1, 11))
    assert Breach(1, "a") < Breach(1, "b") < Breach(2, "a")

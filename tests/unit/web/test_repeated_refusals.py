"""Tests when a door repeats a refusal of the store, to whom, with which hint, and that the store counts each one."""

from dataclasses import replace

import pytest

from shared.clock import ManualClock
from shared.errors import StoreUnavailable
from shared.jobs.job import NewJob
from shared.jobs.key_bounds import KeyBounds
from shared.jobs.outcomes import Refusal, Refused
from shared.jobs.request import BatchLine, JobRequest
from shared.store.replies import Admitted
from web.runtime.repeated_refusals import RepeatedRefusals

#: As many refusals within a tenth of a second are a flood.
FLOOD = 4
FULL = Refused(Refusal.INFLIGHT_FULL, "inflight", 1, 1, 1, 1, 1_100, shared_hints_ms=(1_000, 1_200))
JOB = NewJob("1", "blue", "small", {"prompt": "hi"}, 2, 20, 30_000, request=JobRequest(is_new=True))


class Asked:
    """A store that gives one answer to each offer, and counts what it is told to count."""

    def __init__(self) -> None:
        self.answer: Refused | Admitted = FULL
        self.offers, self.is_away = 0, False
        self.counted: list[tuple[str, str, Refusal, int, list[int]]] = []

    def offer(self) -> Refused | Admitted:
        self.offers += 1
        return self.answer

    def count_refusals(self, tenant: str, model: str, reason: Refusal, tokens: int, hints_ms: list[int]) -> None:
        if self.is_away:
            raise StoreUnavailable("away")
        self.counted.append((tenant, model, reason, tokens, list(hints_ms)))


@pytest.fixture
def store() -> Asked:
    return Asked()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def refusals(store, clock, monkeypatch) -> RepeatedRefusals:
    # The tests count themselves, so that nothing depends on another thread.
    monkeypatch.setattr("threading.Thread.start", lambda _: None)
    return RepeatedRefusals(store, clock)


def flood(refusals: RepeatedRefusals, store: Asked, job: NewJob = JOB) -> None:
    for _ in range(FLOOD):
        refusals.offer(job, store.offer)


def asks(refusals: RepeatedRefusals, store: Asked, job: NewJob = JOB) -> bool:
    """Offer a job, and return whether the store was asked."""
    before = store.offers
    refusals.offer(job, store.offer)
    return store.offers > before


def test_a_few_refusals_are_all_the_store_s_own(refusals, store, clock):
    for _ in range(5 * FLOOD):
        assert asks(refusals, store)
        clock.advance(0.11 / (FLOOD - 1))


def test_in_a_flood_a_refusal_is_repeated_with_a_hint_of_its_own_within_the_store_s_bounds(refusals, store):
    flood(refusals, store)
    repeated = [refusals.offer(JOB, store.offer) for _ in range(50)]
    assert store.offers == FLOOD
    assert {replace(one, retry_hint_ms=0) for one in repeated} == {replace(FULL, retry_hint_ms=0)}
    hints = [one.retry_hint_ms for one in repeated]
    assert 1_000 <= min(hints) < max(hints) <= 1_200


def test_no_refusal_is_repeated_that_is_older_than_a_tenth_of_a_second(refusals, store, clock):
    flood(refusals, store)
    clock.advance(0.101)
    assert asks(refusals, store)


def test_one_request_of_a_lasting_flood_asks_again_before_the_refusal_is_too_old(refusals, store, clock):
    flood(refusals, store)
    for _ in range(20):
        clock.advance(0.051)
        asked = sum(asks(refusals, store) for _ in range(2 * FLOOD))
        assert asked == 1


def test_while_a_request_asks_again_the_others_get_the_refusal(refusals, store, clock):
    flood(refusals, store)
    clock.advance(0.051)

    def ask() -> Refused | Admitted:
        assert not asks(refusals, store)
        return store.offer()

    assert refusals.offer(JOB, ask) == FULL
    assert store.offers == FLOOD + 1


def test_an_offer_that_fails_lets_another_one_ask(refusals, store, clock):
    flood(refusals, store)
    clock.advance(0.051)

    def fail() -> Refused:
        raise StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        refusals.offer(JOB, fail)
    assert asks(refusals, store)


def test_an_admission_ends_the_repetition_at_once(refusals, store, clock):
    flood(refusals, store)
    clock.advance(0.051)
    store.answer = Admitted("1", again=False, position=1, inflight=1)
    assert asks(refusals, store)
    assert asks(refusals, store)


def test_a_refusal_that_depends_on_the_request_is_not_repeated(refusals, store):
    store.answer = replace(FULL, shared_hints_ms=None)
    flood(refusals, store)
    assert asks(refusals, store)


@pytest.mark.parametrize(
    "other",
    [
        replace(JOB, tenant="red"),
        replace(JOB, model="large"),
        replace(JOB, private=True),
        replace(JOB, supersede_digest="d"),
        replace(JOB, request=JobRequest()),
        replace(JOB, request=JobRequest(is_new=True, idem_digest="d")),
        replace(JOB, request=JobRequest(is_new=True, priority=-1)),
        replace(JOB, request=JobRequest(is_new=True, line=BatchLine("b", "t", 1))),
    ],
)
def test_requests_of_others_and_those_that_the_store_may_know_ask_it(refusals, store, other):
    flood(refusals, store)
    assert asks(refusals, store, other)


def test_each_repeated_refusal_is_counted_once(refusals, store):
    flood(refusals, store)
    hints = [refusals.offer(JOB, store.offer).retry_hint_ms for _ in range(3)]
    assert refusals.count_now()
    assert refusals.count_now()
    assert store.counted == [("blue", "small", Refusal.INFLIGHT_FULL, 3 * 22, hints)]


def test_what_the_store_could_not_count_is_counted_later(refusals, store):
    flood(refusals, store)
    store.is_away = True
    first = refusals.offer(JOB, store.offer).retry_hint_ms
    assert not refusals.count_now()
    second = refusals.offer(JOB, store.offer).retry_hint_ms
    store.is_away = False
    assert refusals.count_now()
    ((*_, tokens, hints),) = store.counted
    assert (tokens, sorted(hints)) == (2 * 22, sorted([first, second]))


def test_a_request_of_a_key_with_bounds_asks_the_store(refusals, store):
    flood(refusals, store)
    assert asks(refusals, store, replace(JOB, key_id="k", key_bounds=KeyBounds(rpm=1)))


def test_a_request_that_names_its_deadline_asks_the_store_once_rates_are_known(refusals, store):
    named = replace(JOB, deadline_source="body")
    flood(refusals, store)
    assert not asks(refusals, store, named)
    store.answer = replace(FULL, answer_ms=100)
    for _ in range(2):
        flood(refusals, store, replace(JOB, tenant="red"))
    assert asks(refusals, store, replace(named, tenant="red"))
    assert not asks(refusals, store, replace(JOB, tenant="red"))


def test_refusals_for_reasons_of_a_request_make_no_flood(refusals, store):
    store.answer = replace(FULL, reason=Refusal.RATE_LIMITED, shared_hints_ms=None)
    flood(refusals, store)
    store.answer = FULL
    assert asks(refusals, store)
    assert asks(refusals, store)

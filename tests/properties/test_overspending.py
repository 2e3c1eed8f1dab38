"""Tests with random steps in three cells that a budget is exceeded by no more than one exchange can miss."""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
import redis
from hypothesis import given, settings

from shared.accounts.tenants import Tenants
from shared.cells.spending import SpendingExchange
from shared.jobs.job import Usage
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.connection import open_client
from shared.store.replies import Admitted
from shared.store.store import Store
from tests.support.budgets import MIDDLE_MS, at
from tests.support.builders import a_job, an_ending, claim_one
from tests.support.cells import open_stores

pytestmark = [pytest.mark.no_prefix]

NAMES = ("b", "c", "default")
#: The budget of a day, and the prompt tokens of all jobs.
MOST, PROMPT = 200, 10
DAY_MS = 86_400_000
_NUMBERS = itertools.count()

cell = st.sampled_from(NAMES)
step = st.one_of(
    st.tuples(st.just("admit"), cell, st.integers(1, 60)),
    st.tuples(st.just("admit"), cell, st.integers(1, 60)),
    st.tuples(st.just("end"), cell, st.integers(0, 60)),
    st.tuples(st.just("cancel"), cell, st.just(0)),
    st.tuples(st.just("exchange"), st.sampled_from([*NAMES, ""]), st.just(0)),
    st.tuples(st.just("another_process"), st.just(""), st.just(0)),
    st.tuples(st.just("next_day"), st.just(""), st.just(0)),
)


@dataclass
class Expected:
    """The tokens that one tenant has used in each cell, and those that each cell was told of."""

    day: int = 0
    counted: Counter[tuple[str, int]] = field(default_factory=Counter)
    inflight: dict[str, dict[str, int]] = field(default_factory=lambda: {name: {} for name in NAMES})
    #: By (who was told, of whom): the day, the tokens counted in it, and the reserved ones.
    told: dict[tuple[str, str], tuple[int, int, int]] = field(default_factory=dict)
    #: By the same: the tokens that were admitted there since then.
    missed: Counter[tuple[str, str]] = field(default_factory=Counter)

    def own(self, name: str) -> int:
        return self.counted[name, self.day] + sum(self.inflight[name].values())

    def as_told(self, name: str) -> int:
        found = [held for (target, _), held in self.told.items() if target == name]
        return sum(reserved + (counted if day == self.day else 0) for day, counted, reserved in found)

    def others(self, name: str) -> list[tuple[str, str]]:
        return [(name, other) for other in NAMES if other != name]

    def admit(self, name: str, job_id: str, tokens: int) -> None:
        self.inflight[name][job_id] = tokens
        for target in NAMES:
            self.missed[target, name] += tokens if target != name else 0

    def exchange(self, present: list[str]) -> None:
        for target, source in itertools.permutations(present, 2):
            held = sum(self.inflight[source].values())
            self.told[target, source] = (self.day, self.counted[source, self.day], held)
            self.missed[target, source] = 0


@pytest.fixture
def cells(redis_client: redis.Redis, store_url: str, settings) -> Iterator[dict[str, Store]]:
    with open_stores(store_url, settings) as stores:
        yield stores


@pytest.fixture
def away(tmp_path) -> Iterator[redis.Redis]:
    with open_client(f"unix://{tmp_path}/none.sock", name="penstock-test") as client:
        yield client


class Life:
    """One tenant in the three cells, from the budget's first job to its last."""

    def __init__(self, cells: dict[str, Store], away: redis.Redis) -> None:
        self.cells, self.away = cells, away
        self.clients = {name: store.client for name, store in cells.items()}
        number = next(_NUMBERS)
        self.tenant, self.expected = f"t{number}", Expected()
        #: At first ten seconds before the end of a day. The clock of the cells does not go back.
        self.now_ms = MIDDLE_MS + 2 * DAY_MS * number
        self.another_process("", 0)
        for store in cells.values():
            at(store, self.now_ms)
            Tenants(store.client).set(self.tenant, TenantPolicy(tokens_per_day=MOST, max_waiting=1_000))

    def admit(self, name: str, amount: int) -> None:
        expected = self.expected
        used, needed = expected.own(name) + expected.as_told(name), PROMPT + amount
        answer = self.cells[name].admit(a_job(self.tenant, max_tokens=amount, deadline_ms=3_600_000))
        assert isinstance(answer, Admitted) == (used + needed <= MOST)
        if isinstance(answer, Admitted):
            expected.admit(name, answer.id, needed)
            missed = sum(expected.missed[pair] for pair in expected.others(name))
            assert sum(expected.own(each) for each in NAMES) <= MOST + missed
        elif needed <= MOST:
            assert (answer.limit, answer.value) == ("tenant_tokens_per_day", used)

    def end(self, name: str, amount: int) -> None:
        if self.expected.inflight[name]:
            job = claim_one(self.cells[name])
            answer = min(amount, self.expected.inflight[name].pop(job.held.id) - PROMPT)
            self.cells[name].settle(an_ending(job.held, usage=Usage(PROMPT, 0, answer)), "w1")
            self.expected.counted[name, self.expected.day] += PROMPT + answer

    def cancel(self, name: str, _: int) -> None:
        if self.expected.inflight[name]:
            self.cells[name].cancel(self.expected.inflight[name].popitem()[0])

    def exchange(self, lost: str, _: int) -> None:
        done = self.by.exchange(self.clients | ({lost: self.away} if lost else {}))
        assert done is not None
        assert set(done.away) == ({lost} if lost else set())
        self.expected.exchange([name for name in NAMES if name != lost])
        self.now_ms += 1
        for client in self.clients.values():
            client.set(keys.clock(), f"={self.now_ms}")

    def another_process(self, _: str, __: int) -> None:
        for client in self.clients.values():
            client.delete(keys.spending_exchange())
        self.by = SpendingExchange()

    def next_day(self, _: str, __: int) -> None:
        self.now_ms += 0 if self.expected.day else 20_000
        self.expected.day = 1
        for store in self.cells.values():
            at(store, self.now_ms)

    def over(self) -> None:
        for name in NAMES:
            while self.expected.inflight[name]:
                self.cancel(name, 0)


def test_no_budget_is_exceeded_by_more_than_was_admitted_elsewhere_since_the_last_exchange(cells, away):
    @settings(max_examples=30)
    @given(steps=st.lists(step, min_size=5, max_size=40))
    def live_through(steps):
        life = Life(cells, away)
        try:
            for what, name, amount in steps:
                getattr(life, what)(name, amount)
        finally:
            life.over()

    live_through()

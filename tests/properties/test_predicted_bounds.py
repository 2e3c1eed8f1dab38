"""Tests that predictions are bounded by all work at the measured rate, for random tenants, weights and groups."""

from dataclasses import dataclass, field

import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.accounts.groups import Groups
from shared.accounts.tenants import Tenants
from shared.audit.invariants import find_breaches
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import load
from shared.store import keys
from shared.store.replies import Admitted
from shared.store.store import Store
from tests.support.builders import MODEL, a_heartbeat, a_job, an_ending
from tests.support.cell import empty
from tests.support.examples import examples

START_MS = 1_790_000_000_000
#: Weighted tokens a second. A job of 10 prompt tokens and 40 tokens of 4 wt each computes for 810 ms.
MU_WTPS, PREFILL_TPS, TPOT_MS, COMPUTE_MS = 1_000, 1_000, 20, 810
#: Costs of the jobs, in thousandths of a weighted token.
COSTS = (10_000, 170_000, 170_000, 2_000_000)


@dataclass
class Queue:
    """A store whose time stands still, and the cost of each job that is queued or running."""

    store: Store
    quantum_ms: int
    costs: dict[str, int] = field(default_factory=dict)
    now_ms: int = START_MS

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.store.client.set(keys.clock(), f"={self.now_ms}")
        facts = {"mu_wtps": MU_WTPS, "prefill_tps": PREFILL_TPS, "tpot_ms": TPOT_MS, "can_pause": 1}
        self.store.renew(a_heartbeat(slots=4, cells=1_000_000, facts=facts), [])

    def offer(self, tenant: str, cost_mwt: int, priority: int, deadline_ms: int) -> None:
        """Offer a job; if it is admitted, its predicted end is bounded by all work."""
        fields = {"max_tokens": 40, "cost_mwt": cost_mwt, "priority": priority, "deadline_ms": deadline_ms}
        answer = self.store.admit(a_job(tenant, **fields))
        if isinstance(answer, Admitted):
            stored = self.store.client.hmget(keys.rq_job(answer.id), "penstock_eta_ms", "penstock_predicted")
            all_work_ms = sum(self.costs.values()) / MU_WTPS
            eta_ms, start_ms = int(stored[0]) - self.now_ms, int(stored[1].split()[0])
            assert eta_ms <= all_work_ms + COMPUTE_MS + self.slot_ms() + 1
            assert start_ms <= all_work_ms + 10 + self.slot_ms() + 1
            self.costs[answer.id] = cost_mwt

    def slot_ms(self) -> float:
        """Return the mean time until a slot is free, as the pool has measured it."""
        return int(self.store.client.hget(keys.books(MODEL), "run_ms") or 0) / 4

    def run(self, room: int, after_ms: int) -> None:
        """Claim some jobs, and end them a while later."""
        claimed = self.store.claim("w1", f"c{self.now_ms}", MODEL, room=room, cells_free=1_000_000)
        self.wait(after_ms)
        for job in claimed[: room // 2 + 1]:
            self.store.settle(an_ending(job.held), "w1")
            self.costs.pop(job.id)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    weights=st.lists(st.sampled_from([0.1, 1, 1, 7]), min_size=1, max_size=40),
    grouped=st.integers(0, 20),
    fairness=st.sampled_from(["tokens", "turns"]),
    learned=st.sampled_from([0, 500, 3_000]),
    rounds=st.lists(
        st.tuples(
            st.lists(
                st.tuples(
                    st.integers(0, 39), st.sampled_from(COSTS), st.sampled_from([0, 0, 0, 1, -1]),
                    st.sampled_from([20_000, 120_000, 600_000]),
                ),
                max_size=25,
            ),
            st.integers(0, 4),
            st.sampled_from([1, 300, 2_500]),
        ),
        min_size=1,
        max_size=5,
    ),
)  # fmt: skip
def test_no_prediction_is_longer_than_all_work_takes_at_the_measured_rate(
    redis_client: redis.Redis, weights, grouped, fairness, learned, rounds
):
    empty(redis_client)
    store = Store(redis_client)
    environ = {"PENSTOCK_FAIRNESS": fairness, "PENSTOCK_MAX_WAIT_MS": "120000", "PENSTOCK_MAX_INFLIGHT": "256"}
    store.configure(load(environ, None))
    Groups(redis_client).set("team", GroupPolicy(weight=3))
    for i, weight in enumerate(weights):
        Tenants(redis_client).set(f"t{i:02d}", TenantPolicy(weight=weight, group="team" if i < grouped else None))
    queue = Queue(store, 1_000)
    queue.wait(0)
    classes = [*"isnhl", *(f"b{k}" for k in range(21))]
    redis_client.hset(keys.books(MODEL), mapping={f"wait|{name}": learned for name in classes})
    for offers, room, after_ms in rounds:
        for number, cost_mwt, priority, deadline_ms in offers:
            queue.offer(f"t{number % len(weights):02d}", cost_mwt, priority, deadline_ms)
        queue.run(room, after_ms)
    assert find_breaches(redis_client) == []


def test_the_first_jobs_of_many_tenants_are_admitted_and_predicted_in_the_order_in_which_they_start(
    redis_client: redis.Redis,
):
    empty(redis_client)
    store = Store(redis_client)
    store.configure(load({"PENSTOCK_MAX_WAIT_MS": "120000", "PENSTOCK_MAX_INFLIGHT": "256"}, None))
    queue = Queue(store, 1_000)
    queue.wait(0)
    redis_client.hset(keys.books(MODEL), mapping=dict.fromkeys(("wait|n", "wait|s"), 3_000))
    for number in range(200):
        queue.offer(f"t{number * 73 % 200:03d}", 170_000, 0, 120_000)
    assert len(queue.costs) == 200
    order = [job.id for i in range(50) for job in store.claim("w1", f"c{i}", MODEL, room=4, cells_free=1_000_000)]
    assert order == list(queue.costs)

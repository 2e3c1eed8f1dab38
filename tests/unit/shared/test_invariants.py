"""Tests that the audit finds every violation under the number of its invariant, and reports no sound store."""

import pytest

from shared.audit.invariants import INVARIANTS, Breach, find_breaches
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import MODEL, a_job, admitted, advance_clock, an_ending, claim_one, heartbeat, hold_clock

pytestmark = pytest.mark.rq

QUEUE = keys.queue_name("blue", MODEL)


class Scene:
    """A store with two queued jobs of blue, one running and one ended; it is not audited after the test."""

    def __init__(self, client, settings) -> None:
        self.client = client
        self.store = Store(client)
        self.store.configure(settings)
        # The worker would not be live after five seconds.
        hold_clock(self.store)
        heartbeat(self.store)
        self.ended, self.running, self.first, self.second = (admitted(self.store, a_job()) for _ in range(4))
        self.store.settle(an_ending(claim_one(self.store).held), "w1")
        self.held = claim_one(self.store).held
        self.told = admitted(self.store, a_job(callback_url="https://example.com/"))
        self.store.cancel(self.told)

    def breaches(self, *, timely: bool = False) -> dict[int, str]:
        found: dict[int, str] = {}
        for breach in find_breaches(self.client, timely=timely):
            found[breach.invariant] = f"{found.get(breach.invariant, '')}{breach.message}\n"
        return found


@pytest.fixture
def scene(redis_client, settings) -> Scene:
    return Scene(redis_client, settings)


def set_field(job: str, name: str, value: str):
    return lambda scene: scene.client.hset(keys.rq_job(getattr(scene, job)), name, value)


#: By name: the change to the store, the invariant that it violates, and a part of the breach's message or the name of
#: the scene's attribute that contains this part.
VIOLATIONS = {
    "a webhook is due at no time": (lambda scene: scene.client.zrem(keys.webhook_due("blue"), scene.told), 13, "told"),
    "a tenant with webhooks has no turn": (lambda scene: scene.client.delete(keys.webhook_turns()), 13, "blue"),
    "a webhook has no record": (lambda scene: scene.client.delete(keys.webhook(scene.told)), 13, "told"),
    "the set of webhooks is something else": (lambda scene: scene.client.set(keys.webhooks(), "x"), 13, "sorted set"),
    "a queued job is not in its queue": (lambda scene: scene.client.zrem(keys.order(QUEUE), scene.first), 1, "first"),
    "an ended job is in a queue": (
        lambda scene: scene.client.zadd(keys.order(QUEUE), {scene.ended: 1}),
        1,
        "not inflight",
    ),
    "a running job has no lease": (lambda scene: scene.client.zrem(keys.leases(), scene.running), 1, "without a lease"),
    "a queued job has a lease": (
        lambda scene: scene.client.zadd(keys.leases(), {scene.first: 1}),
        2,
        "at the same time",
    ),
    "an inflight job has the state of an ended one": (set_field("first", "penstock_state", "failed"), 1, "'failed'"),
    "the inflight set has a job that does not exist": (
        lambda scene: scene.client.zadd(keys.inflight(), {"ghost": 1}),
        2,
        "ghost",
    ),
    "a queued job is not in the inflight set": (
        lambda scene: scene.client.zrem(keys.inflight(), scene.first),
        2,
        "differs",
    ),
    "more jobs are inflight than the bound": (
        lambda scene: scene.client.hset(keys.config(), "max_inflight", "2"),
        2,
        "more jobs are inflight than",
    ),
    "a tenant's sum is wrong": (
        lambda scene: scene.client.hincrby(keys.tenant("blue"), "waiting_tokens", 5),
        3,
        "waiting_tokens",
    ),
    "a running job is counted twice": (
        lambda scene: scene.client.hincrby(keys.tenant("blue"), "running", 1),
        3,
        "running is off",
    ),
    "a queue is longer than its bound": (
        lambda scene: scene.client.hset(keys.config(), "max_queue_size", "1"),
        3,
        "more jobs are queued than its bound of 1",
    ),
    "an end is counted twice": (lambda scene: scene.client.hincrby(keys.stats(), "ended|failed", 1), 4, "differ by -1"),
    "a job was claimed after its deadline": (
        set_field("running", "penstock_deadline_ms", "1"),
        5,
        "after its deadline",
    ),
    "a tenant with queued jobs is not in the active set": (
        lambda scene: scene.client.zrem(keys.active(MODEL), "blue"),
        7,
        "blue",
    ),
    "a tenant without queued jobs is in the active set": (
        lambda scene: scene.client.zadd(keys.active(MODEL), {"red": 0}),
        7,
        "red",
    ),
    "a tenant has another score than its service": (
        lambda scene: scene.client.zadd(keys.active(MODEL), {"blue": 7}),
        7,
        "has score 7",
    ),
    "a tenant's set of models lacks the model": (
        lambda scene: scene.client.srem(keys.lists("blue"), MODEL),
        7,
        "its set of models lacks",
    ),
    "a queue is out of order": (set_field("first", "penstock_latest_us", "9999999999999999"), 7, "not ordered"),
    "a job with a high priority is behind others": (set_field("second", "penstock_priority", "1"), 7, "not ordered"),
    "a tenant with only batch jobs is in the active set": (
        lambda scene: [
            scene.client.hset(keys.rq_job(job_id), "penstock_priority", "-1") for job_id in (scene.first, scene.second)
        ],
        7,
        "in the batch set of m differ",
    ),
    "a tenant is in the batch set as well": (
        lambda scene: scene.client.zadd(keys.batch(MODEL), {"blue": 0}),
        7,
        "in the batch set of m differ",
    ),
    "a pool's sum of batch work is wrong": (
        lambda scene: scene.client.hset(keys.books(MODEL), "batch_mwt", 9),
        3,
        "'9' mwt of batch jobs",
    ),
    "a tenant's sum of batch work is wrong": (
        lambda scene: scene.client.hset(keys.tenant("blue"), f"bn|{MODEL}", 9),
        3,
        "counts ('9', '0')",
    ),
    "a job has no record": (lambda scene: scene.client.delete(keys.rq_job(scene.first)), 8, "no record"),
    "a job's record has another type": (
        lambda scene: (scene.client.delete(keys.rq_job(scene.first)), scene.client.set(keys.rq_job(scene.first), "x")),
        8,
        "no record",
    ),
    "rq's status differs": (set_field("first", "status", "finished"), 8, "'finished'"),
    "rq's list differs from the queue": (
        lambda scene: scene.client.lrem(f"rq:queue:{QUEUE}", 0, scene.first),
        8,
        "differs from its order",
    ),
    "rq's started registry lacks a job": (lambda scene: scene.client.delete(f"rq:wip:{QUEUE}"), 8, "started registry"),
    "rq's started registry has another job": (lambda scene: scene.client.zadd(f"rq:wip:{QUEUE}", {"x:y": 1}), 8, "x:y"),
    "an ended job is in two registries": (
        lambda scene: (
            scene.client.zadd(f"rq:failed:{QUEUE}", {scene.ended: 9e9}),
            scene.client.expire(f"rq:failed:{QUEUE}", 60),
        ),
        8,
        "'failed', 'finished'",
    ),
    "a payload without a job is left": (
        lambda scene: scene.client.set("penstock:payload:ghost", 1),
        6,
        "payload:ghost",
    ),
    "a worker's heartbeat is in the future": (
        lambda scene: scene.client.zadd(keys.workers(), {"w9": 9e12}),
        11,
        "w9",
    ),
    "a job was admitted in the future": (
        lambda scene: scene.client.zadd(keys.inflight(), {scene.first: 9e12}),
        11,
        "first",
    ),
    "reaping pauses for longer than a lease": (
        lambda scene: scene.client.hset(keys.config(), "hold_until_ms", 9_000_000_000_000),
        11,
        "no lease is taken back until",
    ),
    "a key has neither ttl nor owner": (lambda scene: scene.client.set("penstock:result:ghost", 1), 9, "result:ghost"),
    "a pool's slots are wrong": (lambda scene: scene.client.hset(keys.books(MODEL), "slots", 9), 12, "'9'"),
    "a worker is counted without a heartbeat": (lambda scene: scene.client.delete(keys.live()), 12, "['w1']"),
}


def test_a_sound_store_has_no_breach(scene):
    assert find_breaches(scene.client, timely=True) == []


@pytest.mark.parametrize("name", list(VIOLATIONS))
def test_every_violation_is_found_under_its_invariant(scene, name):
    violate, invariant, expected = VIOLATIONS[name]
    violate(scene)
    found = scene.breaches()
    assert invariant in found, found
    assert (getattr(scene, expected) if hasattr(scene, expected) else expected) in found[invariant]


@pytest.mark.parametrize("name", ["prompt_tokens", "cost_mwt", "latest_us", "deadline_ms"])
@pytest.mark.parametrize("value", [None, "soon"])
def test_an_invalid_number_in_a_job_record_is_a_breach_only_if_it_is_summed(scene, name, value):
    record = keys.rq_job(scene.first)
    if value is None:
        scene.client.hdel(record, f"penstock_{name}")
    else:
        scene.client.hset(record, f"penstock_{name}", value)
    assert set(scene.breaches()) == ({3} if name in {"prompt_tokens", "cost_mwt"} else set())


@pytest.mark.parametrize(("name", "invariant"), [("waiting", 3), ("running", 3), (keys.service_field(MODEL), 7)])
def test_a_tenant_s_sum_that_is_not_a_number_is_a_breach_and_does_not_fail_the_snapshot(scene, name, invariant):
    scene.client.hset(keys.tenant("blue"), name, "many")
    found = scene.breaches()
    assert set(found) == {invariant}
    assert "many" in found[invariant]
    assert [tenant.name for tenant in scene.store.snapshot().tenants] == ["blue"]


def test_bounds_that_are_not_numbers_do_not_fail_the_audit(scene):
    """`str.isdigit` is true for this character, but `int` does not accept it."""
    scene.client.hset(keys.config(), "max_inflight", "²")
    scene.client.hset(keys.tenant("blue"), "policy_max_waiting", "²")
    assert scene.breaches() == {}


def test_a_service_that_a_score_cannot_represent_exactly_is_not_a_breach(scene):
    """A score is a double, which cannot represent every integer above 2^53."""
    scene.client.hset(keys.tenant("blue"), keys.service_field(MODEL), 2**53 + 1)
    scene.client.zadd(keys.active(MODEL), {"blue": 2**53 + 1})
    assert scene.breaches() == {}


def test_a_key_of_another_type_is_a_breach_and_does_not_fail_the_audit(scene):
    scene.client.delete(keys.order(QUEUE))
    scene.client.set(keys.order(QUEUE), "x")
    assert {1, 8} <= set(scene.breaches())


def test_late_jobs_are_a_breach_only_where_a_running_reaper_is_required(scene):
    advance_clock(scene.store, 63_000)
    assert scene.breaches() == {}
    found = scene.breaches(timely=True)
    assert set(found) == {10}
    assert scene.first in found[10]
    assert scene.running in found[10]


def test_leases_that_are_kept_after_a_gap_without_heartbeats_are_not_late(scene):
    advance_clock(scene.store, 20_000)
    assert 10 in scene.breaches(timely=True)
    scene.store.reap()
    assert scene.breaches(timely=True) == {}


def test_a_requeued_job_beyond_the_bound_is_not_a_breach(scene):
    scene.client.hset(keys.config(), "max_queue_size", "2")
    scene.store.release("w1", [scene.held])
    assert scene.breaches() == {}


def test_every_violation_has_an_explained_invariant_and_breaches_are_ordered_by_it(scene):
    assert {number for _, number, _ in VIOLATIONS.values()} <= set(INVARIANTS)
    assert sorted(INVARIANTS) == list(range(1, 14))
    assert Breach(1, "a") < Breach(1, "b") < Breach(2, "a")

"""Tests that the modelled workers tell the store what real workers tell it."""

import pytest
import redis

from bench.sim.asks import GENERATED_WEIGHT, MODEL, SimJob
from bench.sim.fleet import SimWorker
from bench.sim.machine import Machine
from bench.sim.ours import PenstockSystem
from bench.sim.stress.cases import Case
from bench.sim.stress.runs import OURS, run_figures
from bench.sim.stress.streams import Stream
from shared.accounts.groups import Groups
from shared.accounts.tenants import Tenants
from shared.store import keys


@pytest.mark.parametrize("preemption", ["auto", "off"])
def test_an_answer_that_becomes_longer_than_expected_is_charged_while_it_grows(
    redis_client: redis.Redis, preemption: str
) -> None:
    system, worker = PenstockSystem(redis_client, {"PENSTOCK_PREEMPTION": preemption}), SimWorker("w", Machine())
    system.heartbeat(worker, 0.0)
    job = SimJob(0, "blue", 1.0, prompt=10, answer=900, max_tokens=1_000, deadline_ms=600_000)
    answers = []
    system.offer(job, 1.0, answers.append)
    system.flush_offers()
    assert [answer.taken for answer in answers] == [True]
    (grant,) = system.claim(worker, 2.0)
    worker.take(job, grant.token, 2.0, grant.deadline_at_ms, grant.start_by_ms)

    def charged_mwt() -> int:
        (record,) = redis_client.keys(keys.rq_job("*"))
        return int(redis_client.hget(record, "penstock_charged_mwt"))  # type: ignore[arg-type]  # stored at the claim

    def mwt_of(generated: int) -> int:
        return 1_000 * (job.prompt + GENERATED_WEIGHT * generated)

    expected_mwt, now_ms = charged_mwt(), 2.0
    while mwt_of(worker.generated(worker.sequences[job])) < 2 * expected_mwt:
        now_ms += worker.begin_step()
        worker.end_step(now_ms)
    assert system.heartbeat(worker, now_ms) == []
    assert charged_mwt() == mwt_of(worker.generated(worker.sequences[job]))


def test_tenants_of_a_group_are_in_that_group_in_the_store(redis_client: redis.Redis) -> None:
    system = PenstockSystem(redis_client)
    system.join({"key000": "team", "key001": "team"})
    policies = {name: Tenants(redis_client).get(name) for name in ("key000", "key001")}
    assert [policy.group for policy in policies.values() if policy] == ["team", "team"]
    assert "team" in {entry.name for entry in Groups(redis_client).list()}


def test_a_team_that_sends_from_twenty_names_gets_the_work_of_one_tenant() -> None:
    """The same jobs for ten tenants. One of them sends from twenty names in one group."""
    team = [Stream(f"key{i:02d}", share=0.5 / 20, group="team") for i in range(20)]
    others = [Stream(f"other{i}", share=0.5 / 9) for i in range(9)]
    case = Case("split", "a split team", (*team, *others), ((4.0, 15.0),), {MODEL: (Machine(),)})
    got = run_figures(case, OURS, 1, {MODEL: 25_000.0})
    assert got["groups"]["team"] < 0.2

"""Tests that the modelled workers tell the store what real workers tell it."""

import pytest
import redis

from bench.sim.asks import GENERATED_WEIGHT, SimJob
from bench.sim.fleet import SimWorker
from bench.sim.machine import Machine
from bench.sim.ours import PenstockSystem
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

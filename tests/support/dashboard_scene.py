"""Fills a store through its own scripts with jobs in every state and a busy worker, for tests of the dashboard."""

import json
from dataclasses import dataclass, field
from typing import Any

from rq.results import Result

from shared.jobs.outcomes import Outcome
from shared.jobs.states import JobState
from shared.store import rq_record
from shared.store.store import Store
from tests.support.builders import a_heartbeat, a_job, admitted, advance_clock, an_ending
from workers.rqworker import RqWorker

QUEUE = "blue.m"
#: A text that runs code where a page treats it as markup.
ATTACK = "<img src=x onerror=alert(1)>"
#: The registry in which RQ keeps a job of each state.
REGISTRY_OF = {
    JobState.QUEUED: "queued",
    JobState.RUNNING: "started",
    JobState.SUCCEEDED: "finished",
    JobState.FAILED: "failed",
    JobState.CANCELED: "canceled",
    JobState.EXPIRED: "failed",
}


@dataclass
class Scene:
    """A worker, and one job of tenant blue in each state."""

    worker: str
    jobs: dict[JobState, str] = field(default_factory=dict)


def set_scene(store: Store, *, worker: str = "w1", **request: Any) -> Scene:
    """Fill the store; `request` is added to every job's payload. The worker's current job is the running one."""

    def blue(**overrides: Any) -> str:
        return admitted(store, a_job("blue", payload={"prompt": "hello"} | request, **overrides))

    scene = Scene(worker)
    report = a_heartbeat(worker)
    store.renew(report, [])
    RqWorker(worker, store.client, lambda: True).register_birth()

    expired = blue(deadline_ms=1_000)
    advance_clock(store, 1_001)
    store.reap()
    canceled = blue()
    store.cancel(canceled)
    for _ in range(3):
        blue()
    for state, claimed in zip(
        (JobState.SUCCEEDED, JobState.FAILED, JobState.RUNNING),
        store.claim(worker, "claim-1", report.model, room=3, cells_free=report.cells),
        strict=True,
    ):
        scene.jobs[state] = claimed.id
        if state is JobState.RUNNING:
            store.renew(a_heartbeat(worker, slots_busy=1, facts={"rq_state": "busy"}), [claimed.held])
        else:
            code = "" if state is JobState.SUCCEEDED else "engine_error"
            store.settle(an_ending(claimed.held, Outcome(state.value), code=code), worker)
    scene.jobs |= {JobState.EXPIRED: expired, JobState.CANCELED: canceled, JobState.QUEUED: blue()}
    for state, job_id in scene.jobs.items():
        view = store.touch(job_id, quiet=True)
        assert view is not None
        assert view.state is state
    return scene


def plant(store: Store, scene: Scene, text: str) -> None:
    """Write `text` into every RQ field that holds text of a job, and into the name of a worker and of a queue."""
    client = store.client
    for job_id in scene.jobs.values():
        client.hset(
            f"rq:job:{job_id}", mapping={"description": text, "exc_info": text, "meta": json.dumps({text: text})}
        )
        client.hset(f"rq:job:{job_id}", "result", json.dumps(text))
    for state in (JobState.SUCCEEDED, JobState.FAILED):
        kind = Result.Type.SUCCESSFUL if state is JobState.SUCCEEDED else Result.Type.FAILED
        job = rq_record.fetch(client, scene.jobs[state])
        entry = Result(job.id, kind, client, return_value=text, exc_string=text, serializer=job.serializer)
        client.xadd(f"rq:results:{job.id}", entry.serialize())
    client.hset(f"rq:worker:{text}", mapping={"state": text, "queues": text, "version": text, "python_version": text})
    client.hset(f"rq:worker:{text}", "current_job", scene.jobs[JobState.RUNNING])
    client.expire(f"rq:worker:{text}", 60)
    client.sadd("rq:workers", f"rq:worker:{text}")
    client.sadd("rq:queues", f"rq:queue:{text}")

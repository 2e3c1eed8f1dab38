"""A store with jobs in every state and a worker at work, made through the store's own scripts, for the dashboard."""

import json
from dataclasses import dataclass, field
from typing import Any

from rq.results import Result

from shared.jobs.outcomes import Outcome
from shared.jobs.states import JobState
from shared.store import rq_record
from shared.store.store import Store
from tests.support.builders import a_beat, a_job, admitted, an_ending, shift
from workers.rqworker import RqWorker

QUEUE = "blue.m"
#: Words that do something where they are taken for markup.
ATTACK = "<img src=x onerror=alert(1)>"
#: Where RQ keeps a job of each state.
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
    """One job of tenant blue in each state."""

    worker: str
    jobs: dict[JobState, str] = field(default_factory=dict)


def set_scene(store: Store, *, worker: str = "w1", **request: Any) -> Scene:
    """Make the scene; `request` is spelled into every job's payload. The worker's current job is the running one."""

    def blue(**spelled: Any) -> str:
        return admitted(store, a_job("blue", payload={"prompt": "hello"} | request, **spelled))

    scene = Scene(worker)
    beat = a_beat(worker)
    store.renew(beat, [])
    RqWorker(worker, store.client, lambda: True).register_birth()

    late = blue(deadline_ms=1_000)
    shift(store, 1_001)
    store.reap()
    unwanted = blue()
    store.cancel(unwanted)
    for _ in range(3):
        blue()
    for state, claimed in zip(
        (JobState.SUCCEEDED, JobState.FAILED, JobState.RUNNING),
        store.claim(worker, "claim-1", beat.model, room=3, cells_free=beat.cells),
        strict=True,
    ):
        scene.jobs[state] = claimed.id
        if state is JobState.RUNNING:
            store.renew(a_beat(worker, slots_busy=1, facts={"rq_state": "busy"}), [claimed.held])
        else:
            code = "" if state is JobState.SUCCEEDED else "engine_error"
            store.settle(an_ending(claimed.held, Outcome(state.value), code=code), worker)
    scene.jobs |= {JobState.EXPIRED: late, JobState.CANCELED: unwanted, JobState.QUEUED: blue()}
    for state, job_id in scene.jobs.items():
        view = store.touch(job_id, quiet=True)
        assert view is not None
        assert view.state is state
    return scene


def plant(store: Store, scene: Scene, text: str) -> None:
    """Write `text` by hand wherever RQ keeps words of a job, and into a worker's name."""
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

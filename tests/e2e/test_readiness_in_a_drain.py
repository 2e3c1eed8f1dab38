"""Tests the answers to probes of a door and of a worker while workers drain or die, also for one of two models."""

import json
from pathlib import Path

import httpx

from shared.accounts.routes import Routes
from shared.accounts.workers import Workers
from shared.jobs.route import Route, RouteStep
from tests.support.processes import Process, Stage, wait_for
from tests.support.served import SIM, Served


def told(url: str) -> tuple[int, str | None]:
    """Return the status of an answer, and its `reason` or else its `status`."""
    answer = httpx.get(url, timeout=30)
    return answer.status_code, answer.json().get("reason") or answer.json()["status"]


def address_of(worker: Process) -> str:
    line = wait_for(lambda: worker.log_lines("worker.exporter"), "the worker's address", timeout_s=60)[0]
    return f"http://{json.loads(line)['address']}"


def test_a_drained_worker_is_healthy_but_not_ready_and_the_last_one_takes_the_door_with_it(tmp_path: Path) -> None:
    with Stage(tmp_path, **SIM) as stage:
        one, other = [stage.worker(PENSTOCK_WORKER_LISTEN="127.0.0.1:0") for _ in range(2)]
        names = {worker: stage.view(worker).name for worker in (one, other)}
        workers = Workers(stage.client)
        with Served(stage) as served:
            door = f"{served.url}/health/ready"
            wait_for(lambda: told(door) == (200, "ready"), "the door to be ready", timeout_s=60)
            workers.drain(names[one])
            ready = f"{address_of(one)}/health/ready"
            wait_for(lambda: told(ready) == (503, "draining"), "the worker to drain", timeout_s=60)
            # Kubernetes would kill a worker whose /health fails, and with it the jobs that it finishes.
            assert told(f"{address_of(one)}/health") == (200, "draining")
            assert told(door) == (200, "ready")
            workers.drain(names[other])
            wait_for(lambda: told(door) == (503, "draining"), "the door to have no worker", timeout_s=60)
            assert told(f"{served.url}/health") == (200, "ok")
            assert served.submit().json()["reason"] == "draining"
            workers.resume(names[one])
            wait_for(lambda: told(door) == (200, "ready"), "the door to be ready again", timeout_s=60)
            wait_for(lambda: told(ready) == (200, "serving"), "the worker to claim jobs again", timeout_s=60)
        stage.assert_sound()


def test_a_model_whose_only_worker_drains_or_dies_is_not_ready_and_the_door_stays_ready(tmp_path: Path) -> None:
    with Stage(tmp_path, **SIM) as stage:
        stage.worker(PENSTOCK_MODEL_NAME="north")
        south = stage.worker(PENSTOCK_MODEL_NAME="south,alias")
        name = stage.view(south).name
        workers = Workers(stage.client)
        Routes(stage.client).add(Route("auto", (RouteStep("south"), RouteStep("north"))))
        Routes(stage.client).add(Route("only", (RouteStep("south"),)))
        with Served(stage) as served:
            door = f"{served.url}/health/ready"

            def wait_until_south_is(status: int, reason: str) -> None:
                for model in ("south", "only"):
                    wait_for(lambda model=model: told(f"{door}?model={model}") == (status, reason), model, timeout_s=60)
                assert told(door) == told(f"{door}?model=north") == told(f"{door}?model=auto") == (200, "ready")

            wait_until_south_is(200, "ready")
            assert told(f"{door}?model=alias") == (200, "ready")
            workers.drain(name)
            wait_until_south_is(503, "draining")
            workers.resume(name)
            wait_until_south_is(200, "ready")
            south.kill()
            wait_until_south_is(503, "no_worker")
            unknown = httpx.get(f"{door}?model=west", timeout=30)
            assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
            assert "model='west'" in unknown.json()["error"]["message"]
            with httpx.stream("GET", f"{served.url}/console/live", timeout=60) as live:
                lines = (line for line in live.iter_lines() if ">south<" in line)
                assert "no worker is live" in next(lines)

"""The dashboard of a real app, and every address that it has."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import redis
from flask import Flask
from flask.testing import FlaskClient

from shared.clock import RealClock
from shared.jobs.states import JobState
from shared.settings.settings import load
from shared.store.store import Store
from tests.support.dashboard_scene import QUEUE, Scene
from web.app import create_app

REGISTRIES = ("queued", "scheduled", "deferred", "started", "finished", "failed", "canceled")


def make_app(store: Store, tmp_path: Path, mode: str = "read") -> Flask:
    environ = {"PENSTOCK_STATE_DIR": str(tmp_path), "PENSTOCK_AUTH": "open", "PENSTOCK_DASHBOARD": mode}
    return create_app(load(environ=environ, dotenv=None), store, RealClock())


def paths_of(app: Flask, scene: Scene, *, thorough: bool) -> Iterator[str]:
    """Yield every address of every GET route of the blueprint, with all registries, both orders and all jobs.

    With `thorough`, also yield addresses of empty queues, of short pages and beyond the last page.
    """
    values: dict[str, list[Any]] = {
        "instance_number": [0],
        "queue_name": [QUEUE, "default", "green.never-seen"] if thorough else [QUEUE],
        "registry_name": list(REGISTRIES),
        "per_page": ["1", "8"] if thorough else ["8"],
        "order": ["asc", "dsc"],
        "page": ["1", "2", "99"] if thorough else ["1"],
        "job_id": list(scene.jobs.values()),
        "filename": ["css/main.css", "js/underscore-umd-min.js"],
    }
    for rule in app.url_map.iter_rules():
        if not rule.endpoint.startswith("rq_dashboard.") or rule.endpoint == "rq_dashboard.requeue_all":
            continue
        if "GET" not in (rule.methods or set()):
            continue
        names = sorted(rule.arguments - set(rule.defaults or {}))
        # A route with an argument that `values` lacks fails here, so that no new route stays untested.
        for chosen in product(*(values[name] for name in names)):
            built = rule.build({**dict(zip(names, chosen, strict=True)), **(rule.defaults or {})}, append_unknown=False)
            assert built is not None
            yield built[1]


def pages(client: FlaskClient, scene: Scene, *, thorough: bool = False) -> Iterator[tuple[str, Any]]:
    for path in paths_of(client.application, scene, thorough=thorough):
        # Some addresses of the first page redirect to /rq/ itself.
        yield path, client.get(path, buffered=True, follow_redirects=True)


def data(client: FlaskClient, path: str) -> Any:
    answer = client.get(f"/rq/0/data/{path}.json")
    assert answer.status_code == 200, answer.text
    return answer.get_json()


def listed(client: FlaskClient, registry: str, order: str = "asc", per_page: int = 200, page: int = 1) -> list[str]:
    jobs = data(client, f"jobs/{QUEUE}/{registry}/{per_page}/{order}/{page}")["jobs"]
    return [job["id"] for job in jobs]


def store_dump(client: redis.Redis) -> dict[bytes, Any]:
    """Return every key with its dumped value."""
    return {key: client.dump(key) for key in sorted(client.keys("*"))}


def state_of(store: Store, job_id: str) -> JobState:
    view = store.touch(job_id, quiet=True)
    assert view is not None
    return view.state

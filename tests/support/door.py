"""The door over a real store, asked through Flask's test client, and a worker's part played through the store."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from shared.clock import RealClock
from shared.jobs.job import Held
from shared.settings.settings import Settings
from shared.store.connection import DOOR, open_client
from shared.store.store import Store
from tests.support.builders import MODEL, an_ending, beat, claim_one
from tests.support.processes import wait_for
from web.api import response_models
from web.app import create_app


def a_door(store: Store, settings: Settings, **spelled: Any) -> FlaskClient:
    """A client of a new app on this store; auth is open unless spelled otherwise."""
    return create_app(replace(settings, **({"auth": "open"} | spelled)), store, RealClock()).test_client()


def door_store(url: str) -> Store:
    """The store with the door's own patience."""
    return Store(open_client(url, name="penstock-test-door", timeouts=DOOR))


def submit(
    client: FlaskClient, path: str = "/v1/jobs", *, headers: dict[str, str] | None = None, **body: Any
) -> TestResponse:
    """Submit a small job; `body` fields replace its own."""
    return client.post(path, json={"prompt": "hello", "max_tokens": 20} | body, headers=headers)


def ask_response(client: FlaskClient, **body: Any) -> TestResponse:
    """POST a small request for a response; `body` fields replace its own."""
    return client.post("/v1/responses", json={"input": "hi", "max_output_tokens": 20} | body)


def taken(response: TestResponse) -> dict[str, Any]:
    """The job of a 202, as it must look."""
    assert response.status_code == 202, response.text
    return job_of(response)


def job_of(response: TestResponse) -> dict[str, Any]:
    """The job in an answer, as it must look."""
    assert response.status_code in {200, 202}, response.text
    body: dict[str, Any] = response.get_json()
    response_models.Job.model_validate(body)
    return body


def refused(response: TestResponse, reason: str, status: int = 503) -> dict[str, Any]:
    """The body of a yield with this reason."""
    assert response.status_code == status, response.text
    body: dict[str, Any] = response.get_json()
    response_models.Yield.model_validate(body)
    assert body["reason"] == reason
    assert response.headers["retry-after-ms"] == str(body["retry_hint_ms"])
    assert int(response.headers["Retry-After"]) >= 1
    return body


def fault(response: TestResponse, status: int, code: str, param: str | None = None) -> str:
    """The message of an error object with this status, code and field."""
    assert response.status_code == status, response.text
    body: dict[str, Any] = response.get_json()
    response_models.Error.model_validate(body)
    assert (body["error"]["code"], body["error"]["param"]) == (code, param)
    message: str = body["error"]["message"]
    return message


def serve(store: Store, worker: str = "w1", **spelled: Any) -> None:
    """A live worker that claims nothing by itself."""
    beat(store, worker, **({"model": MODEL, "slots": 4} | spelled))


def run_next(store: Store, worker: str = "w1") -> Held:
    """Claim the next job."""
    return claim_one(store, worker).held


def settle(store: Store, held: Held, worker: str = "w1", **spelled: Any) -> None:
    """End a claimed job."""
    store.settle(an_ending(held, **spelled), worker)


def contradict_oneself(store: Store, held: Held) -> None:
    """Begin an answer, give the job back, and begin another one in the next attempt."""
    store.append([(held, "Hello", 1)])
    store.release("w1", [held])
    beat(store)
    store.append([(run_next(store), "Good day", 1)])


@contextmanager
def worker(store: Store, act: Callable[[Held], None]) -> Iterator[None]:
    """Somebody who claims the next job and does this with it."""

    def work() -> None:
        wait_for(lambda: store.snapshot().waiting, "a job to wait")
        act(run_next(store))

    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join(timeout=20)
    assert not thread.is_alive()

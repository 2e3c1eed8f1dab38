"""Calls the door through Flask's test client over a real store, and acts as a worker through the store."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from shared.clock import RealClock
from shared.jobs.job import ClaimRef
from shared.settings.settings import Settings
from shared.store.connection import DOOR, open_client
from shared.store.store import Store
from tests.support.builders import MODEL, an_ending, claim_one, heartbeat
from tests.support.processes import wait_for
from web.app import create_app
from web.openapi import response_models


def a_door(store: Store, settings: Settings, **overrides: Any) -> FlaskClient:
    """Return a client of a new app on this store; auth is open unless `overrides` say otherwise."""
    return create_app(replace(settings, **({"auth": "open"} | overrides)), store, RealClock()).test_client()


def door_store(url: str) -> Store:
    """Return the store with the timeouts that the door uses."""
    return Store(open_client(url, name="penstock-test-door", timeouts=DOOR))


def submit(
    client: FlaskClient, path: str = "/v1/jobs", *, headers: dict[str, str] | None = None, **body: Any
) -> TestResponse:
    """Submit a small job; the fields in `body` replace its own."""
    return client.post(path, json={"prompt": "hello", "max_tokens": 20} | body, headers=headers)


def post_response(client: FlaskClient, **body: Any) -> TestResponse:
    """POST a small request to /v1/responses; the fields in `body` replace its own."""
    return client.post("/v1/responses", json={"input": "hi", "max_output_tokens": 20} | body)


def admitted_job(response: TestResponse) -> dict[str, Any]:
    """Return the job in a response 202, after a check against its schema."""
    assert response.status_code == 202, response.text
    return job_of(response)


def job_of(response: TestResponse) -> dict[str, Any]:
    """Return the job in a response 200 or 202, after a check against its schema."""
    assert response.status_code in {200, 202}, response.text
    body: dict[str, Any] = response.get_json()
    response_models.Job.model_validate(body)
    return body


def refused(response: TestResponse, reason: str, status: int = 503) -> dict[str, Any]:
    """Return the body of a yield, which must have this reason and valid retry headers."""
    assert response.status_code == status, response.text
    body: dict[str, Any] = response.get_json()
    response_models.Yield.model_validate(body)
    assert body["reason"] == reason
    assert response.headers["retry-after-ms"] == str(body["retry_hint_ms"])
    assert int(response.headers["Retry-After"]) >= 1
    return body


def fault(response: TestResponse, status: int, code: str, param: str | None = None) -> str:
    """Return the message of an error response, which must have this status, code and field."""
    assert response.status_code == status, response.text
    body: dict[str, Any] = response.get_json()
    response_models.Error.model_validate(body)
    assert (body["error"]["code"], body["error"]["param"]) == (code, param)
    message: str = body["error"]["message"]
    return message


def serve(store: Store, worker: str = "w1", **overrides: Any) -> None:
    """Send the heartbeat of a live worker, which claims nothing by itself."""
    heartbeat(store, worker, **({"model": MODEL, "slots": 4} | overrides))


def run_next(store: Store, worker: str = "w1") -> ClaimRef:
    """Claim the next job."""
    return claim_one(store, worker).held


def settle(store: Store, held: ClaimRef, worker: str = "w1", **overrides: Any) -> None:
    """End a claimed job. If its outcome is not given, it succeeds, and max_tokens has cut its answer."""
    reason = {} if "outcome" in overrides else {"finish_reason": "length"}
    store.settle(an_ending(held, **reason | overrides), worker)


@contextmanager
def worker(store: Store, act: Callable[[ClaimRef], None]) -> Iterator[None]:
    """Run a thread that claims the next job and calls `act` with it."""

    def work() -> None:
        wait_for(lambda: store.snapshot().waiting, "a job to wait")
        act(run_next(store))

    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join(timeout=20)
    assert not thread.is_alive()


@contextmanager
def worker_that_restarts(store: Store) -> Iterator[Callable[[TestResponse], TestResponse]]:
    """Run a worker that begins an answer, releases the job, claims it again and begins a different answer.

    The value is a function for the streamed response. The worker waits until the response has shown the first answer:
    whoever reads the events later sees only the second.
    """
    shown = threading.Event()

    def act(held: ClaimRef) -> None:
        store.append([(held, "Hello", 1)])
        assert shown.wait(timeout=20)
        store.release("w1", [held])
        heartbeat(store)
        store.append([(run_next(store), "Good day", 1)])

    def watched(response: TestResponse) -> TestResponse:
        def parts() -> Iterator[bytes]:
            for part in original:
                if b"Hello" in part:
                    shown.set()
                yield part

        original = response.iter_encoded()
        response.response = parts()
        return response

    with worker(store, act):
        yield watched

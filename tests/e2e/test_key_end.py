"""When a key is removed or its tenant disabled, open streams and waiting calls end soon; owned jobs are canceled."""

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from shared.accounts.api_keys import ApiKeys
from shared.accounts.key_record import digest_of
from shared.accounts.tenants import Tenants
from shared.jobs.states import JobState
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import view_of
from tests.support.door import a_door, admitted_job, fault, run_next, serve, submit
from tests.support.processes import wait_for

#: Longer than any of these calls may take, so that a call that does not end is noticed.
WAIT_MS = 20_000


@pytest.fixture
def door(store: Store, settings: Settings) -> FlaskClient:
    serve(store)
    return a_door(store, settings, auth="required")


@pytest.fixture
def key(store: Store) -> dict[str, str]:
    return {"Authorization": f"Bearer {ApiKeys(store.client).create('blue', label='laptop').key}"}


def remove(store: Store) -> None:
    assert ApiKeys(store.client).rm("laptop")


def disable(store: Store) -> None:
    Tenants(store.client).set("blue", TenantPolicy(disabled=True))


ENDS = pytest.mark.parametrize(
    ("end", "status", "code"), [(remove, 401, "invalid_api_key"), (disable, 403, "tenant_disabled")]
)


def soon(store: Store, door: FlaskClient, end: Callable[[Store], None]) -> None:
    """End the key on another thread as soon as a call of the door waits for a job."""
    event_hub = door.application.extensions["penstock"].event_hub

    def wait_and_end() -> None:
        wait_for(lambda: event_hub.followed == 1, "the call to wait")
        end(store)

    threading.Thread(target=wait_and_end, daemon=True).start()


def events_of(response: TestResponse) -> Iterator[tuple[str, Any]]:
    """Yield the name and the data of each event of a stream, until the stream ends."""
    for frame in b"".join(response.response).decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in frame.splitlines() if ": " in line and line[0] != ":")
        if lines.get("data", "[DONE]") != "[DONE]":
            yield lines.get("event", ""), json.loads(lines["data"])


@ENDS
def test_a_waiting_call_ends_with_an_error_and_its_job_lives_on(
    door: FlaskClient, store: Store, key: dict[str, str], end, status: int, code: str
) -> None:
    job = admitted_job(submit(door, headers=key))
    soon(store, door, end)
    fault(door.get(f"/v1/jobs/{job['id']}?wait_ms={WAIT_MS}", headers=key), status, code)
    assert view_of(store, job["id"]).state is JobState.QUEUED


@ENDS
def test_a_stream_of_events_ends_with_an_error_event(
    door: FlaskClient, store: Store, key: dict[str, str], end, status: int, code: str
) -> None:
    job = admitted_job(submit(door, headers=key))
    soon(store, door, end)
    events = list(events_of(door.get(job["urls"]["events"], headers=key)))
    assert [name for name, _ in events] == ["queued", "error"]
    assert events[-1][1]["error"]["code"] == code
    assert view_of(store, job["id"]).state is JobState.QUEUED


def test_a_stream_that_was_opened_with_a_ticket_ends_with_the_tenant_and_not_with_a_key(
    door: FlaskClient, store: Store, key: dict[str, str]
) -> None:
    job = admitted_job(submit(door, headers=key, ticket=True))
    remove(store)
    soon(store, door, disable)
    events = list(events_of(door.get(job["urls"]["events_signed"])))
    assert events[-1][1]["error"]["code"] == "tenant_disabled"


def test_a_tenant_whose_record_is_spoiled_keeps_no_key_of_another_alive(
    door: FlaskClient, store: Store, key: dict[str, str]
) -> None:
    watch = door.application.extensions["penstock"].key_watch
    digest = digest_of(key["Authorization"].removeprefix("Bearer "))
    uses = [watch.watch(*whose) for whose in [("", "spoiled"), (digest, "blue")] * 20]
    store.client.hset(keys.tenant("spoiled"), mapping={"policy": 1, "policy_weight_milli": "abc"})
    remove(store)
    wait_for(lambda: all(use.ended for use in uses if use.tenant == "blue"), "every use of the removed key to end")
    assert not any(use.ended for use in uses if use.tenant == "spoiled")
    store.client.delete(keys.tenant("spoiled"))


CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/responses", {"input": "hi"})])
def test_a_call_that_owns_its_job_is_answered_with_401_and_the_job_is_canceled(
    door: FlaskClient, store: Store, key: dict[str, str], path: str, body: dict[str, Any]
) -> None:
    soon(store, door, remove)
    fault(door.post(path, json=body | {"deadline_ms": WAIT_MS}, headers=key), 401, "invalid_api_key")
    wait_for(lambda: store.snapshot().inflight == 0, "the job to be canceled")


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/responses", {"input": "hi"})])
def test_a_stream_that_owns_its_job_ends_with_an_error_and_the_job_is_canceled(
    door: FlaskClient, store: Store, key: dict[str, str], path: str, body: dict[str, Any]
) -> None:
    def begin_and_remove() -> None:
        wait_for(lambda: store.snapshot().waiting, "the job to wait")
        store.append([(run_next(store), "Hello", 1)])
        remove(store)

    threading.Thread(target=begin_and_remove, daemon=True).start()
    response = door.post(path, json=body | {"stream": True, "deadline_ms": WAIT_MS}, headers=key)
    assert response.status_code == 200
    last = list(events_of(response))[-1][1]
    assert last["error"]["code"] == "invalid_api_key"
    (job,) = store.jobs("blue").jobs
    assert view_of(store, job.id).cancel_requested

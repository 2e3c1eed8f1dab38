"""`supersede_key`: a newer job takes the place of the tenant's older one, on every route."""

import threading

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.builders import reconfigure, view_of
from tests.support.door import a_door, admitted_job, fault, job_of, refused, run_next, serve, settle, submit
from tests.support.processes import wait_for

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    serve(store)
    return a_door(store, settings)


def test_the_older_job_ends_canceled_with_the_code_superseded(client: FlaskClient) -> None:
    older, newer = (admitted_job(submit(client, supersede_key="tab-1")) for _ in range(2))
    ended = job_of(client.get(older["urls"]["self"]))
    assert (ended["status"], ended["error"]["code"]) == ("canceled", "superseded")
    assert "supersede_key" in ended["error"]["message"]
    assert job_of(client.get(newer["urls"]["self"]))["status"] == "queued"


def test_the_same_supersede_key_of_another_tenant_supersedes_nothing(client: FlaskClient) -> None:
    blue = admitted_job(submit(client, supersede_key="tab-1", headers={"X-Tenant": "blue"}))
    admitted_job(submit(client, supersede_key="tab-1", headers={"X-Tenant": "green"}))
    job = job_of(client.get(blue["urls"]["self"], headers={"X-Tenant": "blue"}))
    assert job["status"] == "queued"


def test_a_newer_job_that_is_refused_does_not_supersede_the_older_one(
    client: FlaskClient, store: Store, settings: Settings
) -> None:
    reconfigure(store, settings, max_inflight=1)
    older = admitted_job(submit(client, supersede_key="tab-1"))
    held = run_next(store)
    refused(submit(client, supersede_key="tab-1"), "inflight_full")
    settle(store, held)
    assert view_of(store, older["id"]).state == "succeeded"


def test_a_repeated_chat_ends_the_earlier_call(client: FlaskClient, store: Store) -> None:
    answers: list[TestResponse] = []

    def post_chat() -> None:
        answers.append(client.post("/v1/chat/completions", json={"messages": HI, "supersede_key": "tab-1"}))

    calls = [threading.Thread(target=post_chat) for _ in range(2)]
    calls[0].start()
    wait_for(lambda: store.snapshot().waiting, "the first call's job to wait")
    calls[1].start()
    calls[0].join(timeout=20)
    fault(answers[0], 409, "job_canceled")
    assert answers[0].headers["x-should-retry"] == "false"
    settle(store, run_next(store), text="well")
    calls[1].join(timeout=20)
    assert answers[1].get_json()["choices"][0]["message"]["content"] == "well"


@pytest.mark.parametrize("key", ["", "x" * 257, 7])
def test_an_invalid_supersede_key_is_422(client: FlaskClient, key: object) -> None:
    fault(submit(client, supersede_key=key), 422, "invalid_value", "supersede_key")

"""A call that submits a job and waits for it, while the store loses the job: the client may submit it again."""

import threading
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.builders import MODEL
from tests.support.door import a_door, admitted_job, fault, job_of, refused, run_next, serve, settle, submit
from tests.support.processes import wait_for

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20, "model": MODEL}
SUBMITS = {
    "jobs": ("/v1/jobs?wait_ms=20000", {"prompt": "hello", "max_tokens": 20, "model": MODEL}),
    "chat": ("/v1/chat/completions", CHAT),
    "chat_stream": ("/v1/chat/completions", CHAT | {"stream": True}),
    "response": ("/v1/responses", {"input": "hi", "max_output_tokens": 20, "model": MODEL}),
    "response_stream": ("/v1/responses", {"input": "hi", "max_output_tokens": 20, "model": MODEL, "stream": True}),
    "embeddings": ("/v1/embeddings", {"input": "hello", "model": "vectors"}),
}


@pytest.fixture(autouse=True)
def _read_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls that wait read their job more often, so that the tests take less time."""
    monkeypatch.setattr("web.jobs.tenant_jobs.TOUCH_S", 0.1)
    monkeypatch.setattr("web.jobs.tenant_jobs.REFRESH_INTERVAL_S", 0.1)


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    _serve(store)
    return a_door(store, settings)


def _serve(store: Store) -> None:
    serve(store)
    serve(store, "w2", model="vectors", facts={"pooling": "mean"})


def lose_everything(store: Store, settings: Settings) -> None:
    """Do what the failover to a replica without the newest jobs does; the workers report again at once."""
    store.client.flushall()
    store.configure(settings)
    _serve(store)


def answer_after_loss(client: FlaskClient, store: Store, settings: Settings, ask: Any) -> TestResponse:
    """Send the request, lose the store's data while the call waits for the one queued job, and return the answer."""
    answers: list[TestResponse] = []
    call = threading.Thread(target=lambda: answers.append(ask()))
    call.start()
    context = client.application.extensions["penstock"]
    wait_for(lambda: context.event_hub.followed == 1 and store.snapshot().waiting == 1, "the call to wait")
    lose_everything(store, settings)
    call.join(timeout=20)
    assert not call.is_alive()
    return answers[0]


@pytest.mark.parametrize("name", SUBMITS)
def test_a_submit_that_waits_for_a_job_that_is_lost_may_be_sent_again(
    client: FlaskClient, store: Store, settings: Settings, name: str
) -> None:
    path, body = SUBMITS[name]
    answer = answer_after_loss(client, store, settings, lambda: client.post(path, json=body))
    # The answer has the headers of a refusal, so clients send the same request again.
    assert refused(answer, "store_unavailable")["retry_hint_ms"] > 0
    assert "x-should-retry" not in answer.headers


def test_a_read_that_waits_for_a_job_that_is_lost_is_404(client: FlaskClient, store: Store, settings: Settings) -> None:
    job_id = admitted_job(submit(client, model=MODEL))["id"]
    path = f"/v1/jobs/{job_id}?wait_ms=20000"
    answer = answer_after_loss(client, store, settings, lambda: client.get(path))
    assert job_id in fault(answer, 404, "job_not_found")


def test_the_same_request_gets_a_new_job_after_the_loss(client: FlaskClient, store: Store, settings: Settings) -> None:
    headers = {"Idempotency-Key": "k1"}
    path = "/v1/jobs?wait_ms=20000"
    refused(
        answer_after_loss(client, store, settings, lambda: submit(client, path, model=MODEL, headers=headers)),
        "store_unavailable",
    )
    job = admitted_job(submit(client, model=MODEL, headers=headers))
    settle(store, run_next(store))
    assert job_of(submit(client, path, model=MODEL, headers=headers))["id"] == job["id"]

"""A refusal says not to retry if the request's deadline passes before the retry hint does, on every route."""

from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from tests.support.door import a_door, serve


@pytest.fixture
def draining(store: Store, settings: Settings) -> FlaskClient:
    """A door that refuses every job with a retry hint of 5 to 6 s."""
    serve(store)
    store.client.hset(keys.config(), "draining", "1")
    return a_door(store, settings)


def send_refused(
    client: FlaskClient, route: str = "/v1/jobs", headers: dict[str, str] | None = None, **body: Any
) -> TestResponse:
    prompt_fields = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in route else {"prompt": "hi"}
    response = client.post(route, json=prompt_fields | {"max_tokens": 4} | body, headers=headers or {})
    assert response.status_code == 503
    assert 5_000 <= response.get_json()["retry_hint_ms"] == int(response.headers["retry-after-ms"]) <= 6_000
    return response


CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        ("/v1/jobs", {"deadline_ms": 4_000}),
        ("/v1/jobs", {"start_within_ms": 4_000}),
        ("/v1/jobs", {"headers": {"X-Deadline-Ms": "4000"}}),
        (CHAT, {"deadline_ms": 4_000}),
        (CHAT, {"headers": {"x-stainless-read-timeout": "5"}}),
        (CHAT, {"stream": True, "start_within_ms": 4_000}),
    ],
)
def test_a_refusal_says_not_to_retry_if_the_deadline_is_before_the_retry_hint(draining, route, fields) -> None:
    response = send_refused(draining, route, **fields)
    assert response.headers["x-should-retry"] == "false"
    assert "would miss the deadline" in response.get_json()["error"]["message"]


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        ("/v1/jobs", {}),
        ("/v1/jobs", {"deadline_ms": 30_000}),
        ("/v1/jobs", {"headers": {"x-stainless-read-timeout": "5"}}),
        (CHAT, {"headers": {"x-stainless-read-timeout": "600"}}),
        (CHAT, {"stream": True}),
    ],
)
def test_a_refusal_allows_a_retry_if_the_deadline_is_later_or_not_given(draining, route, fields) -> None:
    assert "x-should-retry" not in send_refused(draining, route, **fields).headers

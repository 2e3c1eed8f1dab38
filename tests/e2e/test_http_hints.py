"""Who is told not to retry: whose own patience ends before the hint, on every route; over a real store."""

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
    """A door whose every refusal says to come back in 5 to 6 s."""
    serve(store)
    store.client.hset(keys.config(), "draining", "1")
    return a_door(store, settings)


def ask(
    client: FlaskClient, route: str = "/v1/jobs", headers: dict[str, str] | None = None, **body: Any
) -> TestResponse:
    asked = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in route else {"prompt": "hi"}
    response = client.post(route, json=asked | {"max_tokens": 4} | body, headers=headers or {})
    assert response.status_code == 503
    assert 5_000 <= response.get_json()["retry_hint_ms"] == int(response.headers["retry-after-ms"]) <= 6_000
    return response


CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("route", "told"),
    [
        ("/v1/jobs", {"deadline_ms": 4_000}),
        ("/v1/jobs", {"start_within_ms": 4_000}),
        ("/v1/jobs", {"headers": {"X-Deadline-Ms": "4000"}}),
        (CHAT, {"deadline_ms": 4_000}),
        (CHAT, {"headers": {"x-stainless-read-timeout": "5"}}),
        (CHAT, {"stream": True, "start_within_ms": 4_000}),
    ],
)
def test_who_said_that_it_waits_less_long_than_the_hint_is_told_not_to_retry(draining, route, told) -> None:
    response = ask(draining, route, **told)
    assert response.headers["x-should-retry"] == "false"
    assert "in vain" in response.get_json()["error"]["message"]


@pytest.mark.parametrize(
    ("route", "told"),
    [
        ("/v1/jobs", {}),
        ("/v1/jobs", {"deadline_ms": 30_000}),
        ("/v1/jobs", {"headers": {"x-stainless-read-timeout": "5"}}),
        (CHAT, {"headers": {"x-stainless-read-timeout": "600"}}),
        (CHAT, {"stream": True}),
    ],
)
def test_who_waits_longer_or_said_nothing_may_retry(draining, route, told) -> None:
    assert "x-should-retry" not in ask(draining, route, **told).headers

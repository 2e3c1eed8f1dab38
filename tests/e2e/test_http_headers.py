"""Headers and fields that are not numbers where numbers are due: the client is told, with the status of the route."""

import pytest
from flask.testing import FlaskClient

from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.door import a_door, admitted_job, fault, serve, submit

#: A small request to each route that has OpenAI's form.
OPENAI = {
    "chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "completions": {"prompt": "hi"},
    "responses": {"input": "hi"},
}


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    serve(store)
    return a_door(store, settings)


@pytest.mark.parametrize("wait", ["soon", "", "-1", "1.5", "99999999"])
def test_a_wait_that_is_no_number_of_seconds_is_told(client: FlaskClient, wait: str) -> None:
    headers = {"Prefer": f"respond-async, wait={wait}"}
    assert f"wait={wait!r}" in fault(submit(client, headers=headers), 422, "invalid_value", "Prefer")
    location = admitted_job(submit(client))["urls"]["self"]
    assert f"wait={wait!r}" in fault(client.get(location, headers=headers), 422, "invalid_value", "Prefer")


def test_a_preference_of_another_kind_is_ignored(client: FlaskClient) -> None:
    response = submit(client, headers={"Prefer": "handling=strict, waiting"})
    admitted_job(response)
    assert "Preference-Applied" not in response.headers


@pytest.mark.parametrize("attempt", ["many", "-1", "1.5", "", "1000"])
def test_an_attempt_that_is_no_number_is_told(client: FlaskClient, attempt: str) -> None:
    headers = {"X-Attempt": attempt}
    assert repr(attempt) in fault(submit(client, headers=headers), 422, "invalid_value", "X-Attempt")
    for path, body in OPENAI.items():
        fault(client.post(f"/v1/{path}", json=body, headers=headers), 400, "invalid_value", "X-Attempt")


def test_a_retry_count_of_openais_package_that_is_no_number_counts_as_none(client: FlaskClient) -> None:
    admitted_job(submit(client, headers={"x-stainless-retry-count": "many"}))


def test_an_invalid_value_is_400_on_openais_routes_and_422_on_our_own(client: FlaskClient) -> None:
    for headers in ({"X-Tenant": "a b"}, {"X-Deadline-Ms": "soon"}):
        name = next(iter(headers))
        fault(submit(client, headers=headers), 422, "invalid_value", name)
        for path, body in OPENAI.items():
            fault(client.post(f"/v1/{path}", json=body, headers=headers), 400, "invalid_value", name)


def test_an_answer_cannot_have_a_longer_minimum_than_it_may_have_tokens(client: FlaskClient) -> None:
    assert "max_tokens=20" in fault(submit(client, min_tokens=21), 422, "invalid_value", "min_tokens")
    admitted_job(submit(client, min_tokens=20))
    for path, body in OPENAI.items():
        most = "max_output_tokens" if path == "responses" else "max_tokens"
        fields = body | {most: 5, "min_tokens": 6}
        fault(client.post(f"/v1/{path}", json=fields), 400, "invalid_value", "min_tokens")


def test_the_error_for_a_prompt_that_is_too_long_begins_as_other_programs_expect(
    store: Store, settings: Settings
) -> None:
    serve(store, facts={"n_ctx": 64})
    client = a_door(store, settings)
    phrase = "This model's maximum context length is 64 tokens"
    for path, body in OPENAI.items():
        name = next(iter(body))
        long = "a" * 20_000
        field = [{"role": "user", "content": long}] if name == "messages" else long
        message = fault(
            client.post(f"/v1/{path}", json={name: field}),
            400,
            "context_length_exceeded",
            name if name != "input" else "messages",
        )
        assert message.startswith(phrase)

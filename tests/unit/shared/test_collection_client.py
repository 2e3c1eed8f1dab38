"""Tests how the client of `penstock collections` waits while a document cannot be loaded."""

from collections.abc import Callable
from typing import Any

import pytest

from shared.cli.collection_client import CollectionClient
from shared.cli.door_client import DoorError
from shared.clock import ManualClock
from tests.support.scripted_door import Answer, close_connection, json_answer, scripted_door

LOADED = {"object": "collection.document", "id": "a", "chunks": 1, "unchanged": False}


def refusal(code: str) -> dict[str, Any]:
    return {"error": {"message": "not now", "code": code}}


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def client(slept: list[float]) -> Callable[[str], CollectionClient]:
    """Makes clients whose clock advances only while they sleep."""
    clock = ManualClock()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance(seconds)

    return lambda url: CollectionClient(url, clock=clock, sleep=sleep)


def load(client: CollectionClient, wait_s: float = 60.0, **overrides: Any) -> Any:
    fields: dict[str, Any] = {"file_name": "a b.md", "content_type": "text/markdown", "metadata": {"year": 2026}}
    told: list[str] = []
    arguments = fields | overrides | {"wait_s": wait_s, "on_wait": lambda error, _: told.append(str(error))}
    return client.load("hand/book", "docs/a b.md", b"text", **arguments), told


def test_a_file_is_sent_with_its_type_its_name_and_its_metadata(client: Any) -> None:
    with scripted_door(json_answer(200, LOADED)) as door:
        assert load(client(door.url)) == (LOADED, [])
        ((method, path, headers, body),) = door.requests
    assert (method, body, headers["Content-Type"]) == ("PUT", b"text", "text/markdown")
    query = "filename=a+b.md&metadata=%7B%22year%22%3A+2026%7D"
    assert path == f"/v1/collections/hand%2Fbook/documents/docs/a%20b.md?{query}"


@pytest.mark.parametrize(
    ("status", "code"), [(503, "tenant_queue_full"), (429, "loads_full"), (504, "deadline_exceeded")]
)
def test_a_load_waits_as_long_as_a_passing_refusal_asks(
    client: Any, slept: list[float], status: int, code: str
) -> None:
    answers = [json_answer(status, refusal(code), Retry_After="7"), close_connection, json_answer(200, LOADED)]
    with scripted_door(*answers) as door:
        found, told = load(client(door.url))
    assert found == LOADED
    assert (slept[0], len(slept), "not now" in told[0]) == (7, 2, True)


@pytest.mark.parametrize(
    ("answer", "wait_s"),
    [
        (json_answer(429, refusal("collections_full"), Retry_After="1"), 60),
        (json_answer(429, refusal("budget_exhausted"), Retry_After="60"), 600),
        (json_answer(400, refusal("document_unreadable")), 60),
        (json_answer(503, refusal("backlog_full"), Retry_After="30"), 20),
    ],
)
def test_a_load_ends_at_an_error_that_does_not_pass_in_time(
    client: Any, slept: list[float], answer: Answer, wait_s: float
) -> None:
    with scripted_door(answer) as door, pytest.raises(DoorError, match="not now"):
        load(client(door.url), wait_s)
    assert slept == []


def test_the_pages_of_documents_are_read_one_after_the_other(client: Any) -> None:
    first = {"object": "list", "data": [{"id": "a"}], "last_id": "a", "has_more": True}
    second = {"object": "list", "data": [{"id": "b"}], "last_id": "b", "has_more": False}
    with scripted_door(json_answer(200, first), json_answer(200, second)) as door:
        assert [each["id"] for each in client(door.url).documents("handbook")] == ["a", "b"]
        assert door.requests[1][1] == "/v1/collections/handbook/documents?limit=100&after=a"

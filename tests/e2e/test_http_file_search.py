"""The tool `file_search` at the door: its item, results, annotations and events, and what is left out or refused."""

import json
from dataclasses import replace
from typing import Any

import pytest
from flask.testing import FlaskClient

from shared.retrieval.errors import DatabaseAway, OutOfTime
from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.builders import claim_one
from tests.support.door import a_door, fault, post_response, serve, settle, worker
from tests.support.passages import FakeDatabase, a_collection, a_passage
from web.openapi import compatible_models
from web.runtime.current import EXTENSION_NAME

#: The ids of the vector stores of both collections, and the tool that searches the first one.
STORE, OTHER = "vs_id-of-handbook", "vs_id-of-news"
SEARCH: dict[str, Any] = {"type": "file_search", "vector_store_ids": [STORE], "max_num_results": 2}
RESULTS = ["file_search_call.results"]
ANSWER = "Thirty days [2]."
LOOK = {"type": "function", "name": "look", "parameters": {}}


@pytest.fixture
def database() -> FakeDatabase:
    return FakeDatabase(a_collection(tenant="default"), a_collection("news", "default"), a_collection("secrets", "red"))


@pytest.fixture
def client(store: Store, settings: Settings, database: FakeDatabase) -> FlaskClient:
    """A door with a database, whose budget any machine keeps."""
    serve(store, facts={"calls_tools": "true"})
    client = a_door(store, settings, retrieval_budget_ms=10_000)
    client.application.extensions[EXTENSION_NAME].process.database = database
    return client


def asked(client: FlaskClient, at: Store, /, text: str = ANSWER, **body: Any) -> dict[str, Any]:
    """Return the response to a request that is answered with this text."""
    with worker(at, lambda held: settle(at, held, text=text, finish_reason="stop")):
        answer = post_response(client, **{"tools": [SEARCH], "deadline_ms": 600_000} | body)
    assert answer.status_code == 200, answer.text
    compatible_models.Response.model_validate(answer.get_json())
    found: dict[str, Any] = answer.get_json()
    return found


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


def without_queue(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events without what changes while a job waits."""
    return [
        event | {"response": event["response"] | {"queue": None}} if "response" in event else event for event in found
    ]


def citation(number: int, index: int) -> dict[str, Any]:
    return {"type": "file_citation", "file_id": f"doc{number}.md", "filename": f"doc{number}.md", "index": index}


def test_a_response_has_the_search_before_the_message_that_cites_its_files(client, store):
    found = asked(client, store, include=RESULTS, input="How many  days?")
    search, message = found["output"]
    assert search == {
        "id": "fs_" + found["id"].removeprefix("resp_"),
        "type": "file_search_call",
        "status": "completed",
        "queries": ["How many days?"],
        "results": [
            {"file_id": f"doc{i}.md", "filename": f"doc{i}.md", "score": score, "attributes": {}, "text": f"text {i}"}
            for i, score in ((0, 1.0), (1, 0.5))
        ],
    }
    (part,) = message["content"]
    assert (part["text"], part["annotations"]) == (ANSWER, [citation(1, len("Thirty days [2]"))])
    assert [each["document"] for each in found["citations"]] == ["doc0.md", "doc1.md"]
    assert found["tools"] == [SEARCH]
    assert client.get(f"/v1/responses/{found['id']}").get_json()["output"] == found["output"]


def test_results_have_to_be_asked_for_when_the_response_is_created(client, store):
    found = asked(client, store)
    assert found["output"][0]["results"] is None
    path = f"/v1/responses/{found['id']}"
    fault(client.get(f"{path}?include[]={RESULTS[0]}"), 400, "unsupported_parameter", "include")
    plain = asked(client, store, tools=[])
    assert client.get(f"/v1/responses/{plain['id']}?include[]={RESULTS[0]}").status_code == 200


def test_a_response_that_is_not_stored_has_its_results_and_a_deleted_one_keeps_none(client, store):
    found = asked(client, store, include=RESULTS, store=False)
    assert len(found["output"][0]["results"]) == 2
    job = client.get(f"/v1/jobs/{found['id'].removeprefix('resp_')}").text
    assert "text 0" not in job
    kept = asked(client, store, include=RESULTS, input="a secret question")
    client.delete(f"/v1/responses/{kept['id']}")
    record = store.client.hgetall(f"rq:job:{kept['id'].removeprefix('resp_')}")
    assert b"secret question" not in b"".join(record.values())


def test_a_stream_has_openais_events_in_their_order_and_can_be_resumed_after_each(client, store):
    with worker(store, lambda held: settle(store, held, text=ANSWER, finish_reason="stop")):
        text = post_response(client, tools=[SEARCH], include=RESULTS, stream=True, deadline_ms=600_000).text
    seen = events(text)
    assert [event["type"].removeprefix("response.") for event in seen] == [
        "created",
        "queued",
        "in_progress",
        "output_item.added",
        "file_search_call.in_progress",
        "file_search_call.searching",
        "file_search_call.completed",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.annotation.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    numbers = [event["sequence_number"] for event in seen]
    assert numbers == sorted(set(numbers))
    annotation = next(event for event in seen if event["type"].endswith("annotation.added"))
    assert annotation["annotation"] == citation(1, 15)
    assert (annotation["output_index"], annotation["content_index"], annotation["annotation_index"]) == (1, 0, 0)
    response = seen[-1]["response"]
    done = [event["item"] for event in seen if event["type"] == "response.output_item.done"]
    assert done == response["output"]
    assert len(done[0]["results"]) == 2
    path = f"/v1/responses/{response['id']}?stream=true"
    for i, number in enumerate(numbers):
        rest = events(client.get(f"{path}&starting_after={number}").text)
        assert without_queue(rest) == without_queue(seen[i + 1 :])


def test_an_answer_without_a_number_cites_all_files_of_its_prompt_at_its_end(client, store):
    with worker(store, lambda held: settle(store, held, text="Thirty.", finish_reason="stop")):
        text = post_response(client, tools=[SEARCH], stream=True, deadline_ms=600_000).text
    added = [event["annotation"] for event in events(text) if event["type"].endswith("annotation.added")]
    assert added == [citation(0, 7), citation(1, 7)]


def test_several_stores_are_searched_and_joined(client, store, database):
    both = SEARCH | {"vector_store_ids": [STORE, OTHER], "max_num_results": 3}
    found = asked(client, store, tools=[both])
    assert [each["document"] for each in found["citations"]] == ["doc0.md", "doc1.md", "doc2.md"]
    assert [query.k for query in database.queries] == [3, 3]
    few = SEARCH | {"ranking_options": {"score_threshold": 0.6}}
    assert len(asked(client, store, tools=[few])["citations"]) == 1


def test_an_unknown_store_is_named(client):
    for unknown in ("vs_none", "vs_id-of-secrets"):
        tool = SEARCH | {"vector_store_ids": [STORE, unknown]}
        message = fault(
            post_response(client, tools=[LOOK, tool]), 404, "vector_store_not_found", "tools[1].vector_store_ids[1]"
        )
        assert unknown in message
    fault(
        post_response(client, tools=[SEARCH | {"max_num_results": 99}]),
        400,
        "invalid_value",
        "tools[0].max_num_results",
    )
    wrong = [{"role": "assistant", "content": "hi"}]
    fault(post_response(client, tools=[SEARCH], input=wrong), 400, "invalid_value", "input")


def test_a_search_that_does_not_end_is_failed_and_an_error_only_if_it_was_chosen(client, store, database):
    database.faults = {"search": OutOfTime(started=True)}
    found = asked(client, store, include=RESULTS)
    assert (found["output"][0]["status"], found["output"][0]["results"]) == ("failed", [])
    assert found["degraded"] == [{"what": "retrieval", "from": "search", "to": "none", "why": "budget"}]
    assert found["output"][1]["content"][0]["annotations"] == []
    both = SEARCH | {"vector_store_ids": [STORE, OTHER]}
    changes = asked(client, store, tools=[both])["degraded"]
    assert [change["what"] for change in changes] == [f"retrieval of {STORE}", f"retrieval of {OTHER}"]
    chosen = {"tools": [SEARCH], "tool_choice": {"type": "file_search"}, "input": "another"}
    fault(post_response(client, **chosen), 504, "retrieval_timeout", "tools[0]")
    database.faults = {"collection": DatabaseAway("refused")}
    fault(post_response(client, **chosen), 503, "retrieval_unavailable", "tools[0]")


def test_functions_are_called_as_ever_and_a_choice_may_exclude_the_search(client, store, database):
    found = post_response(client, tools=[SEARCH, LOOK], background=True)
    payload = claim_one(store, cells_free=10**6).payload
    assert [tool["function"]["name"] for tool in payload["tools"]] == ["look"]
    assert "[1] (doc0.md)\ntext 0" in payload["messages"][0]["content"]
    assert found.get_json()["output"] == []
    database.queries.clear()
    found = asked(client, store, tool_choice="none")
    assert [item["type"] for item in found["output"]] == ["message"]
    assert "citations" not in found
    assert database.queries == []


def test_conversations_and_references_continue_after_a_search(client, store):
    first = asked(client, store, input="How many days?")
    again = {"input": "And then?", "previous_response_id": first["id"], "tools": [SEARCH]}
    post_response(client, background=True, **again)
    contents = [message["content"] for message in claim_one(store, cells_free=10**6).payload["messages"]]
    assert contents[:2] == ["How many days?", ANSWER]
    assert contents[2].endswith("And then?")
    items = [{"role": "user", "content": "How many days?"}, *first["output"]]
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    for earlier in (items, [items[0], *references]):
        post_response(client, input=[*earlier, {"role": "user", "content": "And then?"}], background=True)
        messages = claim_one(store, cells_free=10**6).payload["messages"]
        assert [message["content"] for message in messages] == ["How many days?", ANSWER, "And then?"]


def test_a_background_response_has_its_results_when_it_has_ended(client, store):
    body = {"tools": [SEARCH], "include": RESULTS, "background": True, "deadline_ms": 600_000}
    created = post_response(client, **body).get_json()
    assert created["output"] == []
    settle(store, claim_one(store, cells_free=10**6).held, text=ANSWER, finish_reason="stop")
    ended = client.get(f"/v1/responses/{created['id']}").get_json()
    assert len(ended["output"][0]["results"]) == 2
    assert [event["type"] for event in events(client.get(f"/v1/responses/{created['id']}?stream=true").text)][4:6] == [
        "response.file_search_call.in_progress",
        "response.file_search_call.searching",
    ]


def test_a_cached_search_has_the_attributes_of_the_files(client, store, database):
    metadata = {"team": "blue", "tags": ("a", "b")}
    database.passages = (replace(a_passage(0), metadata=metadata, filename="leave.md"),)
    for _ in range(2):
        (result,) = asked(client, store, include=RESULTS)["output"][0]["results"]
        assert (result["filename"], result["attributes"]) == ("leave.md", {"team": "blue", "tags": "a, b"})
    assert len(database.queries) == 1


def test_a_door_without_a_database_leaves_the_search_out_as_before(client, store):
    client.application.extensions[EXTENSION_NAME].process.database = None
    with worker(store, lambda held: settle(store, held)):
        answer = post_response(client, tools=[{"type": "file_search"}], include=RESULTS)
    assert answer.headers["x-penstock-ignored"] == "tools.file_search, include"
    assert [item["type"] for item in answer.get_json()["output"]] == ["message"]
    fault(
        post_response(client, tools=[SEARCH], tool_choice={"type": "file_search"}),
        400,
        "unsupported_parameter",
        "tool_choice.type",
    )

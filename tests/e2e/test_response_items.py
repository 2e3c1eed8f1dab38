"""The items of responses: those of an input can be listed, and a later request may refer to all that were sent."""

from typing import Any

import pytest
from flask.testing import FlaskClient

from shared.accounts.routes import Pools
from shared.answer_parts import ARGUMENTS, CALL, END, REASONING
from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.builders import claim_one
from tests.support.door import a_door, fault, post_response, run_next, serve, settle
from web.openapi import compatible_models

PATH = "/v1/responses"
TOOLS: list[Any] = [
    {"type": "function", "name": "look"},
    {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]},
]
#: An answer that reasons, speaks, calls two tools, and speaks again, as it is stored.
PARTS = f"{REASONING}hm{END}I look.{CALL}look{ARGUMENTS}{{}}{END}{CALL}spawn{ARGUMENTS}{{}}{END}{REASONING}so{END}"
HI = {"role": "user", "content": "hi"}


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    serve(store, facts={"calls_tools": "true"})
    return a_door(store, settings)


def answered(client: FlaskClient, store: Store, text: str = PARTS, **fields: Any) -> dict[str, Any]:
    """Return a response that a worker has answered with this text."""
    begun = post_response(client, background=True, **{"tools": TOOLS} | fields)
    assert begun.status_code == 200, begun.text
    settle(store, run_next(store), text=text, finish_reason="stop")
    body: dict[str, Any] = client.get(f"{PATH}/{begun.get_json()['id']}").get_json()
    return body


def messages_for(client: FlaskClient, store: Store, items: list[Any]) -> Any:
    """Return the messages that the engine gets for these items."""
    begun = post_response(client, background=True, input=items, tools=TOOLS)
    assert begun.status_code == 200, begun.text
    return claim_one(store).payload["messages"]


def reference(item_id: str) -> dict[str, Any]:
    return {"type": "item_reference", "id": item_id}


def test_a_reference_means_the_item_that_it_names(client: FlaskClient, store: Store) -> None:
    output = answered(client, store)["output"]
    assert [item["type"] for item in output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
        "reasoning",
    ]
    calls = [item for item in output if item["type"] == "function_call"]
    assert [(call["name"], call.get("namespace")) for call in calls] == [("look", None), ("spawn", "agents")]
    results = [{"type": "function_call_output", "call_id": call["call_id"], "output": "ok"} for call in calls]
    whole = messages_for(client, store, [HI, *output, *results, HI])
    assert [message["role"] for message in whole] == ["user", "assistant", "tool", "tool", "user"]
    assert whole[1]["reasoning_content"] == "hm"
    named = [reference(item["id"]) for item in output]
    assert messages_for(client, store, [HI, *named, *results, HI]) == whole
    bare = [{"id": item["id"]} for item in output]
    assert messages_for(client, store, [HI, *bare, *results, HI]) == whole


@pytest.mark.parametrize("text", ["", "plain", f"a{REASONING}b{END}c", f"{CALL}look{ARGUMENTS}"])
def test_every_item_of_an_answer_can_be_sent_back_whole_or_by_its_id(
    client: FlaskClient, store: Store, text: str
) -> None:
    output = answered(client, store, text)["output"]
    whole = messages_for(client, store, [HI, *output, HI])
    assert messages_for(client, store, [HI, *(reference(item["id"]) for item in output), HI]) == whole


def test_the_input_of_a_response_is_listed_page_by_page(client: FlaskClient, store: Store) -> None:
    first = answered(client, store, input=[HI], instructions="be kind")
    results = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
        for call in first["output"]
        if call["type"] == "function_call"
    ]
    second = answered(client, store, "done", input=results, previous_response_id=first["id"], instructions="be brief")
    path = f"{PATH}/{second['id']}/input_items"
    body = client.get(f"{path}?order=asc").get_json()
    compatible_models.InputItemList.model_validate(body)
    items = body["data"]
    assert [item["type"] for item in items] == [
        "message",
        "reasoning",
        "message",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
    ]
    assert [item.get("namespace") for item in items[3:5]] == [None, "agents"]
    assert items[0]["content"] == [{"type": "input_text", "text": "hi"}]
    assert items[2]["content"][0]["text"] == "I look."
    assert client.get(path).get_json()["data"] == items[::-1]
    page = client.get(f"{path}?order=asc&limit=2&after={items[2]['id']}").get_json()
    assert (page["data"], page["has_more"], page["last_id"]) == (items[3:5], True, items[4]["id"])
    assert client.get(f"{path}?limit=7").get_json()["has_more"] is False
    again = [reference(item["id"]) for item in items]
    assert messages_for(client, store, [*again, HI]) == messages_for(client, store, [*items, HI])


def test_what_has_no_input_to_list_is_404_and_a_wrong_page_is_400(client: FlaskClient, store: Store) -> None:
    body = answered(client, store)
    path = f"{PATH}/{body['id']}/input_items"
    for query, param in (("after=msg_1", "after"), ("limit=0", "limit"), ("order=up", "order")):
        fault(client.get(f"{path}?{query}"), 400, "invalid_value", param)
    other = client.get(path, headers={"X-Tenant": "red"})
    fault(other, 404, "job_not_found")
    fault(client.get(f"{PATH}/resp_none/input_items"), 404, "job_not_found")
    assert client.delete(f"{PATH}/{body['id']}").status_code == 200
    fault(client.get(path), 404, "job_not_found")


@pytest.mark.parametrize("item_id", ["msg_none", "msg_", "none", 3, None, "résumé\n", "rs_x_in3", "msg_" + "x" * 500])
def test_a_reference_to_nothing_is_refused_by_its_place(client: FlaskClient, item_id: Any) -> None:
    answer = post_response(client, input=[HI, {"type": "item_reference", "id": item_id}])
    fault(answer, 400, "previous_response_not_found", "input[1].id")


def test_items_of_other_tenants_and_of_responses_that_are_gone_cannot_be_named(
    client: FlaskClient, store: Store
) -> None:
    body = answered(client, store)
    named = {"input": [reference(body["output"][1]["id"])], "max_output_tokens": 20}
    other = client.post(PATH, json=named, headers={"X-Tenant": "red"})
    fault(other, 400, "previous_response_not_found", "input[0].id")
    missing = reference(body["output"][1]["id"] + "_7")
    fault(post_response(client, input=[missing]), 400, "previous_response_not_found", "input[0].id")
    assert client.delete(f"{PATH}/{body['id']}").status_code == 200
    fault(client.post(PATH, json=named), 400, "previous_response_not_found", "input[0].id")


def test_what_repeats_an_item_of_a_private_response_is_private(client: FlaskClient, store: Store) -> None:
    Pools(store.client).change("m", {"local": True})
    secret = answered(client, store, private=True)
    named = reference(secret["output"][1]["id"])
    begun = post_response(client, background=True, input=[HI, named, HI]).get_json()
    view = store.touch(begun["id"].removeprefix("resp_"))
    assert view is not None
    assert view.private


def test_references_make_no_longer_input_than_a_body_may_have(store: Store, settings: Settings) -> None:
    serve(store, facts={"calls_tools": "true"})
    client = a_door(store, settings, max_body_bytes=4_096)
    body = answered(client, store, "x" * 600, tools=[])
    named = reference(body["output"][0]["id"])
    assert post_response(client, background=True, input=[named] * 4 + [HI]).status_code == 200
    fault(post_response(client, input=[named] * 20 + [HI]), 400, "invalid_value", "input[5].id")


def test_the_tokens_of_an_input_are_estimated_with_the_conversation_before_it(
    client: FlaskClient, store: Store
) -> None:
    serve(store, facts={"calls_tools": "true", "counts_words": "true"})
    first = answered(client, store, "three more words", input="one two", tools=[])
    counts = []
    for more in ({}, {"previous_response_id": first["id"]}, {"instructions": "be brief", "user": "me"}):
        answer = client.post(f"{PATH}/input_tokens", json={"input": "one two"} | more)
        assert answer.status_code == 200, answer.text
        compatible_models.InputTokens.model_validate(answer.get_json())
        counts.append(answer.get_json()["input_tokens"])
    assert counts == [2, 7, 4]
    assert answer.headers["x-penstock-ignored"] == "user"
    named = [HI, reference(first["output"][0]["id"]), HI]
    assert client.post(f"{PATH}/input_tokens", json={"input": named}).get_json()["input_tokens"] == 5
    fault(client.post(f"{PATH}/input_tokens", json={"input": []}), 400, "invalid_value", "input")
    assert not store.snapshot().waiting

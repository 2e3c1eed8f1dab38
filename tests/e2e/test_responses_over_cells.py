"""Conversations of responses whose tenant was moved to another cell, or whose cell is away."""

from typing import Any

import pytest

from shared.cells.ids import cell_of_id
from tests.support.builders import claim_one
from tests.support.cells_door import CellsDoor, cells_door
from tests.support.door import fault, refused, run_next, serve, settle
from tests.support.ports import free_port

pytestmark = pytest.mark.ways("direct", reason="the door is in the process of the test")

AS_RED = {"X-Tenant": "red"}


def respond(door: CellsDoor, value: Any, **fields: Any) -> Any:
    body = {"input": value, "max_output_tokens": 20, "background": True} | fields
    return door.client.post("/v1/responses", json=body, headers=AS_RED)


def test_a_response_is_continued_and_its_items_are_referred_to_after_its_tenant_was_moved(door_over_cells):
    door = door_over_cells
    response_id = respond(door, "hi").get_json()["id"]
    settle(door.stores["b"], run_next(door.stores["b"]), text="hello to you")
    door.place("red", "c")
    earlier = door.client.get(f"/v1/responses/{response_id}", headers=AS_RED).get_json()
    (item,) = earlier["output"]
    for value, fields, said in (
        ("go on", {"previous_response_id": response_id}, ["hi", "hello to you", "go on"]),
        ([{"type": "item_reference", "id": item["id"]}, {"role": "user", "content": "go on"}], {}, None),
    ):
        begun = respond(door, value, **fields)
        assert begun.status_code == 200, begun.text
        assert cell_of_id(begun.get_json()["id"].removeprefix("resp_")) == "c"
        job = claim_one(door.stores["c"])
        assert [one["content"] for one in job.payload["messages"]] == (said or ["hello to you", "go on"])
        settle(door.stores["c"], job.held)


def test_a_conversation_whose_cell_is_away_is_refused_and_not_taken_for_unknown(store, settings, store_url):
    with cells_door(store, settings, store_url, urls={"b": f"redis://127.0.0.1:{free_port()}"}) as door:
        serve(door.stores["c"])
        door.place("red", "c")
        refused(respond(door, "go on", previous_response_id=f"resp_b-{'x' * 22}"), "store_unavailable")
        unknown = respond(door, "go on", previous_response_id=f"resp_c-{'x' * 22}")
        fault(unknown, 400, "previous_response_not_found", "previous_response_id")
        assert respond(door, "hi").status_code == 200

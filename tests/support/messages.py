"""Reads answers of Anthropic's routes: events, blocks and errors, whose form it checks."""

import json
from typing import Any

from werkzeug.test import TestResponse

from web.openapi import compatible_models


def events_of(response: TestResponse) -> list[dict[str, Any]]:
    """Return the events of a stream. Each event's name must be its type."""
    events = []
    for block in response.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")


def blocks_of(events: list[dict[str, Any]]) -> list[list[Any]]:
    """Return the type and the text of each block of a stream. They must open, grow and close one after another."""
    blocks: list[list[Any]] = []
    open_index = None
    for event in events:
        if event["type"] == "content_block_start":
            assert (open_index, event["index"]) == (None, len(blocks))
            open_index = event["index"]
            blocks.append([event["content_block"]["type"], ""])
        elif event["type"] == "content_block_delta":
            assert event["index"] == open_index
            grown = {name: text for name, text in event["delta"].items() if name != "type"}
            (blocks[-1][1],) = [blocks[-1][1] + text for text in grown.values()]
        elif event["type"] == "content_block_stop":
            assert event["index"] == open_index
            open_index = None
    assert open_index is None
    return blocks


def failed(response: TestResponse, status: int, kind: str, code: str) -> dict[str, Any]:
    """Return the body of an error in Anthropic's shape."""
    assert response.status_code == status, response.text
    body: dict[str, Any] = response.get_json()
    model = compatible_models.MessageYield if "status" in body else compatible_models.MessageError
    model.model_validate(body)
    assert (body["error"]["type"], body["error"]["code"]) == (kind, code)
    assert response.headers["request-id"] == response.headers["x-request-id"] == body["request_id"]
    return body

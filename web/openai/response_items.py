"""The items of a response's input, and the ids of items, which a later request may refer to; pure functions."""

import re
from typing import Any

from web.openai.response_functions import Namespaces
from web.openai.responses_answers import CALL_PREFIX, MESSAGE_PREFIX, REASONING_PREFIX, reasoning_part_json

#: The prefix of the id of a call's result.
RESULT_PREFIX = "fco_"
#: An id: the kind of the item, the id of its job, and its number. Items of the input have `in` before their number.
_ITEM_ID = re.compile(r"(?:fc|fco|msg|rs)_(?P<job>[A-Za-z0-9_-]{1,128}?)(?P<number>_(?P<input>in)?[0-9]{1,6})?\Z")


def referenced_id(item: Any) -> Any:
    """Return the id in an item of a request that is a reference to another item, otherwise None."""
    if not isinstance(item, dict):
        return None
    kind = item.get("type")
    is_reference = kind == "item_reference" or (kind is None and "id" in item and item.keys() <= {"id", "type"})
    if not is_reference:
        return None
    return "" if item.get("id") is None else item["id"]


def jobs_of(item_id: str) -> list[tuple[str, bool]]:
    """Return the ids of the jobs that may have an item with this id, and whether it is an item of the job's input."""
    found = _ITEM_ID.match(item_id)
    if found is None:
        return []
    if found["number"] is None:
        return [(found["job"], False)]
    # The id of a job may end as that of an item does.
    return [(found["job"], found["input"] is not None), (found["job"] + found["number"], False)]


def input_items(job_id: str, messages: list[dict[str, Any]], namespaces: Namespaces) -> list[dict[str, Any]]:
    """Return the items of a response's input for the messages of its chat."""
    items: list[dict[str, Any]] = []
    for message in messages:
        items += _items(message, namespaces)
    return [item | {"id": f"{item['id']}{job_id}_in{number}"} for number, item in enumerate(items)]


def _items(message: dict[str, Any], namespaces: Namespaces) -> list[dict[str, Any]]:
    """Return the items of one message, with the prefixes of their ids."""
    role, content = message["role"], message.get("content") or ""
    if role == "tool":
        result = {"type": "function_call_output", "call_id": message.get("tool_call_id", ""), "output": content}
        return [{"id": RESULT_PREFIX} | result | {"status": "completed"}]
    items: list[dict[str, Any]] = []
    thought, calls = message.get("reasoning_content"), message.get("tool_calls") or []
    if thought:
        reasoning = {"type": "reasoning", "summary": [], "content": [reasoning_part_json(thought)]}
        items.append({"id": REASONING_PREFIX} | reasoning | {"status": "completed"})
    if content or not calls:
        items.append({"id": MESSAGE_PREFIX, "type": "message", "role": role} | _said(role, content))
    return items + [{"id": CALL_PREFIX} | _call(call, namespaces) for call in calls]


def _said(role: str, content: str) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "input_text", "text": content}
    if role == "assistant":
        part = {"type": "output_text", "text": content, "annotations": [], "logprobs": []}
    return {"status": "completed", "content": [part]}


def _call(call: dict[str, Any], namespaces: Namespaces) -> dict[str, Any]:
    function = call["function"]
    namespace, name = namespaces.get(function["name"], (None, function["name"]))
    item = {"type": "function_call", "call_id": call.get("id", ""), "name": name, "arguments": function["arguments"]}
    return item | {"status": "completed"} | ({} if namespace is None else {"namespace": namespace})

"""openai for Python: files, batches over chat completions and over responses, and responses in turns."""

import json
import time
from io import BytesIO
from typing import Any

from check import CITIES, MODEL, check, main
from openai import OpenAI

client = OpenAI(max_retries=0)
TERMINAL = {"completed", "failed", "expired", "cancelled"}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": list(CITIES)}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "name": "weather", "description": "The weather.", "parameters": SCHEMA, "strict": True}


def batch_of(endpoint: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Run two lines as a batch, and return the bodies of their answers in the order of their ids."""
    lines = [
        {"custom_id": str(i), "method": "POST", "url": endpoint, "body": body | {"model": MODEL}} for i in range(2)
    ]
    content = BytesIO("\n".join(map(json.dumps, lines)).encode())
    file = client.files.create(file=("lines.jsonl", content), purpose="batch")
    batch: Any = client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")
    deadline_s = time.monotonic() + 120
    while batch.status not in TERMINAL and time.monotonic() < deadline_s:
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 2), batch
    answers = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    return [one["response"]["body"] for one in sorted(answers, key=lambda one: one["custom_id"])]


@check("files: upload, list, content, delete")
def _files() -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": MODEL, "messages": []}}
    content = json.dumps(line).encode()
    file = client.files.create(file=("lines.jsonl", BytesIO(content)), purpose="batch")
    assert file.id in {one.id for one in client.files.list()}
    assert client.files.content(file.id).content == content
    assert client.files.delete(file.id).deleted


@check("a batch of chat completions")
def _batch() -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20}
    assert all(answer["choices"][0]["message"]["content"] for answer in batch_of("/v1/chat/completions", body))


@check("a batch of responses")
def _batch_of_responses() -> None:
    answers = batch_of("/v1/responses", {"input": "hello", "max_output_tokens": 20})
    assert all(answer["output"][0]["content"][0]["text"] for answer in answers)


@check("responses: retrieve, input items, count of input tokens")
def _responses() -> None:
    answer = client.responses.create(model=MODEL, input="hello", max_output_tokens=20)
    assert client.responses.retrieve(answer.id).output_text == answer.output_text
    (item,) = client.responses.input_items.list(answer.id)
    assert item.content[0].text == "hello"
    counted = client.responses.input_tokens.count(model=MODEL, input="hello").input_tokens
    assert abs(counted - answer.usage.input_tokens) <= max(1, answer.usage.input_tokens / 10)


@check("responses: the whole output comes back as input")
def _turns() -> None:
    asked = client.responses.create(model=MODEL, input="the weather?", tools=[TOOL], tool_choice="required")
    calls = [item for item in asked.output if item.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
    turns: Any = [{"role": "user", "content": "the weather?"}, *asked.output, *results]
    told = client.responses.create(model=MODEL, input=turns, tools=[TOOL], tool_choice="none", max_output_tokens=20)
    assert told.output
    reference: Any = [{"type": "item_reference", "id": told.output[0].id}, {"role": "user", "content": "and then?"}]
    assert client.responses.create(model=MODEL, input=reference, max_output_tokens=20).output


@check("responses: a stream of a background response")
def _background() -> None:
    stream = client.responses.create(model=MODEL, input="hello", max_output_tokens=20, background=True, stream=True)
    assert [event.type for event in stream][-1] in {"response.completed", "response.incomplete"}


main()

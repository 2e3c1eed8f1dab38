"""Batches with the stock `openai` package: lines, uploads, and waiting for the end of a batch."""

import json
from typing import Any

from openai import OpenAI
from openai.types import Batch

from tests.support.processes import wait_for

#: A batch whose process was killed is due again when a lease has ended.
BOUNDS = {"PENSTOCK_MAX_FILE_BYTES": "1000000", "PENSTOCK_BATCH_LINES_AT_ONCE": "16", "PENSTOCK_LEASE_MS": "2000"}


def a_line(number: int, **fields: Any) -> dict[str, Any]:
    body = {"model": "sim", "messages": [{"role": "user", "content": f"story {number}"}], "max_tokens": 3}
    return {
        "custom_id": f"line-{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
    } | fields


def upload(client: OpenAI, lines: list[Any], name: str = "lines.jsonl") -> str:
    content = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    return client.files.create(file=(name, content.encode()), purpose="batch").id


def begin(client: OpenAI, lines: list[Any], *, window: str = "24h", **fields: Any) -> Batch:
    given = {"endpoint": "/v1/chat/completions", "completion_window": window} | fields
    return client.batches.create(input_file_id=upload(client, lines), **given)  # type: ignore[arg-type]


def ended(client: OpenAI, batch: Batch) -> Batch:
    found = [batch]

    def has_ended() -> bool:
        found[0] = client.batches.retrieve(batch.id)
        return found[0].status in {"completed", "failed", "expired", "cancelled"}

    wait_for(has_ended, "the end of the batch", timeout_s=60)
    return found[0]


def results(client: OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]

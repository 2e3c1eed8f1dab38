"""A small batch that a test feeds turn by turn: one line's first job expires, and no model serves another line."""

import json

from shared.jobs.outcomes import Outcome
from shared.store import keys
from shared.store.batches.batches import Batches, StoredBatch
from shared.store.store import Store
from tests.support.builders import MODEL, advance_clock, an_ending, claim, heartbeat
from web.batches.line_offers import job_id
from web.runtime.context import DoorContext

LINES = 4
#: The line whose first job expires, and the line that no model serves.
EXPIRING, UNSERVED = 2, 3
#: The completion window of the batch, in ms.
WINDOW_MS = 1_200_000


def a_batch(context: DoorContext) -> None:
    files, batches = context.files, Batches(context.store.client)
    lines = []
    for number in range(1, LINES + 1):
        body = {"model": MODEL if number != UNSERVED else "nobody", "prompt": f"line {number}", "max_tokens": 5}
        if number == EXPIRING:
            body["deadline_ms"] = 2_000
        line = {"custom_id": f"c{number}", "method": "POST", "url": "/v1/completions", "body": body}
        lines.append(json.dumps(line).encode() + b"\n")
    files.add_part("file-1", "blue", 0, b"".join(lines))
    files.close("file-1", "blue", purpose="batch", filename="lines", ttl_s=86_400)
    fields = {"endpoint": "/v1/completions"}
    created = batches.create("batch-1", "blue", "file-1", fields, window_ms=WINDOW_MS, ttl_s=3_600)
    assert isinstance(created, StoredBatch)


def the_batch(store: Store) -> StoredBatch:
    found = Batches(store.client).find("batch-1", "blue")
    assert found is not None
    return found


def run_jobs(store: Store, *, is_first: bool) -> None:
    """Let a worker run what is queued; the first job of the line EXPIRING waits until it expires."""
    heartbeat(store)
    for job in claim(store, room=2):
        if is_first and f"line {EXPIRING}" in json.dumps(job.payload):
            store.release("w1", [job.held])
            advance_clock(store, 2_500)
            heartbeat(store)
            store.reap()
        else:
            store.settle(an_ending(job.held, Outcome.SUCCEEDED), "w1")


def answered(context: DoorContext) -> tuple[list[str], list[str]]:
    """Return the custom_ids in the output file and in the file of errors."""
    names = []
    for kind in ("output_file", "error_file"):
        file = context.files.find(the_batch(context.store).fields[kind], "blue")
        assert file is not None
        content = b"".join(context.files.read(file)).splitlines()
        names.append([json.loads(line)["custom_id"] for line in content])
    return names[0], names[1]


def other_jobs(store: Store) -> set[str]:
    """Return the jobs of the tenant that are not the first of a line, nor later ones of the line EXPIRING."""
    jobs = {raw.decode() for raw in store.client.zrange(keys.jobs("blue"), 0, -1)}
    first = {job_id("batch-1", number, 0) for number in range(1, LINES + 1)}
    return jobs - first - {job_id("batch-1", EXPIRING, attempt) for attempt in range(1, 30)}

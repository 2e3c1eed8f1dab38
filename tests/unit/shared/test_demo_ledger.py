"""The ledger and the clients of `penstock demo`: each answer of a door is counted as what it is."""

import json
import time

import pytest

from shared.cli.demo.clients import Clients
from shared.cli.demo.ledger import Ledger, Team, percentile
from tests.support.processes import wait_for
from tests.support.scripted_door import Answer, close_connection, event_stream, json_answer, scripted_door

RED, BLUE = Team("red", weight=1, clients=1, pause_s=0, flooders=3), Team("blue", weight=2, clients=2, pause_s=0)
REFUSAL = {"status": "yield", "reason": "tenant_queue_full", "retry_hint_ms": 600_000, "error": {"message": "full"}}


def chunk(tokens: int, finish_reason: str | None = None) -> str:
    event = {"choices": [{"finish_reason": finish_reason}], "usage": {"completion_tokens": tokens}}
    return f"data: {json.dumps(event)}\n\n"


def stop(clients: Clients) -> None:
    clients.stop()
    wait_for(lambda: not clients.are_reading(), "the clients to end")


def test_a_token_counts_when_it_arrives_and_a_request_when_it_was_sent() -> None:
    ledger = Ledger([RED, BLUE])
    early = ledger.sent("red")
    ledger.enter("flood")
    ledger.received("red", 10)
    ledger.received("blue", 30)
    ledger.ended(early, whole=True)
    ledger.enter("end")
    ledger.received("red", 500)
    before, flood = ledger.summary("before_flood"), ledger.summary("flood")
    assert [(row["sent"], row["answered"], row["share"]) for row in before] == [(1, 1, None), (0, 0, None)]
    assert [(row["clients"], row["share"]) for row in flood] == [(4, 0.25), (2, 0.75)]


@pytest.mark.parametrize(("percent", "expected"), [(50, 2), (95, 4), (1, 1), (100, 4)])
def test_a_percentile_is_one_of_the_values(percent: int, expected: float) -> None:
    assert percentile([4, 1, 3, 2], percent) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (event_stream(chunk(1) + chunk(5, "stop") + "data: [DONE]\n\n"), {"admitted": 1, "answered": 1}),
        (event_stream(chunk(1) + chunk(5, "length")), {"admitted": 1, "answered": 1}),
        (event_stream(chunk(2, "deadline")), {"admitted": 1, "ended_early": 1}),
        (event_stream('data: {"error": {"message": "lost"}}\n\n'), {"admitted": 1, "ended_early": 1}),
        (json_answer(503, REFUSAL), {"refused": 1}),
        (json_answer(504, {"error": {"message": "too late"}}), {"admitted": 1, "ended_early": 1}),
        (json_answer(500, {"error": {"message": "broken"}}), {"faults": 1}),
        (json_answer(503, b"<html>a proxy</html>"), {"faults": 1}),
        (close_connection, {"faults": 1}),
    ],
)
def test_each_answer_is_counted_as_what_it_is(answer: Answer, expected: dict[str, int]) -> None:
    ledger = Ledger([Team("red", weight=1, clients=1, pause_s=600)])
    names = ("admitted", "answered", "ended_early", "refused", "faults")

    def counted() -> dict[str, int]:
        (row,) = ledger.summary("before_flood")
        return {name: row[name] for name in names if row[name]}

    with scripted_door(answer) as door:
        clients = Clients(door.url, "m", {"red": "psk_a"}, ledger, seed=1)
        clients.start()
        wait_for(lambda: counted() == expected, f"{expected}, not {counted()}")
        assert door.requests[0][2]["Authorization"] == "Bearer psk_a"
        stop(clients)
    (row,) = ledger.summary("before_flood")
    assert row["sent"] == 1, "the client waits as long as it was told"
    assert row["answer_tokens"] in {0, 2, 5}
    assert (row["retry_hint_ms"] is None) == ("refused" not in expected)


def test_a_client_that_was_told_when_to_come_back_comes_back_then() -> None:
    ledger = Ledger([Team("red", weight=1, clients=1, pause_s=600)])
    whole = event_stream(chunk(5, "stop"))
    with scripted_door(json_answer(503, REFUSAL | {"retry_hint_ms": 300}), whole) as door:
        began_s = time.monotonic()
        clients = Clients(door.url, "m", {"red": "psk_a"}, ledger, seed=1)
        clients.start()
        wait_for(lambda: ledger.summary("before_flood")[0]["answered"], "an answer")
        assert time.monotonic() - began_s >= 0.3
        stop(clients)
    (row,) = ledger.summary("before_flood")
    assert (row["sent"], row["refused"], row["retry_hint_ms"]) == (2, 1, {"min": 300, "max": 300})


def test_a_request_that_the_end_of_the_demo_cuts_is_no_fault() -> None:
    ledger = Ledger([Team("red", weight=1, clients=1, pause_s=600)])
    clients = Clients("http://127.0.0.1:9", "m", {"red": "psk_a"}, ledger, seed=1)
    clients.stop()
    clients.start()
    stop(clients)
    assert ledger.faults() == 0

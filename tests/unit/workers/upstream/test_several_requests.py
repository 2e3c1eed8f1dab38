"""Tests of requests for several answers: what is sent to a server, and how its answers and faults end the job."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from shared.candidates import Candidate, read_candidates
from tests.support.processes import wait_for
from tests.support.upstream_scene import CHAT, UpstreamScene, claim
from tests.support.upstream_server import UpstreamServer
from workers.engine.events import Ended, JobRejected, Text
from workers.upstream.concurrency import places_in_use
from workers.upstream.faults import fault_in_answer


@pytest.fixture
def server() -> Iterator[UpstreamServer]:
    with UpstreamServer() as server:
        yield server


@pytest.fixture
def scene(server: UpstreamServer) -> Iterator[UpstreamScene]:
    scene = UpstreamScene(
        server.url, PENSTOCK_UPSTREAM_CONCURRENCY="8", PENSTOCK_MAX_BATCH_SIZE="8", PENSTOCK_UPSTREAM_GAP_MS="1000"
    )
    yield scene
    scene.close()


def piece(index: Any, content: str = "", **choice: Any) -> dict[str, Any]:
    return {"index": index, "delta": {"content": content}} | choice


def several(n: int, **more: Any) -> dict[str, Any]:
    return CHAT | {"n": n, "forward": {}, "max_tokens": 5} | more


@pytest.mark.parametrize("behaviour", ["answer", "one by one", "whole"])
def test_one_request_asks_for_all_answers_and_each_is_told_apart(
    scene: UpstreamScene, server: UpstreamServer, behaviour: str
) -> None:
    server.will(behaviour)
    ended = scene.end(several(3), max_tokens=15)
    assert (server.bodies[0]["n"], server.bodies[0]["max_tokens"], len(server.bodies)) == (3, 5, 1)
    reason = "stop" if behaviour == "whole" else "length"
    expected = [Candidate(at, f"{name}0 {name}1 {name}2 ", reason) for at, name in enumerate("abc")]
    assert (ended.outcome, read_candidates(ended.text, 3)) == ("succeeded", expected)
    assert (ended.usage.prompt_tokens, ended.usage.completion_tokens) == (21, 9)
    events = [event for event in scene.events if isinstance(event, Text)]
    counts = [event.completion_tokens for event in events]
    assert counts == sorted(set(counts))
    assert scene.engine.stats.completion_tokens == 9


PROMPTS = ["once", [5, 6]]


@pytest.mark.parametrize(
    ("payload", "sent"),
    [
        ({"prompts": PROMPTS, "n": 2, "forward": {"n": 9, "best_of": 9}}, {"prompt": PROMPTS}),
        ({"prompts": PROMPTS, "n": 4, "forward": {"top_k": 3}}, {"prompt": PROMPTS, "n": 2, "top_k": 3}),
        ({"prompts": ["once"], "n": 2, "forward": {}}, {"prompt": "once", "n": 2}),
        ({"prompts": [[5, 6]], "forward": {}}, {"prompt": [5, 6]}),
        ({"prompts": PROMPTS, "n": 2, "asked": ["seed"], "seed": 3}, {"prompt": PROMPTS, "seed": 3}),
        ({"prompt": "once", "n": 2, "asked": []}, {"prompt": "once", "n": 2}),
        (CHAT | {"n": 2, "asked": []}, CHAT | {"n": 2}),
        (CHAT | {"n": 2, "prompts": [], "forward": {}}, CHAT | {"n": 2}),
    ],
    ids=str,
)
def test_each_prompt_gets_its_number_of_answers(
    scene: UpstreamScene, server: UpstreamServer, payload: dict[str, Any], sent: dict[str, Any]
) -> None:
    n = payload.get("n", 1)
    ended = scene.end(payload, max_tokens=8 * n)
    assert server.bodies == [sent | {"model": "m", "stream": True, "stream_options": {"include_usage": True}}]
    assert (ended.outcome, ended.usage.completion_tokens) == ("succeeded", 3 * n)
    assert [bool(each.text) for each in read_candidates(ended.text, n)] == [True] * n


def test_answers_that_the_prompts_cannot_share_are_rejected(scene: UpstreamScene, server: UpstreamServer) -> None:
    with pytest.raises(JobRejected) as rejected:
        scene.submit({"prompts": ["a", "b"], "n": 3, "forward": {}})
    assert (rejected.value.code, rejected.value.param, server.bodies) == ("invalid_value", "n", [])


@pytest.mark.parametrize(
    ("payload", "param"),
    [
        (several(3), "n"),
        ({"prompts": ["a", "b", "c"], "n": 3, "forward": {}}, "prompt"),
        ({"prompts": ["a", "b", "c"], "n": 6, "forward": {}}, "n"),
    ],
)
def test_an_upstream_that_gives_fewer_answers_fails_the_job_at_once_and_is_paid_for_them(
    scene: UpstreamScene, server: UpstreamServer, payload: dict[str, Any], param: str
) -> None:
    server.will("one answer")
    ended = scene.end(payload, max_tokens=60)
    assert (ended.outcome, ended.code) == ("failed", "upstream_rejected")
    assert ended.message == f"the upstream gave 1 of the {payload['n']} answers that were asked for"
    assert (ended.extra["param"], len(server.bodies)) == (param, 1)
    assert (ended.usage.read_tokens, ended.usage.completion_tokens) == (21, 3)


def test_an_upstream_that_refuses_the_field_fails_the_job_with_its_message(
    scene: UpstreamScene, server: UpstreamServer
) -> None:
    server.refuses = {"n": "n must be 1 with stream"}
    ended = scene.end(several(3), max_tokens=15)
    assert (ended.outcome, ended.code, ended.message) == ("failed", "upstream_rejected", "n must be 1 with stream")
    assert (ended.usage.read_tokens, len(server.bodies)) == (0, 1)


@pytest.mark.parametrize(("behaviour", "outcome"), [("cut", "attempt_failed"), ("crash", "returned")])
def test_answers_that_break_off_are_asked_for_again_from_their_beginning(
    scene: UpstreamScene, server: UpstreamServer, behaviour: str, outcome: str
) -> None:
    server.will(behaviour)
    ended = scene.end(several(3), max_tokens=15)
    assert ended.outcome == outcome
    # An answer that has begun is charged, with the tokens that arrived.
    assert ended.usage.completion_tokens == (1 if behaviour == "cut" else 0)
    assert scene.end(several(3), "2", max_tokens=15).outcome == "succeeded"


@pytest.mark.parametrize(
    ("code", "outcome", "code_of_job"), [(502, "attempt_failed", ""), (400, "failed", "upstream_rejected")]
)
def test_an_error_in_any_choice_is_one_of_the_whole_answer(
    scene: UpstreamScene, server: UpstreamServer, code: int, outcome: str, code_of_job: str
) -> None:
    failed = {"index": 1, "delta": {}, "error": {"code": code, "message": "too odd"}}
    server.will([piece(0, "a", finish_reason="stop"), failed])
    ended = scene.end(several(2), max_tokens=10)
    assert (ended.outcome, ended.code) == (outcome, code_of_job)
    together: Any = {"choices": [piece(0, "a"), failed]}
    assert "too odd" in str(getattr(fault_in_answer(together, key="", has_begun=True), "message", ""))


def test_a_job_with_several_answers_takes_a_place_for_each(scene: UpstreamScene, server: UpstreamServer) -> None:
    server.will("hang", "hang")
    scene.wait_until_open()
    scene.submit(several(3), max_tokens=15)
    assert (scene.engine.free_capacity().slots, scene.engine.slots) == (5, 6)
    scene.submit(several(16), "2", max_tokens=80)
    assert (scene.engine.free_capacity().slots, scene.engine.slots) == (0, 2)
    server.wait_for_requests(2)
    for job_id in ("1", "2"):
        scene.engine.cancel(claim(job_id))
        assert scene.ended(job_id).outcome == "canceled"
    assert (scene.engine.free_capacity().slots, scene.engine.slots) == (8, 8)
    wait_for(lambda: server.closed == 2, "both requests to be closed")


@pytest.mark.parametrize(
    ("places", "in_use"),
    [
        ([], 0),
        ([1] * 5, 5),
        ([16], 4),
        ([3], 3),
        ([3, 3], 4),
        ([3, 16], 4),
        # Of these, one would have to end if the limit had just been lowered.
        ([1, 1, 1, 1, 1, 16], 6),
        ([3, 3, 3], 7),
    ],
)
def test_a_request_may_take_more_places_than_are_free(places: list[int], in_use: int) -> None:
    assert places_in_use(places, 4) == in_use


def test_what_is_stored_of_the_choices_is_json(scene: UpstreamScene, server: UpstreamServer) -> None:
    server.will([piece(at, delta={"content": "a", "note": "\ud83d"}, finish_reason="stop") for at in (0, 1)])
    ended: Ended = scene.end(several(2), max_tokens=10)
    assert [each["upstream"]["note"] for each in ended.extra["candidates"]] == ["\ufffd", "\ufffd"]
    assert json.dumps(ended.extra, ensure_ascii=False).encode()

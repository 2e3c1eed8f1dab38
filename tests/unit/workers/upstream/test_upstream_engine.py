"""Tests of the upstream engine against a real HTTP server: how each answer and each fault ends a job."""

from collections.abc import Iterator
from typing import Any

import pytest

from shared.clock import RealClock
from tests.support.processes import wait_for
from tests.support.upstream_scene import CHAT, UpstreamScene, claim
from tests.support.upstream_server import KEY, UpstreamServer
from workers.engine.events import Ended, JobRejected, Text


@pytest.fixture
def server() -> Iterator[UpstreamServer]:
    with UpstreamServer() as server:
        yield server


@pytest.fixture
def scenes() -> Iterator[list[UpstreamScene]]:
    scenes: list[UpstreamScene] = []
    yield scenes
    for scene in scenes:
        scene.close()


@pytest.fixture
def scene(server: UpstreamServer, scenes: list[UpstreamScene]) -> UpstreamScene:
    scenes.append(UpstreamScene(server.url))
    return scenes[0]


def test_an_answer_is_streamed_and_counted_by_the_upstreams_own_usage(scene: UpstreamScene) -> None:
    ended = scene.end()
    assert [event.text for event in scene.events if isinstance(event, Text)] == ["w0 ", "w1 ", "w2 "]
    assert (ended.outcome, ended.finish_reason, ended.text) == ("succeeded", "length", "w0 w1 w2 ")
    usage = ended.usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (21, 5, 3)
    assert scene.engine.stats.prompt_tokens == 16
    assert scene.engine.stats.completion_tokens == 3


@pytest.mark.parametrize("payload", [CHAT, {"prompt": "once upon a time"}])
def test_an_upstream_that_does_not_stream_is_understood(
    scene: UpstreamScene, server: UpstreamServer, payload: Any
) -> None:
    server.will("whole")
    ended = scene.end(payload)
    assert (ended.outcome, ended.finish_reason, ended.text) == ("succeeded", "stop", "w0 w1 w2 ")


def test_a_forwarded_request_passes_whole_and_a_native_one_leaves_out_what_the_client_did_not_choose(
    scene: UpstreamScene, server: UpstreamServer
) -> None:
    tools = [{"type": "function", "function": {"name": "weather"}}]
    scene.end(CHAT | {"forward": {"tools": tools, "reasoning_effort": "low", "max_completion_tokens": 900}})
    named = {"prompt": "x", "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.2, "seed": 3}
    scene.end(named | {"asked": ["temperature", "min_p", "top_k"], "max_tokens": 900}, job_id="2")
    scene.end(named | {"asked": []}, job_id="3")
    # A door of an earlier version does not say what the client has asked for.
    scene.end({"prompt": "x", "top_k": 40, "ignore_eos": False, "min_tokens": 4, "stop_token_ids": [7]}, job_id="4")
    common = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    assert server.bodies == [
        CHAT | common | {"tools": tools, "reasoning_effort": "low", "max_completion_tokens": 16},
        common | {"prompt": "x", "temperature": 0.5, "min_p": 0.2, "top_k": 40, "max_tokens": 16},
        common | {"prompt": "x"},
        common | {"prompt": "x", "min_tokens": 4, "stop_token_ids": [7]},
    ]


def test_embeddings_are_passed_on_and_cost_no_generated_tokens(scene: UpstreamScene) -> None:
    ended = scene.end({"input": ["x", [7, 8]]}, max_tokens=1)
    assert (ended.outcome, ended.text, len(ended.extra["embeddings"])) == ("succeeded", "", 2)
    assert (ended.usage.prompt_tokens, ended.usage.completion_tokens) == (11, 0)


@pytest.mark.parametrize("wanted", [{"dimensions": 4}, {"forward": {"dimensions": 4}}])
def test_the_dimensions_of_vectors_are_passed_on_from_every_route(
    scene: UpstreamScene, server: UpstreamServer, wanted: dict[str, Any]
) -> None:
    scene.end({"input": ["x"]} | wanted, max_tokens=1)
    assert server.bodies == [{"input": ["x"], "dimensions": 4, "model": "m", "encoding_format": "base64"}]


def test_an_upstream_is_not_asked_to_rank(scene: UpstreamScene, server: UpstreamServer) -> None:
    with pytest.raises(JobRejected) as rejected:
        scene.submit({"query": "q", "input": ["x"]})
    assert rejected.value.code == "unsupported_parameter"
    assert server.bodies == []


@pytest.mark.parametrize("drop", [False, True])
def test_a_cancel_closes_the_request_and_frees_the_slot(
    scene: UpstreamScene, server: UpstreamServer, drop: bool
) -> None:
    server.will("endless")
    scene.wait_until_open()
    scene.submit(max_tokens=4_000)
    wait_for(lambda: scene.events, "the first text")
    assert scene.engine.free_capacity().slots == 1
    scene.engine.cancel(claim("1"), drop=drop)
    assert scene.ended().outcome == ("dropped" if drop else "canceled")
    assert scene.engine.free_capacity().slots == 2
    wait_for(lambda: server.closed == 1, "the upstream to see that the request was closed")


def test_the_engine_counts_how_long_its_jobs_have_run_and_how_many_at_once(
    scene: UpstreamScene, server: UpstreamServer
) -> None:
    server.will("endless", "endless")
    scene.wait_until_open()
    scene.submit(job_id="1", max_tokens=4_000)
    scene.submit(job_id="2", max_tokens=4_000)
    stats = scene.engine.stats
    wait_for(lambda: stats.jobs_s and stats.jobs_squared_s > 1.8 * stats.jobs_s, "two jobs at once most of the time")
    assert stats.jobs_squared_s < 2 * stats.jobs_s * 1.001


def test_a_job_that_is_canceled_as_soon_as_it_was_submitted_ends_once(scene: UpstreamScene) -> None:
    scene.wait_until_open()
    for number in range(20):
        scene.submit(job_id=str(number))
        scene.engine.cancel(claim(str(number)))
    keys = [scene.ended(str(number)).key for number in range(20)]
    assert len([event for event in scene.events if isinstance(event, Ended)]) == len(keys)
    assert scene.engine.free_capacity().slots == 2


@pytest.mark.parametrize(("behaviour", "stage"), [("hang", "prefill"), ("endless", "decode")])
def test_a_deadline_closes_the_request(
    scene: UpstreamScene, server: UpstreamServer, behaviour: str, stage: str
) -> None:
    server.will(behaviour)
    ended = scene.end(deadline_s=RealClock().monotonic() + 1.0, max_tokens=4_000)
    assert (ended.outcome, ended.code, ended.stage) == ("expired", "deadline_exceeded", stage)
    wait_for(lambda: server.closed == 1, "the upstream to see that the request was closed")


def test_a_start_deadline_ends_only_a_job_without_text(scene: UpstreamScene, server: UpstreamServer) -> None:
    server.will("hang", "endless")
    now_s = RealClock().monotonic()
    assert scene.end(start_by_s=now_s + 0.4).outcome == "expired"
    ended = scene.end(
        job_id="2", start_by_s=RealClock().monotonic() + 0.5, deadline_s=RealClock().monotonic() + 1.5, max_tokens=4_000
    )
    assert (ended.outcome, ended.stage) == ("expired", "decode")
    assert ended.usage.completion_tokens > 20


@pytest.mark.parametrize("behaviour", ["fault", "cut", "garbage", "nonsense"])
def test_an_upstream_that_fails_after_it_took_the_request_costs_an_attempt(
    scene: UpstreamScene, server: UpstreamServer, behaviour: str
) -> None:
    server.will(behaviour, behaviour)
    assert scene.end(attempt=2).outcome == "attempt_failed"
    last = scene.end(job_id="2", attempt=3)
    assert (last.outcome, last.code) == ("failed", "upstream_lost")
    assert scene.engine.free_capacity().live


def test_an_upstream_that_hangs_costs_an_attempt(server: UpstreamServer, scenes: list[UpstreamScene]) -> None:
    scene = UpstreamScene(server.url, PENSTOCK_UPSTREAM_FIRST_TOKEN_MS="700", PENSTOCK_UPSTREAM_GAP_MS="300")
    scenes.append(scene)
    server.will("hang", "stall")
    silent, stalled = scene.end(attempt=3), scene.end(job_id="2", attempt=3)
    assert (silent.outcome, silent.message) == ("failed", "the upstream sent nothing for 0.7 s")
    assert (stalled.outcome, stalled.message) == ("failed", "the upstream sent nothing for 0.3 s")
    assert stalled.text == "w0 "


def test_a_request_that_the_upstream_rejects_fails_with_its_message_but_without_the_key(
    scenes: list[UpstreamScene],
) -> None:
    with UpstreamServer(key=KEY) as server:
        scene = UpstreamScene(server.url, PENSTOCK_UPSTREAM_API_KEY=KEY)
        scenes.append(scene)
        server.will("reject")
        ended = scene.end()
        assert (ended.outcome, ended.code, ended.message) == ("failed", "upstream_rejected", "no such tool, said ***")
        assert ended.extra == {"param": "tools"}
        assert ended.usage.unread_tokens == ended.usage.prompt_tokens
        assert (ended.usage.prefill_ms, scene.engine.stats.prompt_tokens) == (None, 0)


def test_an_upstream_that_is_away_is_probed_until_it_answers(scene: UpstreamScene, server: UpstreamServer) -> None:
    scene.wait_until_open()
    server.stop()
    scene.submit()
    assert scene.ended().outcome == "returned"
    capacity = scene.engine.free_capacity()
    assert (capacity.slots, capacity.live) == (0, False)
    server.start()
    assert scene.end(job_id="2").outcome == "succeeded"


def test_an_upstream_that_crashes_before_the_first_byte_costs_no_attempt_until_the_same_job_does_it_again(
    scene: UpstreamScene, server: UpstreamServer
) -> None:
    server.will("crash", "crash", "crash")
    outcomes = [scene.end(token=token).outcome for token in "abc"]
    assert outcomes == ["returned", "returned", "attempt_failed"]
    assert scene.end(token="d").outcome == "succeeded"


@pytest.mark.parametrize(
    ("fixed", "most", "slots"), [("auto", "64", 4), ("auto", "2", 2), ("7", "auto", 7), ("7", "5", 5)]
)
def test_the_number_of_requests_at_once_is_fixed_or_begins_small(
    server: UpstreamServer, scenes: list[UpstreamScene], fixed: str, most: str, slots: int
) -> None:
    numbers = {"PENSTOCK_UPSTREAM_CONCURRENCY": fixed, "PENSTOCK_MAX_BATCH_SIZE": most}
    scenes.append(UpstreamScene(server.url, **numbers))
    scenes[0].wait_until_open()
    assert (scenes[0].engine.slots, scenes[0].engine.free_capacity().slots) == (slots, slots)


def test_the_end_of_the_engine_drops_what_runs(server: UpstreamServer) -> None:
    scene = UpstreamScene(server.url)
    server.will("endless")
    scene.wait_until_open()
    scene.submit(max_tokens=4_000)
    wait_for(lambda: scene.events, "the first text")
    scene.close()
    assert scene.ended().outcome == "dropped"


def test_the_sizes_of_prompts_are_learned_and_an_image_counts_by_itself(scene: UpstreamScene) -> None:
    assert scene.engine.figures() == {}
    scene.end({"messages": [{"role": "user", "content": "x" * 2_000}]})
    assert scene.engine.figures() == {"tokens_per_byte": round((21 - 4) / 2_000, 4)}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 50_000}}
    message = {"role": "user", "content": [{"type": "text", "text": "what is it?"}, picture]}
    with_picture = {"messages": [message], "forward": {}}
    assert 800 < scene.engine.sizes.estimate(with_picture) < 820
    for number in range(4):
        scene.end(with_picture, job_id=str(number), token="p")
    assert 16 < scene.engine.figures()["tokens_per_attachment"] < 18  # type: ignore[operator]  # a number


@pytest.mark.parametrize("payload", [{"input": ["a", "b"]}, {"prompt": "once"}, CHAT])
def test_the_number_of_requests_at_once_grows_with_embeddings_as_with_texts(
    server: UpstreamServer, scenes: list[UpstreamScene], payload: Any
) -> None:
    server.word_s = 0.02
    scene = UpstreamScene(server.url, PENSTOCK_MAX_BATCH_SIZE="16")
    scenes.append(scene)
    scene.wait_until_open()
    sent = 0

    def has_grown() -> bool:
        nonlocal sent
        for _ in range(scene.engine.free_capacity().slots):
            scene.submit(payload, job_id=str(sent))
            sent += 1
        return scene.engine.slots > 4

    wait_for(has_grown, "a number of requests above the first one")


def test_refusals_of_the_door_raise_a_number_that_is_not_all_in_use(
    server: UpstreamServer, scenes: list[UpstreamScene]
) -> None:
    server.word_s = 0.02
    scene = UpstreamScene(server.url, PENSTOCK_MAX_BATCH_SIZE="16")
    scenes.append(scene)
    scene.wait_until_open()
    sent = 0

    def has_grown() -> bool:
        nonlocal sent
        ended = sum(isinstance(event, Ended) for event in scene.events)
        for _ in range(2 - (sent - ended)):
            scene.submit(job_id=str(sent))
            sent += 1
        scene.engine.note_demand()
        return scene.engine.slots > 4

    wait_for(has_grown, "a number of requests above the first one")


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize("payload", [CHAT, {"prompt": "x"}, {"input": ["a"]}])
def test_the_upstream_gets_the_id_and_the_trace_of_the_clients_request(
    scene: UpstreamScene, server: UpstreamServer, payload: dict[str, Any]
) -> None:
    scene.end(payload | {"request_id": "r-1"}, traceparent=TRACE)
    assert server.headers[-1]["X-Request-Id"] == "r-1"
    assert server.headers[-1]["traceparent"] == TRACE
    assert "request_id" not in server.bodies[-1]


@pytest.mark.parametrize("request_id", [None, "", 7, "a\r\nb: c", "ü", "x" * 1_000])
def test_what_is_no_request_id_is_not_sent(scene: UpstreamScene, server: UpstreamServer, request_id: Any) -> None:
    assert scene.end(CHAT | {"request_id": request_id}).outcome == "succeeded"
    assert not {"X-Request-Id", "traceparent"} & server.headers[-1].keys()

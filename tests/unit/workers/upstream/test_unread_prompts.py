"""Tests that an attempt is charged only if the upstream has begun an answer, ended one or sent usage."""

from collections.abc import Iterator

import pytest

from shared.clock import RealClock
from tests.support.raw_upstream import STREAM, RawUpstream
from tests.support.upstream_scene import UpstreamScene, claim
from tests.support.upstream_server import UpstreamServer
from workers.engine.events import Ended

WORD = b'data: {"choices":[{"index":0,"delta":{"content":"a "}}]}\n\n'
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.fixture
def server() -> Iterator[UpstreamServer]:
    with UpstreamServer() as server:
        yield server


@pytest.fixture
def scene(server: UpstreamServer) -> Iterator[UpstreamScene]:
    scene = UpstreamScene(server.url)
    yield scene
    scene.close()


@pytest.fixture
def raw() -> Iterator[RawUpstream]:
    with RawUpstream() as raw:
        yield raw


def assert_nothing_counts(scene: UpstreamScene, ended: Ended) -> None:
    assert (ended.usage.read_tokens, ended.usage.cached_tokens, ended.usage.completion_tokens) == (0, 0, 0)
    assert (scene.engine.stats.prompt_tokens, scene.engine.stats.completion_tokens) == (0, 0)


@pytest.mark.parametrize("behaviour", ["busy", "loading", "crash", "fault", "nonsense", "reject"])
def test_an_attempt_without_an_answer_counts_no_tokens(
    scene: UpstreamScene, server: UpstreamServer, behaviour: str
) -> None:
    server.will(behaviour)
    assert_nothing_counts(scene, scene.end())


def test_an_attempt_at_a_server_that_is_not_there_counts_no_tokens(
    scene: UpstreamScene, server: UpstreamServer
) -> None:
    scene.wait_until_open()
    server.stop()
    scene.submit()
    assert_nothing_counts(scene, scene.ended())


@pytest.mark.parametrize("way", ["canceled", "dropped", "expired"])
def test_a_request_that_ends_while_nothing_has_come_counts_no_tokens(
    scene: UpstreamScene, server: UpstreamServer, way: str
) -> None:
    server.will("hang")
    scene.wait_until_open()
    scene.submit(deadline_s=RealClock().monotonic() + (0.5 if way == "expired" else 60))
    server.wait_for_requests(1)
    if way != "expired":
        scene.engine.cancel(claim("1"), drop=way == "dropped")
    ended = scene.ended()
    assert ended.outcome == way
    assert_nothing_counts(scene, ended)


@pytest.mark.parametrize(
    ("parts", "counts"),
    [
        ([STREAM], (0, 0)),
        ([STREAM, ROLE], (0, 0)),
        ([STREAM, USAGE], (7, 2)),
        ([STREAM, USAGE, WORD], (7, 2)),
        ([STREAM, USAGE, LAST, DONE], (7, 2)),
    ],
    ids=["nothing", "a role", "usage", "usage and a word", "an empty answer"],
)
def test_usage_from_the_server_counts_even_without_a_word(
    raw: RawUpstream, parts: list[bytes | float], counts: tuple[int, int]
) -> None:
    scene = UpstreamScene(raw.url)
    raw.will(*parts)
    usage = scene.end().usage
    assert (usage.read_tokens, usage.completion_tokens) == counts
    assert (scene.engine.stats.prompt_tokens, scene.engine.stats.completion_tokens) == counts
    scene.close()


@pytest.mark.parametrize("parts", [[STREAM, WORD], [STREAM, WORD, LAST, DONE]], ids=["cut after a word", "whole"])
def test_an_answer_without_usage_counts_the_estimated_prompt(raw: RawUpstream, parts: list[bytes | float]) -> None:
    scene = UpstreamScene(raw.url)
    raw.will(*parts)
    usage = scene.end().usage
    assert usage.read_tokens == usage.prompt_tokens > 0
    assert scene.engine.stats.prompt_tokens == usage.prompt_tokens
    scene.close()

"""Tests that a tenant whose requests an upstream refuses takes nothing from others; bench/isolation.py has rates."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.isolation import WAYS, environ, run
from tests.support.processes import Stage
from tests.support.upstream_server import UpstreamServer


@pytest.fixture
def server() -> Iterator[UpstreamServer]:
    with UpstreamServer(words=5) as server:
        server.word_s = 0.02
        yield server


@pytest.fixture
def stage(tmp_path: Path, server: UpstreamServer) -> Iterator[Stage]:
    with Stage(tmp_path, **environ(server.url)) as stage:
        stage.worker()
        yield stage
        stage.assert_sound()


def test_beside_requests_that_are_refused_in_each_way_everybody_else_is_answered(stage: Stage) -> None:
    found = run(stage, WAYS, seconds=5, per_second=4)
    assert found.refusals == {}
    assert found.answers > 20
    ends = {way: {end[:2] for end in ends} for way, ends in found.ends.items()}
    assert ends["400"] <= {("failed", "upstream_rejected"), ("expired", "deadline_exceeded")}
    assert all(("succeeded", "") not in ends[way] for way in WAYS if way != "endless")
    told = {end[2] for way in ("busy", "429", "loading", "503") for end in found.ends[way] if end[1] == "upstream_busy"}
    assert any(reason.startswith("the upstream answered 429: ") for reason in told)
    assert any(reason.startswith("the upstream answered 503: ") for reason in told)

"""Tests how `penstock up` waits until its upstream has loaded its models."""

import pytest

from shared.cli.stack.upstream_warm_up import WarmUp
from tests.support.processes import wait_for
from tests.support.upstream_server import KEY, UpstreamServer


def warmed(server: UpstreamServer, *models: str, key: str = "") -> list[str]:
    """Warm the models up; return what was reported."""
    said: list[str] = []
    warm_up = WarmUp(server.url + "/", key, models, said.append, wait_s=60)
    warm_up.start()
    wait_for(lambda: not warm_up.not_done(), "the models to be warm")
    return said


def test_each_model_is_asked_for_one_token_and_nothing_is_said_about_a_warm_server() -> None:
    with UpstreamServer(key=KEY) as server:
        assert warmed(server, "m", "other", "m", key=KEY) == []
        assert [(body["model"], body["max_tokens"]) for body in server.bodies] == [("m", 1), ("other", 1)]


def test_a_server_that_loads_its_model_is_waited_for_and_named_once() -> None:
    with UpstreamServer() as server:
        server.will("loading", "loading", "crash")
        said = warmed(server, "m")
        assert said[0] == f"waiting for the upstream {server.url} to load 'm' (503 Loading model)"
        assert said[1].startswith(f"waiting for the upstream {server.url} to load 'm' (Remote end closed")
        assert said[2].startswith("the upstream has loaded 'm' after ")
        assert len(said) == 3


@pytest.mark.parametrize("refusal", ["reject", "401", "404", "busy", "fault", "501"])
def test_a_server_that_refuses_has_started(refusal: str) -> None:
    with UpstreamServer() as server:
        server.will(refusal)
        assert warmed(server, "m") == []


def test_a_model_that_never_loads_is_said_and_does_not_keep_the_others_from_being_asked() -> None:
    said: list[str] = []
    with UpstreamServer() as server:
        server.will("loading")
        warm_up = WarmUp(server.url, "", ["m", "other"], said.append, wait_s=0)
        warm_up.start()
        wait_for(lambda: not warm_up.not_done(), "the end of the wait")
        assert [body["model"] for body in server.bodies] == ["m", "other"]
        (sentence,) = said
        assert sentence.startswith(
            f"the upstream {server.url} was not ready to compute 'm' within 0 s (503 Loading model)"
        )

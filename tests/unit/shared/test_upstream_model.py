"""Tests how `penstock up --upstream` finds the name of the model."""

import threading

import pytest

from shared.cli.stack.upstream_model import only_model
from shared.errors import ConfigError
from tests.support.upstream_server import UpstreamServer


def test_a_server_with_one_model_needs_no_name() -> None:
    with UpstreamServer() as server:
        assert only_model(server.url + "/", "") == "m"


@pytest.mark.parametrize(("models", "found"), [([], "0 models (none)"), (["a", "b"], "2 models (a, b)")])
def test_a_server_with_several_models_or_none_needs_one(models: list[str], found: str) -> None:
    with UpstreamServer() as server:
        server.models = models
        with pytest.raises(ConfigError) as caught:
            only_model(server.url, "")
    expected = f"--upstream {server.url}: the server serves {found}; name each that you want with --upstream-model"
    assert str(caught.value) == expected


def test_a_server_that_is_away_is_named() -> None:
    with UpstreamServer() as server:
        url = server.url
    with pytest.raises(ConfigError, match=f"--upstream {url}: the server did not say which models it serves"):
        only_model(url, "", wait_s=0)


@pytest.mark.parametrize("statuses", [[503], [502, 503, 503], [429], [500, 504]])
def test_a_server_that_is_still_loading_is_waited_for(statuses: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    with UpstreamServer() as server:
        server.models_statuses.extend(statuses)
        assert only_model(server.url, "") == "m"
        assert capsys.readouterr().err.startswith(f"penstock: waiting for {server.url} (HTTP Error {statuses[0]}: ")


def test_a_server_that_does_not_listen_yet_is_waited_for() -> None:
    with UpstreamServer() as server:
        url = server.url
        server.stop()
        starting = threading.Timer(1.0, server.start)
        starting.start()
        assert only_model(url, "") == "m"
        starting.join()


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_server_that_refuses_to_say_its_models_is_not_waited_for(status: int) -> None:
    with UpstreamServer() as server:
        server.models_statuses.append(status)
        with pytest.raises(ConfigError, match=f"did not say which models it serves .HTTP Error {status}"):
            only_model(server.url, "")

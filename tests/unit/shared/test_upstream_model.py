"""Tests how `penstock up --upstream` finds the name of the model."""

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
    assert str(caught.value) == f"--upstream {server.url}: the server serves {found}; name one with --upstream-model"


def test_a_server_that_is_away_is_named() -> None:
    with UpstreamServer() as server:
        url = server.url
    with pytest.raises(ConfigError, match=f"--upstream {url}: the server did not say which models it serves"):
        only_model(url, "")

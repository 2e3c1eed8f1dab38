"""Tests through which proxy requests go, and that the list of models, the worker and the commands have one rule."""

from collections.abc import Callable

import pytest

from shared.cli.stack.upstream_model import only_model
from shared.errors import ConfigError
from shared.proxies import proxy_for
from tests.support.upstream_scene import UpstreamScene
from tests.support.upstream_server import UpstreamServer

PROXY = "http://proxy.example:3128"


@pytest.fixture(autouse=True)
def environ(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set variables of the environment, which has none about proxies at first."""
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    def set_all(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_all


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.9.1", "localhost", "LOCALHOST", "[::1]", "[::1]:8080", "127.0.0.1:8080"]
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_loopback_addresses_have_no_proxy(environ: Callable[..., None], scheme: str, host: str) -> None:
    environ(http_proxy=PROXY, HTTPS_PROXY=PROXY)
    assert proxy_for(f"{scheme}://{host}/v1") is None


@pytest.mark.parametrize(
    ("url", "variables", "proxy"),
    [
        ("http://m.example/v1", {}, None),
        ("http://m.example/v1", {"http_proxy": PROXY}, PROXY),
        ("http://m.example/v1", {"HTTP_PROXY": PROXY}, PROXY),
        ("http://m.example/v1", {"HTTP_PROXY": PROXY, "http_proxy": "http://other:1"}, "http://other:1"),
        ("http://m.example/v1", {"HTTP_PROXY": PROXY, "http_proxy": ""}, None),
        ("http://m.example/v1", {"https_proxy": PROXY}, None),
        ("https://m.example/v1", {"https_proxy": PROXY}, PROXY),
        ("http://m.example/v1", {"http_proxy": "proxy.example:3128"}, PROXY),
        ("http://m.example/v1", {"http_proxy": "http://u:p@proxy.example:3128"}, "http://u:p@proxy.example:3128"),
        ("http://m.example/v1", {"http_proxy": PROXY, "no_proxy": "example"}, None),
        ("http://m.example:8000/v1", {"http_proxy": PROXY, "NO_PROXY": "a,.example"}, None),
        ("http://m.example:8000/v1", {"http_proxy": PROXY, "no_proxy": "m.example:8000"}, None),
        ("http://m.example:8000/v1", {"http_proxy": PROXY, "no_proxy": "m.example:9000"}, PROXY),
        ("http://m.example/v1", {"http_proxy": PROXY, "no_proxy": "*"}, None),
        ("http://10.0.0.7/v1", {"http_proxy": PROXY, "no_proxy": "127.0.0.1"}, PROXY),
    ],
)
def test_the_proxy_is_that_of_the_urls_scheme_unless_the_host_is_exempt(
    environ: Callable[..., None], url: str, variables: dict[str, str], proxy: str | None
) -> None:
    environ(**variables)
    assert proxy_for(url) == proxy


@pytest.mark.parametrize("value", ["socks5://proxy.example:1080", "http://", "http://proxy:port", "ftp://u:secret@p"])
def test_a_proxy_that_speaks_no_http_is_named_without_its_password(environ: Callable[..., None], value: str) -> None:
    environ(https_proxy=value)
    with pytest.raises(ConfigError, match=r"https_proxy=.* is not the URL of an HTTP proxy") as caught:
        proxy_for("https://m.example/v1")
    assert "secret" not in str(caught.value)


def test_the_list_of_models_and_the_worker_use_the_same_proxy(environ: Callable[..., None]) -> None:
    with UpstreamServer() as proxy:
        environ(http_proxy=f"http://127.0.0.1:{proxy.port}")
        assert only_model("http://m.invalid:7/v1", "") == "m"
        scene = UpstreamScene("http://m.invalid:7/v1")
        assert scene.end().outcome == "succeeded"
        scene.close()


def test_neither_uses_a_proxy_for_this_machine(environ: Callable[..., None]) -> None:
    environ(http_proxy="http://127.0.0.1:9")
    with UpstreamServer() as server:
        assert only_model(server.url, "") == "m"
        scene = UpstreamScene(server.url)
        assert scene.end().outcome == "succeeded"
        scene.close()

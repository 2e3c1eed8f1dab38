"""Which Host headers and which origins of web pages the HTTP door accepts."""

import pytest
from flask.testing import FlaskClient

from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.door import a_door, fault, serve


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    serve(store)
    return a_door(store, settings)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000"])
def test_loopback_host_names_are_accepted(client: FlaskClient, host: str) -> None:
    assert client.get("/v1/queue", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "[::1",
        "localhost#@evil.example",
        "localhost/@evil.example",
        "localhost?@evil.example",
        "evil.example@localhost",
        "user:password@localhost:8000",
        "localhost:8000:8000",
        "localhost:port",
        "localhost, evil.example",
        "local host",
        "localhost\\@evil.example",
        "localhost/path",
    ],
)
def test_an_unknown_host_is_421(client: FlaskClient, host: str) -> None:
    fault(client.get("/v1/queue", headers={"Host": host}), 421, "unknown_host", "Host")


def test_a_door_for_every_host_still_refuses_what_is_no_host(store: Store, settings: Settings) -> None:
    client = a_door(store, settings, allowed_hosts="*")
    assert client.get("/v1/queue", headers={"Host": "anything.example:81"}).status_code == 200
    fault(client.get("/v1/queue", headers={"Host": "localhost#@evil.example"}), 400, "invalid_request", "Host")


def test_a_health_probe_may_use_an_ip_address_as_host(client: FlaskClient) -> None:
    assert client.get("/health", headers={"Host": "10.1.2.3:8000"}).status_code == 200


def test_configured_hosts_replace_the_loopback_names(store: Store, settings: Settings) -> None:
    client = a_door(store, settings, allowed_hosts="api.example, other.example")
    assert client.get("/v1/queue", headers={"Host": "API.example"}).status_code == 200
    fault(client.get("/v1/queue", headers={"Host": "localhost"}), 421, "unknown_host", "Host")


def test_only_pages_of_a_configured_origin_may_read_answers(store: Store, settings: Settings) -> None:
    origin = {"Origin": "https://app.example"}
    assert "Access-Control-Allow-Origin" not in a_door(store, settings).get("/v1/queue", headers=origin).headers
    named = a_door(store, settings, cors_origins="https://app.example", auth="required")
    preflight_headers = origin | {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    preflight = named.options("/v1/jobs", headers=preflight_headers)
    assert preflight.status_code == 204
    assert preflight.headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert preflight.headers["Access-Control-Allow-Headers"] == "authorization"
    other = named.get("/v1/queue", headers={"Origin": "https://evil.example"})
    assert "Access-Control-Allow-Origin" not in other.headers

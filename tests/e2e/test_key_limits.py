"""Keys that are not valid are limited by the client's address, in the door and in the gate; valid keys never are."""

import base64
import itertools

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from shared.accounts.api_keys import ApiKeys
from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.door import a_door, fault, serve, submit
from tests.support.gate import served, submit_frame
from web.runtime.start import load_admin_key

PER_MINUTE = 5
#: Each key is tried only once, so that none is answered from memory.
WRONG_KEYS = (f"psk_{number:043}" for number in itertools.count())
PROXY = "10.0.0.1"


@pytest.fixture
def closed(store: Store, settings: Settings) -> FlaskClient:
    """A door that requires API keys and allows few failures."""
    serve(store)
    return a_door(store, settings, auth="required", failed_keys_per_minute=PER_MINUTE, trusted_proxies=PROXY)


def get(
    door: FlaskClient,
    key: str,
    *,
    peer: str = "192.0.2.7",
    path: str = "/v1/queue",
    via: str = "",
    kind: str = "Bearer",
) -> TestResponse:
    headers = {"Authorization": f"{kind} {key}"} | ({"X-Forwarded-For": via} if via else {})
    return door.get(path, headers=headers, environ_overrides={"REMOTE_ADDR": peer})


def use_up(door: FlaskClient, **origin: str) -> None:
    for _ in range(PER_MINUTE):
        fault(get(door, next(WRONG_KEYS), **origin), 401, "invalid_api_key")


def limited(response: TestResponse) -> None:
    """Check that a failed key was answered with 429 and an honest time."""
    fault(response, 429, "too_many_failed_keys")
    assert 1 <= int(response.headers["Retry-After"]) <= 60 / PER_MINUTE
    assert 0 < int(response.headers["retry-after-ms"]) <= 60_000 / PER_MINUTE


def test_after_too_many_failures_an_address_gets_429_for_unknown_keys_and_valid_keys_still_work(
    closed: FlaskClient, store: Store
) -> None:
    used = ApiKeys(store.client).create("blue").key
    assert get(closed, used).status_code == 200
    use_up(closed)
    for _ in range(20):
        limited(get(closed, next(WRONG_KEYS)))
    assert get(closed, used).status_code == 200
    never_used = ApiKeys(store.client).create("red").key
    assert get(closed, never_used).status_code == 200
    metrics = closed.get("/metrics").text
    assert f'code="invalid_api_key",limited="no"}} {PER_MINUTE}.0' in metrics
    assert 'code="invalid_api_key",limited="yes"} 20.0' in metrics


def test_a_missing_key_is_not_a_failed_key(closed: FlaskClient) -> None:
    for _ in range(3 * PER_MINUTE):
        fault(closed.get("/v1/queue", environ_overrides={"REMOTE_ADDR": "192.0.2.7"}), 401, "invalid_api_key")
    use_up(closed)


def test_behind_a_trusted_proxy_each_client_has_its_own_limit_and_the_proxy_has_none(closed: FlaskClient) -> None:
    use_up(closed, peer=PROXY, via="6.6.6.6, 198.51.100.1")
    limited(get(closed, next(WRONG_KEYS), peer=PROXY, via="7.7.7.7, 198.51.100.1"))
    fault(get(closed, next(WRONG_KEYS), peer=PROXY, via="198.51.100.2"), 401, "invalid_api_key")
    for _ in range(3):
        use_up(closed, peer=PROXY)
    # Anybody else who sends the header is limited by the address of the connection.
    use_up(closed, peer="192.0.2.9", via="198.51.100.3")
    limited(get(closed, next(WRONG_KEYS), peer="192.0.2.9", via="198.51.100.4"))


def test_a_key_that_was_just_rejected_is_not_looked_up_again_for_a_limited_address(
    closed: FlaskClient, store: Store
) -> None:
    use_up(closed)
    wrong = next(WRONG_KEYS)
    limited(get(closed, wrong))
    store.client.config_resetstat()
    limited(get(closed, wrong))
    limited(get(closed, "not even the form of a key"))
    assert "cmdstat_hget" not in store.client.info("commandstats")


def test_failed_admin_keys_count_too_also_as_basic_passwords(closed: FlaskClient, settings: Settings) -> None:
    admin = load_admin_key(settings)
    basic = base64.b64encode(b"admin:wrong").decode()
    for number in range(PER_MINUTE):
        key, kind = (basic, "Basic") if number % 2 else ("wrong", "Bearer")
        fault(get(closed, key, path="/metrics/fleet", kind=kind), 401, "admin_key_required")
    limited(get(closed, "wrong", path="/metrics/fleet"))
    limited(get(closed, basic, path="/metrics/fleet", kind="Basic"))
    assert get(closed, admin, path="/metrics/fleet").status_code == 200
    right = base64.b64encode(f"admin:{admin}".encode()).decode()
    assert get(closed, right, path="/metrics/fleet", kind="Basic").status_code == 200


def test_a_valid_key_that_was_sent_to_an_operators_route_still_works(closed: FlaskClient, store: Store) -> None:
    key = ApiKeys(store.client).create("blue").key
    use_up(closed)
    limited(get(closed, key, path="/metrics/fleet"))
    assert get(closed, key).status_code == 200


def test_the_gate_limits_failed_keys_too(store: Store, settings: Settings) -> None:
    serve(store)
    key = ApiKeys(store.client).create("blue").key
    with served(store, settings, auth="required", settings_of_test={"failed_keys_per_minute": PER_MINUTE}) as gate:
        for _ in range(PER_MINUTE):
            gate.client.fault(submit_frame() | {"tenant_key": next(WRONG_KEYS)}, "invalid_api_key")
        gate.client.fault(submit_frame() | {"tenant_key": next(WRONG_KEYS)}, "too_many_failed_keys")
        assert gate.client.ask(submit_frame() | {"tenant_key": key})["status"] == "accepted"


def test_an_invalid_tenant_name_is_reported_only_to_a_caller_with_a_key_on_a_route_that_exists(
    closed: FlaskClient, store: Store, settings: Settings
) -> None:
    bad = {"X-Tenant": "a b"}
    valid = {"Authorization": f"Bearer {ApiKeys(store.client).create('blue').key}"}
    fault(submit(closed, headers=bad), 401, "invalid_api_key")
    fault(closed.put("/v1/jobs", headers=bad), 401, "invalid_api_key")
    fault(closed.put("/v1/jobs", headers=bad | valid), 405, "method_not_allowed")
    fault(closed.put("/v1/jobs", headers=valid | {"X-Tenant": "red"}), 405, "method_not_allowed")
    fault(closed.get("/v1/nothing", headers=bad | valid), 404, "route_not_found")
    fault(submit(closed, headers=bad | valid), 422, "invalid_value", "X-Tenant")
    fault(a_door(store, settings).put("/v1/jobs", headers=bad), 405, "method_not_allowed")

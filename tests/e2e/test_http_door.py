"""Who is let in, what a request may be, and what operators see; over a real store."""

import base64
import json
import re

import pytest
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families

from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.api_keys import ApiKeys
from shared.store.store import Store
from shared.store.tenants import Tenants
from tests.support.door import a_door, fault, refused, serve, submit, taken
from web.api import response_models
from web.runtime.admin_key import load_admin_key


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    serve(store)
    return a_door(store, settings)


@pytest.fixture
def closed(store: Store, settings: Settings) -> FlaskClient:
    """A door that asks for keys."""
    serve(store)
    return a_door(store, settings, auth="required")


def with_key(store: Store, tenant: str = "blue", **spelled: object) -> dict[str, str]:
    return {"Authorization": f"Bearer {ApiKeys(store.client).create(tenant, **spelled).key}"}


# Keys and tenants.


def test_without_a_key_nothing_of_a_tenant_is_open(closed: FlaskClient) -> None:
    for response in (
        submit(closed),
        closed.get("/v1/jobs"),
        closed.get("/v1/jobs/x"),
        closed.get("/v1/queue"),
        closed.get("/v1/models"),
        closed.get("/v1/jobs/x/events"),
        closed.delete("/v1/jobs/x"),
    ):
        fault(response, 401, "invalid_api_key")
        assert response.headers["WWW-Authenticate"].startswith("Bearer")


def test_an_unauthorized_body_is_not_even_read(closed: FlaskClient) -> None:
    fault(closed.post("/v1/jobs", data=b"{", content_type="application/json"), 401, "invalid_api_key")


def test_a_key_stands_for_its_tenant(closed: FlaskClient, store: Store) -> None:
    assert taken(submit(closed, headers=with_key(store)))["tenant"] == "blue"


def test_a_key_that_was_removed_or_has_expired_is_one_that_never_was(closed: FlaskClient, store: Store) -> None:
    removed, expired = with_key(store, label="one"), with_key(store, label="two", expires_in_ms=1_000)
    ApiKeys(store.client).rm("one")
    store.client.incrby(keys.clock(), 2_000)
    told = {
        fault(submit(closed, headers=shown), 401, "invalid_api_key")
        for shown in (removed, expired, {"Authorization": "Bearer psk_invented"})
    }
    assert len(told) == 1


@pytest.mark.parametrize("shown", ["Bearer", "Bearer ", "Basic eDp5", "psk_x", "Bearer \u00ff"])
def test_an_odd_authorization_is_401(closed: FlaskClient, shown: str) -> None:
    fault(submit(closed, headers={"Authorization": shown}), 401, "invalid_api_key")


def test_only_a_key_that_may_act_for_others_names_another_tenant(closed: FlaskClient, store: Store) -> None:
    plain, gateway = with_key(store), with_key(store, act_as="team-*")
    fault(submit(closed, headers=plain | {"X-Tenant": "team-a"}), 403, "tenant_not_allowed", "X-Tenant")
    fault(submit(closed, headers=gateway | {"X-Tenant": "red"}), 403, "tenant_not_allowed", "X-Tenant")
    assert taken(submit(closed, headers=gateway | {"X-Tenant": "team-a"}))["tenant"] == "team-a"
    assert taken(submit(closed, headers=gateway))["tenant"] == "blue"


def test_a_disabled_tenant_is_403(closed: FlaskClient, store: Store) -> None:
    key = with_key(store)
    Tenants(store.client).set("blue", TenantPolicy(disabled=True))
    fault(submit(closed, headers=key), 403, "tenant_disabled")


def test_where_auth_is_open_the_tenant_is_x_tenant_and_keys_are_ignored(client: FlaskClient) -> None:
    assert taken(submit(client))["tenant"] == "default"
    assert taken(submit(client, headers={"X-Tenant": "blue", "Authorization": "Bearer nonsense"}))["tenant"] == "blue"


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "ž", "a:b", "a.b"])
def test_a_tenant_s_name_is_letters_digits_and_two_signs(client: FlaskClient, name: str) -> None:
    fault(submit(client, headers={"X-Tenant": name}), 422, "invalid_value", "X-Tenant")


# Operators.


def test_fleet_metrics_name_tenants_and_are_for_operators(
    closed: FlaskClient, store: Store, settings: Settings
) -> None:
    fault(closed.get("/metrics/fleet"), 401, "admin_key_required")
    fault(closed.get("/metrics/fleet", headers=with_key(store)), 401, "admin_key_required")
    key = load_admin_key(settings)
    basic = base64.b64encode(f"anyone:{key}".encode()).decode()
    for shown in (f"Bearer {key}", f"Basic {basic}"):
        assert closed.get("/metrics/fleet", headers={"Authorization": shown}).status_code == 200


@pytest.mark.parametrize("shown", ["Basic", "Basic !", "Basic \u00e9", "Basic bm9jb2xvbg==", "Basic /zr/", "Digest x"])
def test_an_odd_authorization_is_no_operator_s(closed: FlaskClient, shown: str) -> None:
    fault(closed.get("/metrics/fleet", headers={"Authorization": shown}), 401, "admin_key_required")


def test_fleet_metrics_count_what_the_door_did(client: FlaskClient, store: Store) -> None:
    Tenants(store.client).set("blue", TenantPolicy(max_waiting=1))
    taken(submit(client, headers={"X-Tenant": "blue"}, prompt="a"))
    refused(submit(client, headers={"X-Tenant": "blue"}, prompt="b"), "tenant_queue_full")
    read = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(client.get("/metrics/fleet").text)
        for sample in family.samples
    }
    assert read["penstock_inflight", ()] == 1
    assert read["penstock_executed_total", ()] == 0
    assert read["penstock_yielded_total", ()] == 1
    assert read["penstock_jobs_waiting", (("model_name", "m"), ("tenant", "blue"))] == 1
    assert read["penstock_retry_hint_seconds_count", ()] == 1


def test_process_metrics_go_by_route_and_never_by_path(client: FlaskClient) -> None:
    client.get("/v1/jobs/some-id")
    client.get("/no/such/page")
    text = client.get("/metrics").text
    assert 'route="/v1/jobs/<job_id>",status="404"' in text
    assert 'route="unknown",status="404"' in text
    assert "some-id" not in text
    assert "penstock_build_info{" in text


@pytest.mark.parametrize("path", ["/metrics", "/metrics/fleet"])
def test_metrics_come_in_the_form_that_is_asked_for_and_else_as_text(client: FlaskClient, path: str) -> None:
    for asked, given in (
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text"),
        ("application/openmetrics-text; version=newest", "text/plain"),
        ("application/json", "text/plain"),
    ):
        response = client.get(path, headers={"Accept": asked})
        assert (response.status_code, response.mimetype) == (200, given)


def test_ready_says_why_not(store: Store, settings: Settings) -> None:
    client = a_door(store, settings)
    response = client.get("/health/ready")
    assert response.status_code == 503
    assert response.get_json() == {"status": "not_ready", "reason": "no_worker", "workers": 0}
    serve(store)
    response = client.get("/health/ready")
    assert response.status_code == 200
    response_models.Ready.model_validate(response.get_json())


# What a request may be.


def test_only_json_is_read(client: FlaskClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        message = fault(
            client.post("/v1/jobs", data=b'{"prompt":"x"}', content_type=kind),
            415,
            "unsupported_media_type",
            "Content-Type",
        )
        assert "application/json" in message


def test_a_body_over_the_limit_is_413(store: Store, settings: Settings) -> None:
    client = a_door(store, settings, max_body_bytes=1_024)
    serve(store)
    fault(submit(client, prompt="a" * 2_000), 413, "request_too_large")
    taken(submit(client, prompt="a" * 900))


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 5_000])
def test_what_is_no_json_is_400(client: FlaskClient, data: bytes) -> None:
    fault(client.post("/v1/jobs", data=data, content_type="application/json"), 400, "invalid_json")


def test_what_does_not_fit_is_422_with_the_field(client: FlaskClient) -> None:
    assert "colour" in fault(submit(client, colour="red"), 422, "invalid_value", "colour")
    assert "deadline_ms=600001" in fault(submit(client, deadline_ms=600_001), 422, "invalid_value", "deadline_ms")
    fault(client.post("/v1/jobs", json=[]), 422, "invalid_value")
    fault(submit(client, prompt="nul \0 inside"), 422, "invalid_value", "prompt")
    fault(submit(client, headers={"Idempotency-Key": "k" * 257}), 422, "invalid_value", "Idempotency-Key")
    fault(submit(client, "/v1/jobs?wait_ms=soon"), 422, "invalid_value", "wait_ms")


def test_a_prompt_of_markup_comes_back_as_it_was_and_as_json(client: FlaskClient) -> None:
    response = submit(client, metadata={"note": "<img src=x onerror=alert(1)>"})
    assert taken(response)["metadata"]["note"] == "<img src=x onerror=alert(1)>"
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_unknown_routes_and_methods_have_the_same_error_object(client: FlaskClient) -> None:
    fault(client.get("/nope"), 404, "route_not_found")
    response = client.put("/v1/jobs")
    fault(response, 405, "method_not_allowed")
    assert "POST" in response.headers["Allow"]


def test_every_answer_has_a_request_id_its_own_or_the_given_one(client: FlaskClient) -> None:
    assert client.get("/health", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    for odd in ("a b", "<x>", "x" * 129):
        given = client.get("/nope", headers={"x-request-id": odd}).headers["x-request-id"]
        assert len(given) == 32
    ids = {client.get("/health").headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


# Hosts and origins.


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000"])
def test_loopback_names_are_ours(client: FlaskClient, host: str) -> None:
    assert client.get("/v1/queue", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "[::1"])
def test_another_host_is_421(client: FlaskClient, host: str) -> None:
    fault(client.get("/v1/queue", headers={"Host": host}), 421, "unknown_host", "Host")


def test_a_probe_may_name_a_pod_by_its_address(client: FlaskClient) -> None:
    assert client.get("/health", headers={"Host": "10.1.2.3:8000"}).status_code == 200


def test_named_hosts_replace_the_loopback_names(store: Store, settings: Settings) -> None:
    client = a_door(store, settings, allowed_hosts="api.example, other.example")
    assert client.get("/v1/queue", headers={"Host": "API.example"}).status_code == 200
    fault(client.get("/v1/queue", headers={"Host": "localhost"}), 421, "unknown_host", "Host")


def test_no_page_of_another_origin_reads_answers_unless_it_is_named(store: Store, settings: Settings) -> None:
    origin = {"Origin": "https://app.example"}
    assert "Access-Control-Allow-Origin" not in a_door(store, settings).get("/v1/queue", headers=origin).headers
    named = a_door(store, settings, cors_origins="https://app.example", auth="required")
    ask = origin | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    preflight = named.options("/v1/jobs", headers=ask)
    assert preflight.status_code == 204
    assert preflight.headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert preflight.headers["Access-Control-Allow-Headers"] == "authorization"
    other = named.get("/v1/queue", headers={"Origin": "https://evil.example"})
    assert "Access-Control-Allow-Origin" not in other.headers


# What it says of itself.


def test_openapi_tells_every_route_and_every_reference_leads_somewhere(client: FlaskClient) -> None:
    spec = client.get("/openapi.json").get_json()
    undocumented = {"/docs", "/openapi.json"}
    routes = {
        re.sub(r"<(?:path:)?(\w+)>", r"{\1}", rule.rule)
        for rule in client.application.url_map.iter_rules()
        if not rule.rule.startswith(("/rq", "/static"))
    }
    assert routes - undocumented == set(spec["paths"])
    text = json.dumps(spec)
    known = {f"#/components/schemas/{name}" for name in spec["components"]["schemas"]}
    used = {piece.split('"')[0] for piece in text.split('"$ref": "')[1:]}
    assert used <= known
    fields = spec["components"]["schemas"]["SubmitBody"]["properties"]
    assert {"prompt", "messages", "deadline_ms", "metadata"} <= set(fields)


def test_the_page_of_routes_loads_nothing_from_elsewhere(client: FlaskClient) -> None:
    page = client.get("/docs")
    assert page.status_code == 200
    assert "/v1/chat/completions" in page.text
    assert "://" not in page.text
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]

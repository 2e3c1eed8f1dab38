"""API keys, request validation, and the operators' routes of the HTTP door, over a real store."""

import base64
import json
import re
from typing import Any

import pytest
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families

from shared.accounts.api_keys import ApiKeys
from shared.accounts.key_record import digest_of
from shared.accounts.tenants import Tenants
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import MODEL, advance_clock, heartbeat
from tests.support.door import a_door, admitted_job, fault, refused, serve, submit
from web.openapi import response_models
from web.runtime.start import load_admin_key


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    serve(store)
    return a_door(store, settings)


@pytest.fixture
def closed(store: Store, settings: Settings) -> FlaskClient:
    """A door that requires API keys."""
    serve(store)
    return a_door(store, settings, auth="required")


def with_key(store: Store, tenant: str = "blue", **options: object) -> dict[str, str]:
    return {"Authorization": f"Bearer {ApiKeys(store.client).create(tenant, **options).key}"}


# Keys and tenants.


def test_every_route_of_a_tenant_is_401_without_a_key(closed: FlaskClient) -> None:
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


def test_the_body_of_an_unauthorized_request_is_not_parsed(closed: FlaskClient) -> None:
    fault(closed.post("/v1/jobs", data=b"{", content_type="application/json"), 401, "invalid_api_key")


def test_an_api_key_identifies_its_tenant(closed: FlaskClient, store: Store) -> None:
    assert admitted_job(submit(closed, headers=with_key(store)))["tenant"] == "blue"


def test_a_removed_or_expired_key_gets_the_same_error_as_an_unknown_one(closed: FlaskClient, store: Store) -> None:
    removed, expired = with_key(store, label="one"), with_key(store, label="two", expires_in_ms=1_000)
    ApiKeys(store.client).rm("one")
    store.client.incrby(keys.clock(), 2_000)
    messages = {
        fault(submit(closed, headers=header), 401, "invalid_api_key")
        for header in (removed, expired, {"Authorization": "Bearer psk_invented"})
    }
    assert len(messages) == 1


@pytest.mark.parametrize("header", ["Bearer", "Bearer ", "Basic eDp5", "psk_x", "Bearer \u00ff"])
def test_a_malformed_authorization_header_is_401(closed: FlaskClient, header: str) -> None:
    fault(submit(closed, headers={"Authorization": header}), 401, "invalid_api_key")


def test_only_a_key_that_may_act_for_other_tenants_can_name_one(closed: FlaskClient, store: Store) -> None:
    plain, gateway = with_key(store), with_key(store, act_as="team-*")
    fault(submit(closed, headers=plain | {"X-Tenant": "team-a"}), 403, "tenant_not_allowed", "X-Tenant")
    fault(submit(closed, headers=gateway | {"X-Tenant": "red"}), 403, "tenant_not_allowed", "X-Tenant")
    assert admitted_job(submit(closed, headers=gateway | {"X-Tenant": "team-a"}))["tenant"] == "team-a"
    assert admitted_job(submit(closed, headers=gateway))["tenant"] == "blue"


def test_a_disabled_tenant_is_403(closed: FlaskClient, store: Store) -> None:
    key = with_key(store)
    Tenants(store.client).set("blue", TenantPolicy(disabled=True))
    fault(submit(closed, headers=key), 403, "tenant_disabled")


def test_a_tenant_whose_policy_another_program_spoiled_is_served_with_the_default(
    closed: FlaskClient, store: Store
) -> None:
    key = with_key(store)
    Tenants(store.client).set("blue", TenantPolicy(rpm=5))
    store.client.hset(keys.tenant("blue"), "policy_rpm", "abc")
    admitted_job(submit(closed, headers=key))
    assert closed.get("/v1/queue", headers=key).status_code == 200


def test_a_tenant_whose_record_another_program_replaced_is_served_with_the_default(
    closed: FlaskClient, store: Store
) -> None:
    key = with_key(store)
    store.client.set(keys.tenant("blue"), "no hash")
    admitted_job(submit(closed, headers=key))
    assert store.client.get(keys.spoiled(keys.tenant("blue"))) == b"no hash"


def test_a_key_whose_record_another_program_spoiled_is_not_accepted_and_other_keys_are(
    closed: FlaskClient, store: Store
) -> None:
    spoiled, other = with_key(store), with_key(store, "green")
    store.client.hset(keys.keys(), digest_of(spoiled["Authorization"].removeprefix("Bearer ")), '{"tenant": 5}')
    fault(submit(closed, headers=spoiled), 401, "invalid_api_key")
    admitted_job(submit(closed, headers=other))


def test_if_another_program_replaced_the_list_of_keys_the_door_says_that_it_cannot_serve(
    closed: FlaskClient, store: Store
) -> None:
    headers = with_key(store)
    store.client.set(keys.keys(), "another program's text")
    refused(submit(closed, headers=headers), "store_unavailable")


def test_if_auth_is_open_x_tenant_names_the_tenant_and_keys_are_ignored(client: FlaskClient) -> None:
    assert admitted_job(submit(client))["tenant"] == "default"
    assert (
        admitted_job(submit(client, headers={"X-Tenant": "blue", "Authorization": "Bearer nonsense"}))["tenant"]
        == "blue"
    )


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "ž", "a:b", "a.b"])
def test_an_invalid_tenant_name_is_422(client: FlaskClient, name: str) -> None:
    fault(submit(client, headers={"X-Tenant": name}), 422, "invalid_value", "X-Tenant")


# Operators.


def test_fleet_metrics_require_the_admin_key(closed: FlaskClient, store: Store, settings: Settings) -> None:
    fault(closed.get("/metrics/fleet"), 401, "admin_key_required")
    fault(closed.get("/metrics/fleet", headers=with_key(store)), 401, "admin_key_required")
    key = load_admin_key(settings)
    basic = base64.b64encode(f"anyone:{key}".encode()).decode()
    for header in (f"Bearer {key}", f"Basic {basic}"):
        assert closed.get("/metrics/fleet", headers={"Authorization": header}).status_code == 200


@pytest.mark.parametrize("header", ["Basic", "Basic !", "Basic \u00e9", "Basic bm9jb2xvbg==", "Basic /zr/", "Digest x"])
def test_fleet_metrics_are_401_for_a_malformed_authorization_header(closed: FlaskClient, header: str) -> None:
    fault(closed.get("/metrics/fleet", headers={"Authorization": header}), 401, "admin_key_required")


def test_fleet_metrics_count_admitted_and_refused_jobs(client: FlaskClient, store: Store) -> None:
    Tenants(store.client).set("blue", TenantPolicy(max_waiting=1))
    admitted_job(submit(client, headers={"X-Tenant": "blue"}, prompt="a"))
    refused(submit(client, headers={"X-Tenant": "blue"}, prompt="b"), "tenant_queue_full")
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(client.get("/metrics/fleet").text)
        for sample in family.samples
    }
    assert samples["penstock_inflight", ()] == 1
    assert samples["penstock_executed_total", ()] == 0
    assert samples["penstock_yielded_total", ()] == 1
    assert samples["penstock_jobs_waiting", (("model_name", "m"), ("tenant", "blue"))] == 1
    assert samples["penstock_retry_hint_seconds_count", ()] == 1


def test_process_metrics_are_labelled_by_route_and_never_by_path(client: FlaskClient) -> None:
    client.get("/v1/jobs/some-id")
    client.get("/no/such/page")
    text = client.get("/metrics").text
    assert 'route="/v1/jobs/<job_id>",status="404"' in text
    assert 'route="unknown",status="404"' in text
    assert "some-id" not in text
    assert "penstock_build_info{" in text


@pytest.mark.parametrize("path", ["/metrics", "/metrics/fleet"])
def test_metrics_are_sent_in_the_accepted_format_or_else_as_text(client: FlaskClient, path: str) -> None:
    for accepted, given in (
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text"),
        ("application/openmetrics-text; version=newest", "text/plain"),
        ("application/json", "text/plain"),
    ):
        response = client.get(path, headers={"Accept": accepted})
        assert (response.status_code, response.mimetype) == (200, given)


def test_the_readiness_check_says_why_the_door_is_not_ready(store: Store, settings: Settings) -> None:
    response = a_door(store, settings).get("/health/ready")
    assert response.status_code == 503
    assert response.get_json() == {"status": "not_ready", "reason": "no_worker", "workers": 0}
    serve(store)
    response = a_door(store, settings).get("/health/ready")
    assert response.status_code == 200
    response_models.Ready.model_validate(response.get_json())


def test_a_door_whose_workers_restart_again_and_again_is_not_ready(store: Store, settings: Settings) -> None:
    for worker in ("w1", "w2", "w3"):
        heartbeat(store, worker)
        advance_clock(store, 3_000)
        store.farewell(worker, MODEL, fault="the duty leases failed too often")
    heartbeat(store, "w4")
    response = a_door(store, settings).get("/health/ready")
    assert response.status_code == 503
    assert response.get_json() == {"status": "not_ready", "reason": "workers_restart", "workers": 1}
    response_models.Ready.model_validate(response.get_json())


# Valid and invalid requests.


def test_only_json_bodies_are_accepted(client: FlaskClient) -> None:
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
    admitted_job(submit(client, prompt="a" * 900))


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 5_000])
def test_a_body_that_is_not_json_is_400(client: FlaskClient, data: bytes) -> None:
    fault(client.post("/v1/jobs", data=data, content_type="application/json"), 400, "invalid_json")


def test_an_invalid_field_is_422_and_named(client: FlaskClient) -> None:
    assert "colour" in fault(submit(client, colour="red"), 422, "invalid_value", "colour")
    assert "deadline_ms=600001" in fault(submit(client, deadline_ms=600_001), 422, "invalid_value", "deadline_ms")
    fault(client.post("/v1/jobs", json=[]), 422, "invalid_value")
    fault(submit(client, prompt="nul \0 inside"), 422, "invalid_value", "prompt")
    fault(submit(client, headers={"Idempotency-Key": "k" * 257}), 422, "invalid_value", "Idempotency-Key")
    fault(submit(client, "/v1/jobs?wait_ms=soon"), 422, "invalid_value", "wait_ms")


def test_markup_in_metadata_is_returned_unchanged_and_as_json(client: FlaskClient) -> None:
    response = submit(client, metadata={"note": "<img src=x onerror=alert(1)>"})
    assert admitted_job(response)["metadata"]["note"] == "<img src=x onerror=alert(1)>"
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/v1/v1/chat/completions", "ends with /v1 once too often"),
        ("/chat/completions", "the base URL of OpenAI's clients ends with /v1"),
    ],
)
def test_a_path_of_a_wrong_base_url_is_named_with_what_is_wrong(client: FlaskClient, path: str, says: str) -> None:
    message = fault(client.post(path, json={}), 404, "route_not_found")
    assert message.startswith(f"no route has the path '{path}'; the API's paths begin with /v1/")
    assert says in message


def test_unknown_routes_and_methods_have_the_same_error_object(client: FlaskClient) -> None:
    assert "'/nope'" in fault(client.get("/nope"), 404, "route_not_found")
    response = client.put("/v1/jobs")
    fault(response, 405, "method_not_allowed")
    assert "POST" in response.headers["Allow"]


def test_every_answer_has_the_given_request_id_or_a_new_one(client: FlaskClient) -> None:
    assert client.get("/health", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    for invalid in ("a b", "<x>", "x" * 129):
        given = client.get("/nope", headers={"x-request-id": invalid}).headers["x-request-id"]
        assert len(given) == 32
    ids = {client.get("/health").headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


# The door's own documentation.


def succeeds_with_a_body(operation: dict[str, Any]) -> bool:
    """Return whether each successful response of an operation has a body that the document describes."""
    return all(each.get("content") for status, each in operation["responses"].items() if status.startswith("2"))


def test_openapi_lists_every_route_and_every_reference_resolves(client: FlaskClient) -> None:
    spec = client.get("/openapi.json").get_json()
    undocumented = {"/", "/favicon.ico", "/docs", "/docs/api-reference.js", "/docs/start.js", "/openapi.json"}
    routes = {
        re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
        for rule in client.application.url_map.iter_rules()
        if not rule.rule.startswith(("/rq", "/static", "/console"))
    }
    assert routes - undocumented == set(spec["paths"])
    text = json.dumps(spec)
    known = {f"#/components/schemas/{name}" for name in spec["components"]["schemas"]}
    used = {piece.split('"')[0] for piece in text.split('"$ref": "')[1:]}
    assert used <= known
    operations = [(path, one) for path, methods in spec["paths"].items() for one in methods.values()]
    without_body = {path for path, one in operations if not succeeds_with_a_body(one)}
    assert without_body == {"/metrics", "/metrics/fleet"}, "only these have Prometheus' text format"
    fields = spec["components"]["schemas"]["SubmitBody"]["properties"]
    assert {"prompt", "messages", "deadline_ms", "metadata"} <= set(fields)

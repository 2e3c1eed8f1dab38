"""Keys on Anthropic's routes, and on the paths and methods that these lack: `x-api-key` counts as a bearer key."""

from shared.accounts.api_keys import ApiKeys
from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.door import a_door, serve
from tests.support.messages import failed

ROUTE = "/v1/messages"


def test_the_key_is_taken_from_x_api_key_unless_authorization_has_one(store: Store, settings: Settings) -> None:
    serve(store)
    closed = a_door(store, settings, auth="required")
    good, path = ApiKeys(store.client).create("blue").key, f"{ROUTE}/count_tokens"
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert closed.post(path, json=body, headers={"x-api-key": good}).status_code == 200
    assert closed.post(path, json=body, headers={"Authorization": f"Bearer {good}"}).status_code == 200
    both = {"Authorization": f"Bearer {good}", "x-api-key": "psk_unknown"}
    assert closed.post(path, json=body, headers=both).status_code == 200
    for headers in ({}, {"x-api-key": "psk_unknown"}, {"Authorization": "Bearer psk_unknown", "x-api-key": good}):
        told = failed(closed.post(path, json=body, headers=headers), 401, "authentication_error", "invalid_api_key")
        assert "x-api-key" in told["error"]["message"]
    assert closed.get("/v1/models", headers={"x-api-key": good}).status_code == 401, "only the routes of this API"


def test_anthropics_package_lists_models_with_its_own_header(store: Store, settings: Settings) -> None:
    serve(store)
    closed = a_door(store, settings, auth="required")
    headers = {"x-api-key": ApiKeys(store.client).create("blue").key, "anthropic-version": "2023-06-01"}
    (model,) = closed.get("/v1/models", headers=headers).get_json()["data"]
    assert (model["type"], model["id"], model["display_name"]) == ("model", "m", "m")
    assert closed.get("/v1/models/m", headers=headers).get_json() == model
    assert closed.get("/v1/models", headers=headers | {"x-api-key": "psk_unknown"}).status_code == 401


def test_every_path_of_a_ranking_needs_a_key_before_its_body_is_read(store: Store, settings: Settings) -> None:
    serve(store)
    closed = a_door(store, settings, auth="required")
    good = {"Authorization": f"Bearer {ApiKeys(store.client).create('blue').key}"}
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        assert closed.post(path, data="no JSON").status_code == 401
        assert closed.post(path, data="no JSON", headers=good).status_code == 415
        body = closed.post(path, json={"model": "m", "query": "a", "documents": []}, headers=good).get_json()
        assert (body["error"]["code"], body["error"]["param"]) == ("invalid_value", "documents")


def test_a_path_or_a_method_that_these_routes_lack_is_told_as_such_to_a_client_with_a_key(
    store: Store, settings: Settings
) -> None:
    closed = a_door(store, settings, auth="required")
    headers = {"x-api-key": ApiKeys(store.client).create("blue").key}
    for path in (f"{ROUTE}/batches", f"{ROUTE}/count_tokens/", f"{ROUTE}/"):
        failed(closed.post(path, json={}, headers=headers), 404, "not_found_error", "route_not_found")
    for path in (ROUTE, f"{ROUTE}/count_tokens"):
        response = closed.get(path, headers=headers)
        failed(response, 405, "invalid_request_error", "method_not_allowed")
        assert "POST" in response.headers["Allow"]
    for wrong in ({}, {"x-api-key": "psk_unknown"}):
        told = failed(closed.get(ROUTE, headers=wrong), 401, "authentication_error", "invalid_api_key")
        assert "x-api-key" in told["error"]["message"]
    assert closed.get(f"{ROUTE}x", headers=headers).status_code == 401, "only the paths of this API"

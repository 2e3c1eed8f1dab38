"""Tests of routes over HTTP: headers, models, refusals, and who may use a route."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from shared.accounts.routes import Pools, Routes
from shared.accounts.tenants import Tenants
from shared.jobs.route import Route, RouteStep
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from tests.support.processes import Stage, wait_for
from tests.support.served import SIM, Served
from web.openapi import response_models

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A door with a route to two pools: `first` for prompts of at most four words, and `second`."""
    with Stage(tmp_path_factory.mktemp("routes"), **SIM) as stage:
        Routes(stage.client).add(Route("smart", (RouteStep("first", max_prompt=4), RouteStep("second"))))
        Routes(stage.client).add(Route("away", (RouteStep("nobody"),)))
        Pools(stage.client).change("first", {"local": True})
        for name in ("first", "second"):
            stage.worker(PENSTOCK_MODEL_NAME=name)
        with Served(stage) as served:
            yield served
        stage.assert_sound()


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        yield client


def test_the_models_list_has_a_route_while_one_of_its_pools_is_live(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["first", "second", "smart"]
    assert client.models.retrieve("smart").id == "smart"


def test_a_job_of_a_route_says_where_it_went_and_why(served: Served) -> None:
    response = served.submit(model="smart", prompt="one two")
    assert response.headers["X-Penstock-Route"] == "first; why=first"
    assert response.json()["routed"] == {"pool": "first", "why": "first"}
    assert response.json()["model"] == "first"
    response = served.submit(model="smart", prompt="one two three four five")
    assert response.headers["X-Penstock-Route"] == "second; why=size"
    assert "X-Penstock-Route" not in served.submit(model="first").headers
    assert "routed" not in served.submit(model="first").json()


@pytest.mark.parametrize("streams", [False, True])
def test_openais_routes_have_the_header_too(served: Served, streams: bool) -> None:
    for path, body in (
        ("chat/completions", CHAT),
        ("completions", {"prompt": "one", "max_tokens": 2}),
        ("responses", {"input": "one", "max_output_tokens": 16}),
    ):
        response = served.http.post(f"/v1/{path}", json=body | {"model": "smart", "stream": streams})
        assert response.status_code == 200, response.text
        assert response.headers["X-Penstock-Route"] == "first; why=first", path


def test_a_private_request_stays_in_local_pools_or_is_refused(served: Served) -> None:
    response = served.submit(model="smart", prompt="one two", private=True)
    assert response.json()["routed"]["pool"] == "first"
    # The prompt is too long for the local pool, and the other pool is not local.
    for body in ({"model": "smart", "prompt": "one two three four five"}, {"model": "second"}):
        refusal = served.submit(**body, private=True)
        assert (refusal.status_code, refusal.json()["reason"]) == (503, "no_suitable_pool")
        assert (refusal.headers["x-should-retry"], refusal.json()["retry_hint_ms"]) == ("false", None)


@pytest.mark.parametrize("path", ["jobs", "chat/completions", "completions", "responses"])
def test_the_requests_of_a_private_tenant_are_private_on_every_route(served: Served, path: str) -> None:
    Tenants(served.stage.client).set("quiet", TenantPolicy(private=True))
    prompts = {"jobs": {"prompt": "one"}, "completions": {"prompt": "one"}, "responses": {"input": "one"}}
    body = prompts.get(path, CHAT) | {"model": "second"}
    response = served.http.post(f"/v1/{path}", json=body, headers={"X-Tenant": "quiet"})
    assert (response.status_code, response.json()["reason"]) == (503, "no_suitable_pool")


def test_a_request_whose_pools_all_have_no_worker_is_refused_with_the_routes_name(served: Served) -> None:
    refusal = served.submit(model="away")
    assert (refusal.status_code, refusal.json()["reason"]) == (503, "no_worker")
    assert "'away'" in refusal.json()["error"]["message"]


def test_a_spoiled_route_is_not_found(served: Served) -> None:
    stored = served.stage.client.hget(keys.routes(), "away")
    served.stage.client.hset(keys.routes(), "away", '{"pools":[{"pool":"first","speed":9}]}')
    wait_for(lambda: served.submit(model="away").status_code == 404, "the door to see that the route is spoiled")
    assert served.submit(model="away").json()["error"]["code"] == "model_not_found"
    served.stage.client.hset(keys.routes(), "away", stored)
    wait_for(lambda: served.submit(model="away").status_code == 503, "the door to see that the route is mended")


def test_a_route_serves_requests_from_its_first_second_on_and_no_longer_than_it_exists(served: Served) -> None:
    routes = Routes(served.stage.client)
    for _ in range(3):
        routes.add(Route("new", (RouteStep("second"),)))
        wait_for(lambda: served.submit(model="new").status_code == 202, "the door to know the route")
        routes.remove("new")
        assert served.submit(model="new").status_code == 404


def test_a_policy_with_models_must_name_the_route(served: Served) -> None:
    Tenants(served.stage.client).set("narrow", TenantPolicy(models=("first", "second")))
    Tenants(served.stage.client).set("wide", TenantPolicy(models=("smart",), default_model="smart"))
    assert served.submit("narrow", model="smart").status_code == 404
    assert served.submit("wide", prompt="one").json()["routed"]["pool"] == "first"
    models = {
        name: [model["id"] for model in served.http.get("/v1/models", headers={"X-Tenant": name}).json()["data"]]
        for name in ("narrow", "wide")
    }
    assert models == {"narrow": ["first", "second"], "wide": ["smart"]}


def test_a_repeated_request_with_a_key_gets_its_job_whatever_became_of_the_route(served: Served) -> None:
    body, headers = {"model": "smart", "prompt": "one two", "max_tokens": 2}, {"Idempotency-Key": "routed-once"}
    first, again = (served.http.post("/v1/jobs", json=body, headers=headers) for _ in range(2))
    assert (first.json()["id"], first.json()["routed"]) == (again.json()["id"], again.json()["routed"])


def test_the_quote_of_a_route_is_that_of_the_pool_which_would_get_the_job(served: Served) -> None:
    def quote(**body: Any) -> dict[str, Any]:
        response = served.http.post("/v1/quote", json={"prompt": "one two", "max_tokens": 2} | body)
        assert response.status_code == 200, response.text
        return response_models.Quote.model_validate(response.json()).model_dump()

    quoted = quote(model="smart")
    assert (quoted["model"], quoted["verdict"], quoted["routed"]) == (
        "first",
        "admitted",
        {"pool": "first", "why": "first"},
    )
    assert quoted["cost_mwt"] == quote(model="first")["cost_mwt"] > 0
    quoted = quote(model="smart", prompt="one two three four five")
    assert (quoted["model"], quoted["routed"]) == ("second", {"pool": "second", "why": "size"})
    assert quote(model="first")["routed"] is None


def test_a_private_request_is_not_quoted_for_a_pool_that_is_not_local(served: Served) -> None:
    body = {"model": "smart", "prompt": "one two three four five", "private": True}
    quoted = served.http.post("/v1/quote", json=body).json()
    assert (quoted["verdict"], quoted["refusal"]["reason"]) == ("yield", "no_suitable_pool")
    assert "routed" not in quoted


def test_the_quote_of_a_route_without_a_worker_is_the_refusal_of_a_submit(served: Served) -> None:
    quoted = served.http.post("/v1/quote", json={"model": "away", "prompt": "one"}).json()
    refused = served.submit(model="away", prompt="one").json()
    assert quoted["refusal"]["reason"] == refused["reason"] == "no_worker"
    assert (quoted["model"], quoted["eta_ms"]) == ("nobody", None)

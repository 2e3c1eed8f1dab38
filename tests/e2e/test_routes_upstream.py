"""Tests of routes between a local model and two upstreams: spill, cap, escalation, canary, and what stays local."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from shared.accounts.routes import Pools, Routes
from shared.jobs.route import Route, RouteStep
from tests.support.processes import Stage, wait_for
from tests.support.routed import SPENT_KEYS
from tests.support.served import Served
from tests.support.upstream_server import UpstreamServer

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 12}
#: The usage that each upstream reports for an answer.
PROMPT_TOKENS, ANSWER_TOKENS = 21, 3
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
ROUTES = {
    "spilling": (RouteStep("cellar"), RouteStep("one")),
    "capped": (RouteStep("one"), RouteStep("two")),
    "costly": (RouteStep("two"),),
    "checked": (RouteStep("one"), RouteStep("two")),
    "trial": (RouteStep("two", share=3_000), RouteStep("one")),
    "tooled": (RouteStep("cellar"), RouteStep("two")),
    "clouds": (RouteStep("one"), RouteStep("two")),
}


@pytest.fixture(scope="module")
def upstreams() -> Iterator[dict[str, UpstreamServer]]:
    with UpstreamServer() as one, UpstreamServer() as two:
        one.models, two.models = ["one"], ["two"]
        yield {"one": one, "two": two}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, upstreams: dict[str, UpstreamServer]) -> Iterator[Served]:
    """A door before `cellar`, which is local and slow (10 words a second in one slot), and the upstreams."""
    with Stage(tmp_path_factory.mktemp("upstreams"), PENSTOCK_AUTH="open", PENSTOCK_LEASE_MS="2500") as stage:
        for name, steps in ROUTES.items():
            Routes(stage.client).add(Route(name, steps))
        Pools(stage.client).change("cellar", {"local": True})
        rates = {"PENSTOCK_SIM_DECODE_TPS": "10", "PENSTOCK_SIM_PREFILL_TPS": "100000"}
        stage.worker(PENSTOCK_ENGINE="sim", PENSTOCK_MODEL_NAME="cellar", PENSTOCK_MAX_BATCH_SIZE="1", **rates)
        for name, server in upstreams.items():
            stage.worker(PENSTOCK_ENGINE="upstream", PENSTOCK_UPSTREAM_URL=server.url, PENSTOCK_UPSTREAM_MODEL=name)
        with Served(stage, PENSTOCK_ENGINE="sim", PENSTOCK_MODEL_NAME="cellar") as served:
            live = ["cellar", "one", "two"]
            wait_for(lambda: sorted(stage.store.snapshot().live_models) == live, "the pools to be live")
            yield served
        stage.assert_sound()


@pytest.fixture(autouse=True)
def terms(served: Served) -> Iterator[None]:
    """Prices of 1 and 2 for each token of `two`, and no cap; what was spent is forgotten after each test."""
    pools = Pools(served.stage.client)
    pools.change("two", {"prompt_price_micro": 1_000, "answer_price_micro": 2_000, "day_cap_micro": None})
    yield
    wait_for(lambda: served.stage.inflight() == 0, "all jobs to end")
    for key in served.stage.client.keys(SPENT_KEYS):
        served.stage.client.delete(key)


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        yield client


def chat(client: openai.OpenAI, **more: Any) -> tuple[str, Any]:
    """Return the header of the route and the answer to a chat."""
    raw = client.chat.completions.with_raw_response.create(**(CHAT | more))
    return raw.headers["X-Penstock-Route"], raw.parse()


def test_a_request_spills_to_the_upstream_only_while_the_local_model_would_refuse_it(
    served: Served, client: openai.OpenAI, upstreams: dict[str, UpstreamServer]
) -> None:
    # The answers of the other tests' tenant are short, so the local model would not expect this one's to be long.
    before, tenant = len(upstreams["one"].bodies), {"X-Tenant": "newcomer"}
    busy = served.submit("newcomer", model="spilling", max_tokens=30, prompt="one two")
    assert busy.headers["X-Penstock-Route"] == "cellar; why=first"
    # The local model needs two seconds for it, after the three of the other job.
    deadline: Any = {"extra_body": {"deadline_ms": 2_500}, "extra_headers": tenant}
    where, answer = chat(client, model="spilling", max_tokens=20, **deadline)
    assert where == "one; why=spill"
    assert answer.model == "one"
    assert len(upstreams["one"].bodies) == before + 1
    private = {"model": "spilling", "max_tokens": 20, "prompt": "one two", "deadline_ms": 2_500, "private": True}
    refusal = served.submit("newcomer", **private)
    assert (refusal.status_code, refusal.json()["reason"]) == (503, "deadline_unmeetable")
    served.http.delete(f"/v1/jobs/{busy.json()['id']}", headers=tenant)
    wait_for(lambda: served.stage.inflight() == 0, "the local model to be free")
    where, _ = chat(client, model="spilling", max_tokens=2)
    assert where == "cellar; why=first"


def test_the_tokens_that_are_counted_and_paid_are_the_upstreams(served: Served, client: openai.OpenAI) -> None:
    _, answer = chat(client, model="costly")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (PROMPT_TOKENS, ANSWER_TOKENS)
    chunks = list(client.chat.completions.create(**CHAT, model="costly", stream=True))
    assert [chunk.usage for chunk in chunks if chunk.usage] == []
    options: Any = {"stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(**CHAT, model="costly", stream=True, **options))
    assert [chunk.usage.prompt_tokens for chunk in chunks if chunk.usage] == [PROMPT_TOKENS]
    wait_for(lambda: served.stage.inflight() == 0, "all jobs to end")
    (day,) = served.stage.client.keys(SPENT_KEYS)
    paid = str(3 * (PROMPT_TOKENS + 2 * ANSWER_TOKENS)).encode()
    assert served.stage.client.hgetall(day) == {b"two": paid, b"two|default": paid}
    counted = 'penstock_tokens_total{kind="completion",model_name="two",tenant="default"}'
    assert served.figure(counted) >= 3 * ANSWER_TOKENS


def test_a_cap_refuses_and_a_route_goes_past_it(served: Served, client: openai.OpenAI) -> None:
    # Each answer costs 27, and each request counts as 24 and its estimated prompt until then.
    Pools(served.stage.client).change("two", {"day_cap_micro": 75})
    spent = [chat(client, model="costly")[0] for _ in range(2)]
    assert spent == ["two; why=first"] * 2
    wait_for(lambda: served.stage.inflight() == 0, "both jobs to end")
    with pytest.raises(openai.RateLimitError) as caught:
        chat(client, model="costly")
    assert caught.value.code == "budget_exhausted"
    assert caught.value.response.headers["x-should-retry"] == "false"
    Routes(served.stage.client).remove("capped")
    Routes(served.stage.client).add(Route("capped", (RouteStep("two"), RouteStep("one"))))
    assert chat(client, model="capped")[0] == "one; why=budget"


@pytest.mark.parametrize("check", ["invalid_json", "length"])
def test_an_answer_that_fails_its_check_moves_to_the_next_upstream(
    client: openai.OpenAI, upstreams: dict[str, UpstreamServer], check: str
) -> None:
    before = {name: len(server.bodies) for name, server in upstreams.items()}
    where, answer = chat(client, model="checked", extra_body={"escalate": {"if": [check]}})
    assert (where, answer.model) == ("two; why=escalated", "two")
    assert answer.choices[0].message.content == "w0 w1 w2 "
    assert {name: len(server.bodies) - before[name] for name, server in upstreams.items()} == {"one": 1, "two": 1}
    assert "escalate" not in upstreams["one"].bodies[-1]
    assert "escalate" not in upstreams["two"].bodies[-1]


def test_an_answer_that_passes_its_check_stays(client: openai.OpenAI, upstreams: dict[str, UpstreamServer]) -> None:
    before = len(upstreams["two"].bodies)
    upstreams["one"].will("tools")
    arguments: dict[str, Any] = {"tools": TOOLS, "extra_body": {"escalate": {"if": ["invalid_json"]}}}
    where, _ = chat(client, model="checked", **arguments)
    assert where == "one; why=first"
    assert len(upstreams["two"].bodies) == before


def test_a_native_job_says_that_it_escalated_and_shows_no_text_of_the_first_answer(served: Served) -> None:
    body = {"model": "checked", "prompt": "one two", "escalate": {"if": ["length"]}}
    response = served.http.post("/v1/jobs?wait_ms=20000", json=body)
    job = response.json()
    assert (job["status"], job["routed"]) == ("succeeded", {"pool": "two", "why": "escalated"})
    assert (job["attempts"], job["usage"]["completion_tokens"]) == (1, ANSWER_TOKENS)
    events = served.http.get(f"/v1/jobs/{job['id']}/events").text
    assert "event: text" not in events.partition("event: started")[2].partition("event: started")[0]


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
def test_a_stream_cannot_escalate(served: Served, path: str) -> None:
    body = {"model": "checked", "stream": True, "escalate": {"if": ["length"]}}
    body |= CHAT if path == "chat/completions" else {"input": "one", "max_output_tokens": 16}
    response = served.http.post(f"/v1/{path}", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "escalate")


@pytest.mark.parametrize("escalate", [{}, {"if": []}, {"if": ["ugly"]}, {"if": ["length"] * 3}, {"when": ["length"]}])
def test_an_unknown_check_is_rejected(served: Served, escalate: dict[str, Any]) -> None:
    response = served.submit(model="checked", escalate=escalate)
    assert response.status_code == 422
    assert response.json()["error"]["param"].startswith("escalate")


def test_a_share_of_the_requests_goes_to_the_pool_on_trial(
    served: Served, upstreams: dict[str, UpstreamServer]
) -> None:
    found = [served.submit(f"t{number}", model="trial").headers["X-Penstock-Route"] for number in range(40)]
    assert set(found) == {"two; why=canary", "one; why=first"}
    # It should get 3 in 10 of 40 requests. Fewer than 1 or more than 30 go to it once in 10^6 runs.
    assert 1 <= found.count("two; why=canary") <= 30


def test_a_request_with_tools_goes_past_the_local_model(client: openai.OpenAI) -> None:
    assert chat(client, model="tooled", max_tokens=2)[0] == "cellar; why=first"
    assert chat(client, model="tooled", tools=TOOLS)[0] == "two; why=features"


def test_a_private_request_never_reaches_an_upstream(
    served: Served, client: openai.OpenAI, upstreams: dict[str, UpstreamServer]
) -> None:
    before = {name: len(server.bodies) for name, server in upstreams.items()}
    for model in ("clouds", "one", "two", "trial", "checked"):
        for more in ({}, {"tools": TOOLS}):
            with pytest.raises(openai.APIStatusError) as caught:
                chat(client, model=model, **more, extra_body={"private": True})
            assert caught.value.code == "no_suitable_pool"
    assert chat(client, model="spilling", max_tokens=2, extra_body={"private": True})[0] == "cellar; why=first"
    assert {name: len(server.bodies) for name, server in upstreams.items()} == before


def test_what_continues_a_private_response_never_reaches_an_upstream(
    client: openai.OpenAI, upstreams: dict[str, UpstreamServer]
) -> None:
    before = {name: len(server.bodies) for name, server in upstreams.items()}
    secret: dict[str, Any] = {"input": "a secret", "extra_body": {"private": True}}
    first = client.responses.create(model="cellar", max_output_tokens=2, **secret)
    more: dict[str, Any] = {"input": "go on", "max_output_tokens": 2}
    second = client.responses.create(model="spilling", previous_response_id=first.id, **more)
    for earlier in (first, second):
        for model in ("one", "clouds"):
            with pytest.raises(openai.APIStatusError) as caught:
                client.responses.create(model=model, previous_response_id=earlier.id, **more)
            assert caught.value.code == "no_suitable_pool"
    assert {name: len(server.bodies) for name, server in upstreams.items()} == before


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2], [3, 4]], ["a text", "another"]])
def test_several_prompts_and_token_ids_go_past_the_local_model_too(
    served: Served, client: openai.OpenAI, upstreams: dict[str, UpstreamServer], prompt: Any
) -> None:
    before, tenant = len(upstreams["one"].bodies), {"X-Tenant": "newcomer"}
    busy = served.submit("newcomer", model="spilling", max_tokens=30, prompt="one two")
    more: dict[str, Any] = {"extra_body": {"deadline_ms": 2_500}, "extra_headers": tenant}
    answer = client.completions.create(model="spilling", prompt=prompt, max_tokens=20, **more)
    assert [choice.index for choice in answer.choices] == list(range(1 if prompt == [1, 2, 3] else 2))
    assert [body["prompt"] for body in upstreams["one"].bodies[before:]] == [prompt]
    served.http.delete(f"/v1/jobs/{busy.json()['id']}", headers=tenant)

"""No private prompt reaches an upstream by any route of the API, while upstreams fail and processes are killed."""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.accounts.routes import Pools, Routes
from shared.accounts.tenants import Tenants
from shared.jobs.route import Route, RouteStep
from shared.jobs.tenant_policy import TenantPolicy
from tests.support.ports import free_port
from tests.support.processes import Process, Stage, wait_for
from tests.support.upstream_server import UpstreamServer

#: The words of private prompts, and of the others.
SECRET, OPEN = "heronmarsh", "sparrowhill"
SEED, REQUESTS = 23, 120
ROUTES = {
    "spilling": (RouteStep("cellar"), RouteStep("one"), RouteStep("two")),
    "upward": (RouteStep("one"), RouteStep("two"), RouteStep("cellar")),
    "canary": (RouteStep("two", share=5_000), RouteStep("cellar"), RouteStep("one")),
    "clouds": (RouteStep("one"), RouteStep("two")),
}
MODELS = (*ROUTES, "cellar", "one", "two")
#: The faults of an upstream for some of its requests.
FAULTS = ("busy", "loading", "fault", "cut", "crash", "stall", "reject", "garbage", "tools", "answer")


@pytest.fixture
def upstreams() -> Iterator[dict[str, UpstreamServer]]:
    with UpstreamServer() as one, UpstreamServer() as two:
        one.models, two.models = ["one"], ["two"]
        yield {"one": one, "two": two}


def a_worker(stage: Stage, model: str, upstreams: dict[str, UpstreamServer], *, wait: bool = True) -> Process:
    if model == "cellar":
        rates = {"PENSTOCK_SIM_DECODE_TPS": "100", "PENSTOCK_SIM_PREFILL_TPS": "10000"}
        return stage.worker(wait=wait, PENSTOCK_ENGINE="sim", PENSTOCK_MODEL_NAME="cellar", **rates)
    environ = {"PENSTOCK_UPSTREAM_URL": upstreams[model].url, "PENSTOCK_UPSTREAM_MODEL": model}
    return stage.worker(wait=wait, PENSTOCK_ENGINE="upstream", PENSTOCK_UPSTREAM_GAP_MS="1000", **environ)


def a_request(moments: random.Random) -> tuple[str, dict[str, Any], dict[str, str], bool]:
    """Return the path, the body and the headers of a request, and whether its prompt is private."""
    tenant = moments.choice(["quiet", "loud"])
    says_so = moments.random() < 0.5
    is_private = says_so or tenant == "quiet"
    prompt = " ".join([SECRET if is_private else OPEN] * moments.randrange(1, 20))
    messages = [{"role": "user", "content": prompt}]
    kinds: dict[str, dict[str, Any]] = {
        "jobs": {"prompt": prompt, "max_tokens": 20},
        "chat/completions": {"messages": messages, "max_tokens": 20},
        "completions": {"prompt": prompt, "max_tokens": 20},
        "responses": {"input": prompt, "max_output_tokens": 20, "background": moments.random() < 0.3},
        "messages": {"messages": messages, "max_tokens": 20},
        "embeddings": {"input": [prompt]},
        "quote": {"prompt": prompt, "max_tokens": 20},
    }
    kind = moments.choice(sorted(kinds))
    body = kinds[kind] | {"model": moments.choice(MODELS), "deadline_ms": moments.choice([1_500, 20_000])}
    body |= {"private": True} if says_so else {}
    if kind in {"chat/completions", "completions", "responses", "messages"} and moments.random() < 0.4:
        body |= {"stream": True} if not body.get("background") else {}
    elif kind in {"jobs", "chat/completions", "responses"} and moments.random() < 0.6:
        body["escalate"] = {"if": ["length", "invalid_json"]}
    if kind == "chat/completions" and moments.random() < 0.3:
        body |= {"tools": [{"type": "function", "function": {"name": "f"}}]}
    return kind, body, {"X-Tenant": tenant}, is_private


def send(url: str, request: tuple[str, dict[str, Any], dict[str, str], bool]) -> None:
    """Send a request, and continue a response that was answered; an error is an answer too."""
    kind, body, headers, _ = request
    path = f"{url}/v1/{kind}" + ("?wait_ms=10000" if kind == "jobs" else "")
    try:
        answer = httpx.post(path, json=body, headers=headers, timeout=30)
        if kind == "responses" and answer.status_code == 200 and not body.get("stream"):
            previous = {"previous_response_id": answer.json()["id"], "input": "go on", "max_output_tokens": 4}
            httpx.post(path, json=previous | {"model": "upward"}, headers=headers, timeout=30)
    except httpx.HTTPError:
        pass


def a_batch(url: str, tenant: str, *, says_so: bool) -> None:
    """Create a batch with a request for each model."""
    word = SECRET if says_so or tenant == "quiet" else OPEN
    body: dict[str, Any] = {"messages": [{"role": "user", "content": word}], "max_tokens": 9}
    body |= {"private": True} if says_so else {}
    line = {"method": "POST", "url": "/v1/chat/completions"}
    lines = [json.dumps(line | {"custom_id": str(i), "body": body | {"model": m}}) for i, m in enumerate(MODELS)]
    headers, files = {"X-Tenant": tenant}, {"file": ("lines.jsonl", "\n".join(lines))}
    uploaded = httpx.post(f"{url}/v1/files", files=files, data={"purpose": "batch"}, headers=headers).json()["id"]
    batch = {"input_file_id": uploaded, "endpoint": "/v1/chat/completions", "completion_window": "1h"}
    assert httpx.post(f"{url}/v1/batches", json=batch, headers=headers).status_code == 200


@pytest.mark.timeout(300)
def test_no_private_prompt_reaches_an_upstream_by_any_route_of_the_api(
    tmp_path: Path, upstreams: dict[str, UpstreamServer]
) -> None:
    moments = random.Random(SEED)
    with Stage(tmp_path, PENSTOCK_AUTH="open", PENSTOCK_LEASE_MS="2000", PENSTOCK_MAX_ATTEMPTS="5") as stage:
        for name, steps in ROUTES.items():
            Routes(stage.client).add(Route(name, steps))
        Pools(stage.client).change("cellar", {"local": True})
        Tenants(stage.client).set("quiet", TenantPolicy(private=True))
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        stage.web(port)
        workers = {model: a_worker(stage, model, upstreams) for model in ("cellar", "one", "two")}
        for tenant in ("quiet", "loud"):
            for says_so in (False, True):
                a_batch(url, tenant, says_so=says_so)
        for server in upstreams.values():
            server.will(*moments.choices(FAULTS, k=40))
        with ThreadPoolExecutor(12) as pool:
            sent = [pool.submit(send, url, a_request(moments)) for _ in range(REQUESTS)]
            for number, model in enumerate(("one", "cellar", "two"), 1):
                sent[number * REQUESTS // 4].result(120)
                workers[model].kill()
                workers[model] = a_worker(stage, model, upstreams, wait=False)
        wait_for(lambda: stage.inflight() == 0, "all jobs to end", timeout_s=120)
        received = [json.dumps(body) for server in upstreams.values() for body in server.bodies]
        assert not [body for body in received if SECRET in body]
        assert len([body for body in received if OPEN in body]) > 20
        stage.assert_sound()

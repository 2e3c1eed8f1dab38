"""The semantic cache at the door: hits, what they cost, what separates them, and how a request skips them."""

import json
import math
import threading
import time
from collections.abc import Iterator
from typing import Any, Self

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from shared.accounts.api_keys import ApiKeys
from shared.accounts.routes import Pools
from shared.accounts.tenants import Tenants
from shared.jobs.job import new_job_id
from shared.jobs.outcomes import Outcome
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.answer_cache import drop_answers
from shared.store.store import Store
from tests.support.builders import MODEL, an_ending, stat
from tests.support.door import a_door, fault, serve
from tests.support.embedder import Embedder
from tests.support.passages import FakeDatabase, a_collection
from tests.support.processes import wait_for
from web.openapi import compatible_models
from web.runtime.context import DoorContext
from web.runtime.current import EXTENSION_NAME

BLUE = {"X-Tenant": "blue"}
#: The embedder counts words, so these have vectors that are near each other.
ASKED = "How do I bake a loaf of bread at home with my children?"
AGAIN = "How can I bake a loaf of bread at home with my children?"
OTHER = "How do I bake a loaf of bread at home without my children?"


@pytest.fixture
def embedder(store: Store) -> Iterator[Embedder]:
    with Embedder(store, width=64) as embedder:
        yield embedder


def serve_both(store: Store) -> None:
    for model in (MODEL, "other"):
        serve(store, f"w-{model}", model=model)


class Answers:
    """Claims and ends the jobs of two models while the context is open: `answer 1`, `answer 2`, and so on."""

    def __init__(self, store: Store) -> None:
        self._store, self._count, self._stops = store, 0, threading.Event()
        self._thread = threading.Thread(target=self._run, name="answers", daemon=True)
        self.reason, self.outcome = "stop", Outcome.SUCCEEDED

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stops.set()
        self._thread.join(20)

    def _run(self) -> None:
        beat_s = -math.inf
        while not self._stops.wait(0.004):
            if time.monotonic() >= beat_s + 1.0:
                # On a slow machine, a test takes longer than workers without a heartbeat count as live.
                beat_s = time.monotonic()
                serve_both(self._store)
            for model in (MODEL, "other"):
                for job in self._store.claim(f"w-{model}", new_job_id(), model, room=4, cells_free=100_000):
                    self._count += 1
                    reason = self.reason if self.outcome is Outcome.SUCCEEDED else ""
                    text = f"answer {self._count}"
                    ending = an_ending(job.held, outcome=self.outcome, finish_reason=reason, text=text)
                    self._store.settle(ending, f"w-{model}")


@pytest.fixture
def answers(store: Store) -> Iterator[Answers]:
    serve_both(store)
    with Answers(store) as answers:
        yield answers


@pytest.fixture
def client(store: Store, settings: Settings, embedder: Embedder, answers: Answers) -> FlaskClient:
    """A door with an embedding model, and two tenants whose policies allow the cache."""
    del embedder, answers
    for tenant in ("blue", "red"):
        Tenants(store.client).set(tenant, TenantPolicy(semantic_cache=True))
    # Seconds, because this is about answers and not about time.
    return a_door(store, settings, embedding_model="vectors", retrieval_budget_ms=10_000)


def post(client: FlaskClient, text: str, headers: dict[str, str] | None = None, **body: Any) -> TestResponse:
    messages = [{"role": "user", "content": text}]
    fields = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 20, "deadline_ms": 600_000} | body
    given = headers or {}
    return client.post("/v1/chat/completions", json=fields, headers=given if "Authorization" in given else BLUE | given)


def cached(response: TestResponse) -> dict[str, Any] | None:
    """Return the object `cached` of an answer; None if a worker has computed it."""
    assert response.status_code == 200, response.text
    found: dict[str, Any] | None = response.get_json().get("cached")
    return found


def counted(client: FlaskClient, result: str) -> float:
    context: DoorContext = client.application.extensions[EXTENSION_NAME]
    value: float = context.metrics.semantic_cache.labels(result)._value.get()
    return value


def test_a_prompt_that_asks_the_same_gets_the_earlier_answer_without_a_job(client, store, embedder):
    first = post(client, ASKED).get_json()
    assert "cached" not in first
    admitted = stat(store, "admitted|blue")
    body = post(client, AGAIN).get_json()
    assert body["choices"] == first["choices"]
    assert 0.85 <= body["cached"]["similarity"] < 1
    assert body["cached"]["age_s"] >= 0
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (0, 0)
    assert body["id"] != first["id"]
    compatible_models.Completion.model_validate(body)
    # The only job is that of the vector.
    assert stat(store, "admitted|blue") == admitted + 1
    assert [job.payload["input"] for job in embedder.claimed] == [[ASKED], [AGAIN]]
    assert (counted(client, "hit"), counted(client, "miss")) == (1, 1)


def test_the_same_prompt_needs_no_vector(client, embedder):
    post(client, ASKED)
    assert cached(post(client, f"  {ASKED}\n"))["similarity"] == 1
    assert embedder.texts == 1


def test_the_guard_refuses_a_prompt_that_differs_in_one_word(client):
    post(client, ASKED)
    assert cached(post(client, OTHER)) is None
    assert counted(client, "guarded") == 1
    assert cached(post(client, OTHER.replace("How do", "How can"))) is not None


def test_streams_and_messages_are_answered_and_kept_too(client):
    lines = post(client, ASKED, stream=True).text.splitlines()
    streamed = post(client, AGAIN, stream=True, stream_options={"include_usage": True})
    chunks = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    text = "".join(each["choices"][0]["delta"].get("content", "") for each in chunks if each["choices"])
    assert text == "answer 1"
    assert any(text in line for line in lines)
    assert [each["cached"]["age_s"] >= 0 for each in chunks if "cached" in each] == [True]
    assert chunks[-1]["usage"]["total_tokens"] == 0
    assert streamed.text.endswith("data: [DONE]\n\n")
    fields = {"model": MODEL, "max_tokens": 20, "temperature": 0}
    for headers in ({}, {"accept": "text/event-stream"}):
        body = fields | {"messages": [{"role": "user", "content": ASKED}], "stream": bool(headers)}
        answer = client.post("/v1/messages", json=body, headers=BLUE)
        assert '"cached":{' in answer.text, answer.text
        assert "answer 1" in answer.text


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"max_tokens": 21},
        {"temperature": 0.5},
        {"stop": ["x"]},
        {"seed": 7},
        {"top_k": 1, "temperature": 0.1},
        {"response_format": {"type": "json_object"}},
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ASKED}]},
        {
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hi"},
                {"role": "user", "content": ASKED},
            ]
        },
        {"logprobs": True},
        {"n": 2},
    ],
    ids=str,
)
def test_only_equal_requests_are_compared(client, change):
    post(client, ASKED)
    assert cached(post(client, ASKED)) is not None
    assert cached(post(client, ASKED, **change)) is None


def test_a_prompt_that_is_continued_must_be_the_same(client):
    def complete(prompt: str) -> TestResponse:
        fields = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 20, "deadline_ms": 600_000}
        return client.post("/v1/completions", json=fields, headers=BLUE)

    assert cached(complete(ASKED)) is None
    assert cached(complete(ASKED)) is not None
    for other in (AGAIN, f"{ASKED} ", ASKED.replace("a loaf", "the loaf")):
        assert cached(complete(other)) is None


def test_a_tenant_gets_no_answer_of_another(client):
    post(client, ASKED)
    assert cached(post(client, ASKED, {"X-Tenant": "red"})) is None
    assert cached(post(client, AGAIN, {"X-Tenant": "red"})) is not None


def test_without_the_policy_or_an_embedding_model_all_is_as_before(client, store, settings, embedder):
    Tenants(store.client).set("blue", TenantPolicy())
    without_policy, without_model = (a_door(store, settings, embedding_model=name) for name in ("vectors", ""))
    for door in (without_policy, without_model):
        for _ in range(2):
            assert cached(post(door, ASKED)) is None
        Tenants(store.client).set("blue", TenantPolicy(semantic_cache=True))
    assert embedder.texts == 0
    assert not store.client.exists(keys.answers("blue"), keys.answer_vectors("blue"))


def test_headers_skip_reading_and_writing_and_allow_random_answers(client):
    assert cached(post(client, ASKED, {"Cache-Control": "max-age=0, no-store"})) is None
    assert cached(post(client, ASKED)) is None
    assert cached(post(client, ASKED, {"Cache-Control": "no-cache"})) is None
    # The newer answer has replaced the one before.
    assert post(client, AGAIN).get_json()["choices"][0]["message"]["content"] == "answer 3"
    assert cached(post(client, ASKED, {"X-Semantic-Cache": "off"})) is None
    random = {"temperature": 0.9}
    allowed = {"X-Semantic-Cache": "allow"}
    assert cached(post(client, ASKED, **random)) is None
    assert cached(post(client, ASKED, allowed, **random)) is None
    assert cached(post(client, AGAIN, allowed, **random)) is not None
    message = fault(post(client, ASKED, {"X-Semantic-Cache": "yes"}), 400, "invalid_value", "X-Semantic-Cache")
    assert "'yes'" in message


def test_an_embedding_model_that_is_away_delays_a_request_by_the_budget_at_most(store, settings, client, embedder):
    del client
    door = a_door(store, settings, embedding_model="vectors", retrieval_budget_ms=50)
    embedder.works.clear()
    assert cached(post(door, ASKED)) is None
    assert cached(post(door, AGAIN)) is None
    assert counted(door, "away") == 2
    # The same prompt needs no vector.
    assert cached(post(door, ASKED)) is not None


def test_removed_entries_and_those_of_a_removed_tenant_are_not_used(client, store):
    post(client, ASKED)
    assert cached(post(client, AGAIN)) is not None
    drop_answers(store.client, "blue")
    assert cached(post(client, AGAIN)) is None
    assert cached(post(client, ASKED)) is not None
    Tenants(store.client).remove("blue")
    drop_answers(store.client, "blue")
    # The door may still know the policy, but the store does not keep an answer for it.
    post(client, ASKED)
    assert not store.client.exists(keys.answers("blue"))


def test_a_new_version_of_the_collection_another_filter_and_another_template_make_answers_stale(client, store):
    database = FakeDatabase(a_collection())
    context: DoorContext = client.application.extensions[EXTENSION_NAME]
    context.process.database = database  # type: ignore[assignment]  # has the methods that the door calls
    handbook: dict[str, Any] = {"collection": "handbook", "k": 2, "budget_ms": 10_000}
    first = post(client, ASKED, retrieval=handbook).get_json()
    again = post(client, AGAIN, retrieval=handbook).get_json()
    assert "cached" in again
    assert again["citations"] == first["citations"]
    assert len(database.queries) == 1
    for change in ({"k": 3}, {"filter": {"type": "eq", "key": "team", "value": "x"}}):
        assert cached(post(client, AGAIN, retrieval=handbook | change)) is None
    assert cached(post(client, AGAIN)) is None
    database.load()
    assert cached(post(client, AGAIN, retrieval=handbook)) is None


def with_vectors(client: FlaskClient) -> FakeDatabase:
    """Give the door a collection whose vectors the embedder makes."""
    database = FakeDatabase(a_collection(model="vectors", dimensions=64))
    context: DoorContext = client.application.extensions[EXTENSION_NAME]
    context.process.database = database  # type: ignore[assignment]  # has the methods that the door calls
    return database


def test_a_miss_and_the_search_for_passages_embed_and_charge_a_text_once(client, store, embedder):
    database = with_vectors(client)
    handbook: dict[str, Any] = {"collection": "handbook", "k": 2, "budget_ms": 10_000}
    body = post(client, f"  {ASKED}\n", retrieval=handbook).get_json()
    assert "cached" not in body
    assert "degraded" not in body
    assert [query.mode for query in database.queries] == ["hybrid"]
    assert [job.payload["input"] for job in embedder.claimed] == [[ASKED]]
    # The vector's job and the chat.
    assert stat(store, "admitted|blue") == 2
    usage = client.get("/v1/usage?by=model", headers=BLUE).get_json()["data"]
    assert [row["prompt_tokens"] for row in usage if row["model"] == "vectors"] == [len(ASKED.split())]
    # Another text of the same request is another vector.
    post(client, OTHER, retrieval=handbook | {"query": "bread"})
    assert [job.payload["input"] for job in embedder.claimed[1:]] == [[OTHER], ["bread"]]


def test_a_vector_that_is_late_for_the_cache_is_still_in_time_for_the_passages(store, settings, client, embedder):
    del client
    door = a_door(store, settings, embedding_model="vectors", retrieval_budget_ms=20)
    database = with_vectors(door)
    embedder.works.clear()

    def work_when_looked() -> None:
        wait_for(lambda: counted(door, "away"), "the look-up to end")
        embedder.works.set()

    threading.Thread(target=work_when_looked, daemon=True).start()
    assert cached(post(door, ASKED, retrieval={"collection": "handbook", "budget_ms": 10_000})) is None
    assert [query.mode for query in database.queries] == ["hybrid"]
    assert [job.payload["input"] for job in embedder.claimed] == [[ASKED]]


def test_an_answer_that_is_not_whole_is_not_kept(client, answers):
    answers.reason = "length"
    post(client, ASKED)
    assert cached(post(client, ASKED)) is not None  # the client named the length
    message = {"model": MODEL, "max_tokens": 20, "temperature": 0, "messages": [{"role": "user", "content": ASKED}]}
    body = client.post("/v1/messages", json=message, headers=BLUE).get_json()
    assert ("cached" in body, body["stop_reason"]) == (True, "max_tokens")
    post(client, OTHER, max_tokens=None)
    assert cached(post(client, OTHER, max_tokens=None)) is None
    answers.outcome = Outcome.FAILED
    assert post(client, "What is a leap year?").status_code == 500
    answers.outcome = Outcome.SUCCEEDED
    assert cached(post(client, "What is a leap year?")) is None


def test_only_the_key_that_made_a_private_request_gets_its_answer_again(store, settings, embedder, answers):
    del embedder, answers
    for model in (MODEL, "vectors"):
        Pools(store.client).change(model, {"local": True})
    Tenants(store.client).set("blue", TenantPolicy(semantic_cache=True))
    door = a_door(store, settings, auth="keys", embedding_model="vectors", retrieval_budget_ms=10_000)
    one, other = ({"Authorization": f"Bearer {ApiKeys(store.client).create('blue').key}"} for _ in range(2))
    assert cached(post(door, ASKED, one, private=True)) is None
    assert cached(post(door, ASKED, other, private=True)) is None
    assert cached(post(door, ASKED, other)) is None
    for key in (one, other):
        assert cached(post(door, AGAIN, key, private=True)) is not None

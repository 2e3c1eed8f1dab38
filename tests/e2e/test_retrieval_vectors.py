"""Passages found by vectors and words in a real database, where the query is embedded by a pool of the same store."""

from collections.abc import Iterator
from typing import Any

import pytest
from flask.testing import FlaskClient

from shared.retrieval.database import Database
from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.builders import MODEL, stat
from tests.support.collected import a_database, make, put
from tests.support.door import a_door, admitted_job, fault, serve, submit
from tests.support.embedder import Ranker, word_vector

BLUE = {"X-Tenant": "blue"}
#: The embedder's vectors have this many numbers; a text of equal words in another order has the same one.
WIDTH = 16


@pytest.fixture(scope="module")
def database(database_url: str) -> Iterator[Database]:
    with a_database(database_url) as database:
        make(database, "blue", model="vectors", dimensions=WIDTH)
        make(database, "blue", "news", model="vectors", dimensions=WIDTH)
        news = "two more days of leave thirty"
        put(database, "blue", "news.md", news, name="news", vectors=[word_vector(news, WIDTH)])
        texts = {"leave.md": "thirty days of leave", "food.md": "the canteen opens at noon"}
        for name, text in texts.items():
            put(database, "blue", name, text, vectors=[word_vector(text, WIDTH)])
        yield database


@pytest.fixture
def client(store: Store, settings: Settings, database_url: str, database: Database) -> FlaskClient:
    del database  # has made the collection
    serve(store)
    return a_door(store, settings, database_url=database_url, retrieval_budget_ms=10_000)


def asked(client: FlaskClient, query: str, **more: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Submit a job, and return the documents that it cites and what was left out."""
    retrieval = {"collection": "handbook", "k": 1, "query": query, "budget_ms": 10_000} | more
    job = admitted_job(submit(client, headers=BLUE, model=MODEL, retrieval=retrieval, deadline_ms=600_000))
    changes = [tuple(change.values()) for change in job.get("degraded", [])]
    return [each["document"] for each in job["citations"]], changes


def test_a_query_is_embedded_once_as_a_charged_job_of_the_tenant(client, store, embedder):
    assert asked(client, "leave of days thirty") == (["leave.md"], [])
    assert asked(client, "leave  of days\nthirty") == (["leave.md"], [])
    (job,) = embedder.claimed
    assert (job.tenant, job.model, job.payload["input"]) == ("blue", "vectors", ["leave of days thirty"])
    assert stat(store, "admitted|blue") == 3


def test_the_query_of_a_search_in_several_stores_is_embedded_once(client, store, database, embedder):
    stores = [database.collection("blue", name).store_id for name in ("handbook", "news")]
    tool = {"type": "file_search", "vector_store_ids": stores, "max_num_results": 2}
    body = {"model": MODEL, "input": "leave of days thirty", "tools": [tool], "deadline_ms": 600_000}
    body |= {"background": True}
    answer = client.post("/v1/responses", json=body, headers=BLUE).get_json()
    assert {each["document"] for each in answer["citations"]} == {"leave.md", "news.md"}
    assert "degraded" not in answer
    assert [job.payload["input"] for job in embedder.claimed] == [["leave of days thirty"]]
    foreign = client.post("/v1/responses", json=body, headers={"X-Tenant": "red"})
    assert (foreign.status_code, foreign.get_json()["error"]["code"]) == (404, "vector_store_not_found")


def test_while_the_embedding_pool_is_busy_words_are_searched_within_the_budget(client, embedder):
    embedder.works.clear()
    assert asked(client, "canteen", budget_ms=5_000) == (["food.md"], [("retrieval", "search", "words", "budget")])


def test_without_an_embedding_pool_words_are_searched_at_once(client):
    assert asked(client, "canteen") == (["food.md"], [("retrieval", "search", "words", "embedding_away")])


def test_a_reranker_orders_the_passages_and_what_it_could_not_order_is_told(client, store, embedder):
    rerank = {"rerank": {"model": "ranker"}}
    retrieval = {"collection": "handbook", "k": 1, "query": "thirty days of leave", "budget_ms": 10_000} | rerank
    body = {"model": MODEL, "retrieval": retrieval, "deadline_ms": 600_000}
    with Ranker(store) as ranker:
        first, again = (admitted_job(submit(client, headers=BLUE, **body)) for _ in range(2))
        assert [(each["document"], each["score"]) for each in first["citations"]] == [("leave.md", 1)]
        assert first["citations"] == again["citations"]
        # It reads more passages than are wanted, and the second request finds the order in the cache.
        assert [(job.tenant, len(job.payload["input"])) for job in ranker.claimed] == [("blue", 2)]
        ranker.fails_with = "engine_error"
        left_out = [("rerank", "ranker", "none", "reranker_away")]
        assert asked(client, "days of leave", **rerank) == (["leave.md"], left_out)
        ranker.fails_with = ""
        assert asked(client, "days of leave", **rerank) == (["leave.md"], [])
        ranker.works.clear()
        late = asked(client, "leave", **rerank, budget_ms=5_000)
        assert late == (["leave.md"], [("rerank", "ranker", "none", "budget")])
    body["retrieval"] |= {"rerank": {"model": "vectors"}}
    message = fault(submit(client, headers=BLUE, **body), 422, "invalid_value", "retrieval.rerank.model")
    assert "'vectors' does not rank documents" in message

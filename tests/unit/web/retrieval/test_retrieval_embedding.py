"""Embeddings for collections are bounded, charged jobs, and a query's vector comes in time or not at all."""

import math
import operator
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from shared.accounts.routes import Pools
from shared.accounts.tenants import Tenants
from shared.clock import RealClock
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.builders import a_job, admitted, heartbeat, view_of
from tests.support.embedder import Embedder, word_vector
from tests.support.kept_alive import keep_alive
from tests.support.processes import in_time, wait_for
from web.http.api_errors import ApiError
from web.jobs.callers import Caller
from web.retrieval import search_jobs
from web.retrieval.embedding import (
    BulkEmbedder,
    EmbeddingRefused,
    InputTooLong,
    Stop,
    dimensions_of,
    embedding_model,
)
from web.retrieval.query_vectors import QueryVectors
from web.runtime.context import DoorContext

BLUE = Caller("blue", "", None)


@pytest.fixture
def context(store: Store, settings: Settings) -> DoorContext:
    keep_alive(store)
    return DoorContext(replace(settings, auth="open"), store, RealClock())


@pytest.fixture
def embedder(store: Store, context: DoorContext) -> Iterator[Embedder]:
    with Embedder(store) as embedder:
        yield embedder


def soon(seconds: float = 60) -> float:
    return time.monotonic() + seconds


def bulk(context: DoorContext, until: float, caller: Caller = BLUE, stop: Stop = lambda: None) -> BulkEmbedder:
    return BulkEmbedder(context, caller, embedding_model(context, caller, "vectors"), until, stop)


def queried(
    context: DoorContext, caller: Caller, model: str, text: str, until: float, *, private: bool = False
) -> Sequence[float] | None:
    return QueryVectors(context, caller).vector(model, text, until, private=private)


def left_jobs(store: Store) -> list[bytes]:
    """Return the keys of payloads and results."""
    return [key for pattern in ("penstock:payload:*", "penstock:result:*") for key in store.client.keys(pattern)]


def test_texts_are_embedded_in_order_by_a_job_of_priority_minus_one_that_is_then_erased(store, context, embedder):
    texts = [f"text number {number}" for number in range(5)]
    vectors = bulk(context, soon()).embed(texts)
    assert [list(vector) for vector in vectors] == [pytest.approx(word_vector(text, 16)) for text in texts]
    (job,) = embedder.claimed
    assert (job.tenant, view_of(store, job.id).priority) == ("blue", -1)
    assert left_jobs(store) == []


def test_the_tenant_is_charged_for_what_was_embedded(store, context, embedder):
    bulk(context, soon()).embed(["four words of text"] * 3)
    day = context.usage_days.today()
    assert [row.amounts.prompt_tokens for row in context.usage_days.read("blue", day, day)] == [12]


def test_a_text_longer_than_the_context_is_told_whether_the_door_or_the_worker_finds_it(context, embedder):
    with pytest.raises(InputTooLong):
        bulk(context, soon()).embed(["word " * 100_000])
    assert embedder.claimed == []
    embedder.n_ctx = 8  # fewer than the worker has told
    with pytest.raises(InputTooLong):
        bulk(context, soon()).embed(["short", "word " * 9])


def test_many_texts_are_embedded_in_pieces_and_a_long_one_by_the_mean_of_its_parts(context, embedder):
    embedder.n_ctx = 8
    long = " ".join(f"word{number}" for number in range(64))
    texts = ["first one", "second one", long, "third one", "fourth one"]
    vectors = bulk(context, soon()).embed_all(texts, 2)
    assert len(embedder.claimed[0].payload["input"]) == 2
    for at in (0, 1, 3, 4):
        assert list(vectors[at]) == pytest.approx(word_vector(texts[at], 16))
    whole = word_vector(long, 16)
    assert math.hypot(*vectors[2]) == pytest.approx(1)
    assert sum(map(operator.mul, vectors[2], whole)) > 0.98
    assert sum(map(operator.mul, word_vector(" ".join(long.split()[:8]), 16), whole)) < 0.9


def test_a_job_beyond_a_bound_is_offered_again_after_the_hint(store, context, embedder):
    embedder.works.clear()
    Tenants(store.client).set("blue", TenantPolicy(max_waiting=1))
    admitted(store, a_job("blue", model="vectors", payload={"input": ["first"]}))
    threading.Timer(0.3, embedder.works.set).start()
    assert len(bulk(context, soon()).embed(["second"])) == 1
    assert [job.payload["input"] for job in embedder.claimed] == [["first"], ["second"]]


def test_a_load_gives_up_with_the_refusal_if_no_job_would_be_admitted_in_time(store, context, embedder):
    embedder.works.clear()
    Tenants(store.client).set("blue", TenantPolicy(max_waiting=1))
    admitted(store, a_job("blue", model="vectors", payload={"input": ["first"]}))
    with pytest.raises(EmbeddingRefused) as caught:
        bulk(context, soon(0.3)).embed(["second"])
    body = caught.value.answer.body
    assert (body["status"], body["reason"]) == ("yield", "tenant_queue_full")
    assert body["retry_hint_ms"] > 0
    embedder.works.set()


def test_a_job_is_canceled_if_the_caller_stops_or_the_time_is_over(store, context, embedder):
    embedder.works.clear()
    stopping, gone = threading.Event(), ApiError("request_timeout", "gone")
    threading.Timer(0.2, stopping.set).start()
    with pytest.raises(ApiError, match="gone"):
        bulk(context, soon(), stop=lambda: gone if stopping.is_set() else None).embed(["a"])
    with pytest.raises(ApiError) as caught:
        bulk(context, soon(0.3)).embed(["a"])
    assert caught.value.code == "deadline_exceeded"
    wait_for(lambda: store.snapshot().inflight == 0, "the jobs to be canceled")
    embedder.works.set()
    assert embedder.claimed == []


def test_a_failed_job_ends_the_load_with_its_error(store, context, embedder):
    embedder.fails_with = "engine_error"
    with pytest.raises(ApiError) as caught:
        bulk(context, soon()).embed(["a"])
    assert caught.value.code == "job_failed"


def test_a_query_is_embedded_by_a_job_of_priority_zero_that_is_then_erased(store, context, embedder):
    vector = queried(context, BLUE, "vectors", "a short query", soon())
    assert vector is not None
    assert list(vector) == pytest.approx(word_vector("a short query", 16))
    (job,) = embedder.claimed
    assert view_of(store, job.id).priority == 0
    wait_for(lambda: left_jobs(store) == [], "the result to be erased")


def test_a_text_that_a_request_asks_for_again_is_waited_for_and_not_embedded_again(context, embedder):
    vectors = QueryVectors(context, BLUE)
    embedder.works.clear()
    assert vectors.vector("vectors", "twice", soon(0.01), last_s=soon()) is None
    embedder.works.set()
    assert vectors.vector("vectors", "twice", soon()) == vectors.vector("vectors", "twice", soon())
    assert vectors.vector("vectors", "another", soon()) is not None
    assert [job.payload["input"] for job in embedder.claimed] == [["twice"], ["another"]]


def test_a_query_that_no_worker_embeds_in_time_has_no_vector_and_its_job_is_canceled(store, context, embedder):
    embedder.works.clear()

    def attempt() -> list[tuple[float, float]]:
        began_s = time.monotonic()
        assert queried(context, BLUE, "vectors", "late", began_s + 0.05) is None
        return [(time.monotonic() - began_s, 0.25)]

    in_time(attempt)
    wait_for(lambda: store.snapshot().inflight == 0, "the job to be canceled")
    embedder.works.set()
    assert embedder.claimed == []


@pytest.mark.parametrize("model", ["vectors", "nobody"])
def test_a_query_without_a_live_model_has_no_vector(context, model):
    assert queried(context, BLUE, model, "a", soon(5)) is None


def test_a_store_that_hangs_does_not_hold_a_query_beyond_its_time(context, embedder, monkeypatch):
    released = threading.Event()

    def hang(*_: object) -> None:
        released.wait(30)
        raise ApiError("internal_error", "it never came")

    monkeypatch.setattr(search_jobs, "offer", hang)

    def attempt() -> list[tuple[float, float]]:
        began_s = time.monotonic()
        assert queried(context, BLUE, "vectors", "a", began_s + 0.03) is None
        return [(time.monotonic() - began_s, 0.25)]

    in_time(attempt)
    released.set()


def test_the_model_of_a_collection_makes_embeddings_and_has_known_dimensions(store, context, embedder):
    with Embedder(store, model="other", width=5):
        found = embedding_model(context, BLUE, "other")
        assert dimensions_of(context, BLUE, found, soon()) == 5
    heartbeat(store, "w9", model="words")
    context.pools.refresh()
    with pytest.raises(ApiError, match="model='words' makes no embeddings"):
        embedding_model(context, BLUE, "words")
    with pytest.raises(ApiError, match="model='nobody' is not served"):
        embedding_model(context, BLUE, "nobody")


def test_the_dimensions_of_an_upstreams_model_are_those_of_a_first_vector(store, context, embedder):
    with Embedder(store, model="theirs", width=7, forwards=True) as theirs:
        context.pools.refresh()
        found = embedding_model(context, BLUE, "theirs")
        assert (found.dimensions, dimensions_of(context, BLUE, found, soon())) == (None, 7)
        assert theirs.texts == 1


def test_a_model_that_the_tenant_may_not_use_embeds_nothing(store, context, embedder):
    limited = Caller("blue", "", TenantPolicy(models=("other",)))
    with pytest.raises(ApiError, match="not served"):
        bulk(context, soon(), limited)
    assert queried(context, limited, "vectors", "a", soon(5)) is None


def test_a_private_query_is_embedded_only_by_a_pool_that_is_local(store, context, embedder):
    assert queried(context, BLUE, "vectors", "secret", soon(), private=True) is None
    assert embedder.claimed == []
    Pools(store.client).change("vectors", {"local": True})
    assert queried(context, BLUE, "vectors", "secret", soon(), private=True) is not None

"""Tests of the search within its budget: what comes in place of a whole search, in which order, and why."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from shared.clock import RealClock
from shared.errors import StoreUnavailable
from shared.retrieval.errors import DatabaseAway, OutOfTime, SearchesStopped
from shared.store.passage_cache import CachedPassages, Looked
from tests.support.passages import FakeDatabase, a_collection, a_passage
from web.http.api_errors import ApiError
from web.http.process_metrics import ProcessMetrics
from web.jobs.callers import Caller
from web.retrieval import query_vectors
from web.retrieval.finding import FoundPassages, Wanted, find_passages
from web.retrieval.query_vectors import QueryVectors

LATE, AWAY, STOPPED = OutOfTime(started=True), DatabaseAway("refused"), SearchesStopped("again and again")


class FakeCache:
    """The entries by tenant and digest."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}
        self.is_away = False

    def find(self, tenant: str, digest: str) -> Looked:
        content = self.kept.get((tenant, digest))
        return Looked(1_000, None if content is None else CachedPassages(content, 1))

    def keep(self, tenant: str, digest: str, content: str, *, since_ms: int) -> bool:
        assert since_ms == 1_000
        if self.is_away:
            raise StoreUnavailable("away")
        self.kept[tenant, digest] = content
        return True


class Scene:
    """A door with a fake database, cache and embedding pool."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.database, self.cache = FakeDatabase(), FakeCache()
        self.context: Any = SimpleNamespace(
            clock=RealClock(),
            database=self.database,
            passage_cache=self.cache,
            metrics=ProcessMetrics(RealClock()),
        )
        self.vector: list[float] | None = [1.0, 0.0]
        #: Whether the vector is waited for in vain.
        self.is_late = False
        self.embedded: list[tuple[str, bool]] = []
        monkeypatch.setattr(query_vectors, "start_query", self._start)

    def _start(self, _context: Any, _caller: Any, _model: str, text: str, last_s: float, *, private: bool) -> Any:
        self.embedded.append((text, private))
        return SimpleNamespace(last_s=last_s, wait=self._wait)

    def _wait(self, until: float) -> list[float] | None:
        while self.is_late and time.monotonic() < until:
            threading.Event().wait(0.001)
        return None if self.is_late else self.vector

    def with_model(self) -> None:
        self.database.collections["blue", "handbook"] = a_collection(model="vectors", dimensions=2)

    def find(self, k: int = 3, *, tenant: str = "blue", budget_s: float = 10, **values: Any) -> FoundPassages:
        wanted = Wanted("handbook", "leave", k, None, time.monotonic() + budget_s, **values)
        caller = Caller(tenant, "", None)
        return find_passages(self.context, caller, wanted, QueryVectors(self.context, caller))

    def said(self, **values: Any) -> tuple[str, str | None, int]:
        found = self.find(**values)
        return found.source.value, found.why and found.why.value, len(found.passages)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def test_a_whole_search_is_done_once_and_then_found_in_the_cache(scene):
    first, second = scene.find(), scene.find()
    assert [first.source, second.source, first.why, second.why] == ["search", "cache", None, None]
    assert first.passages == tuple(map(a_passage, range(3))) == second.passages
    assert first.changes == second.changes == ()
    assert [query.mode for query in scene.database.queries] == ["words"]


def test_a_load_makes_the_cached_passages_stale_at_once(scene):
    scene.find()
    scene.database.load()
    assert [scene.said(), scene.said()] == [("search", None, 3), ("cache", None, 3)]


def test_a_collection_that_was_deleted_and_created_again_has_no_cached_passages(scene):
    scene.find()
    scene.database.collections["blue", "handbook"] = a_collection(id="another")
    assert scene.said() == ("search", None, 3)


def test_another_number_of_passages_is_another_search_and_so_is_another_tenants(scene):
    scene.database.collections["red", "handbook"] = a_collection(tenant="red")
    assert scene.said() == ("search", None, 3)
    assert scene.said(k=4) == ("search", None, 4)
    assert scene.said(tenant="red") == ("search", None, 3)


def test_the_query_is_embedded_with_its_privacy_and_both_halves_are_searched(scene):
    scene.with_model()
    assert scene.said(private=True) == ("search", None, 3)
    assert scene.embedded == [("leave", True)]
    (query,) = scene.database.queries
    assert (query.mode, query.vector, query.text) == ("hybrid", [1.0, 0.0], "leave")


@pytest.mark.parametrize("vector", [None, [1.0, 0.0, 0.0]], ids=["none", "of another model"])
def test_without_a_vector_words_are_searched_and_not_cached(scene, vector):
    scene.with_model()
    scene.vector = vector
    assert scene.said() == scene.said() == ("words", "embedding_away", 3)
    assert scene.database.queries[0].mode == "words"
    (change,) = scene.find().changes
    assert change.as_dict() == {"what": "retrieval", "from": "search", "to": "words", "why": "embedding_away"}


def test_a_vector_that_is_late_leaves_time_for_words_and_earlier_passages_go_first(scene):
    scene.with_model()
    scene.is_late = True
    assert scene.said(budget_s=0.2) == ("words", "budget", 3)
    scene.is_late = False
    scene.find()
    scene.database.load()
    scene.is_late = True
    assert scene.said(budget_s=0.2) == ("cached", "budget", 3)


def test_a_search_that_leaves_a_half_out_gives_the_other(scene):
    scene.with_model()
    scene.database.omitted = frozenset({"words"})
    assert scene.said() == ("vector", "budget", 3)
    scene.database.omitted = frozenset({"vector", "words"})
    assert scene.said() == ("none", "budget", 0)
    assert not scene.cache.kept


@pytest.mark.parametrize("call", ["collection", "check_searches", "search"])
@pytest.mark.parametrize(
    ("fault", "why"), [(LATE, "budget"), (AWAY, "database_away"), (STOPPED, "searches_stopped")], ids=str
)
def test_what_the_database_cannot_do_is_no_error_and_earlier_passages_are_used(scene, call, fault, why):
    scene.find()
    scene.database.load()
    scene.database.faults = {call: fault}
    assert scene.said() == ("cached", why, 3)
    assert scene.said(k=4) == ("none", why, 0)


def test_a_query_is_not_embedded_while_searches_are_stopped(scene):
    scene.with_model()
    scene.database.faults = {"check_searches": STOPPED}
    scene.find()
    assert scene.embedded == []


def test_a_collection_that_the_tenant_lacks_is_an_error_that_names_the_field(scene):
    with pytest.raises(ApiError) as caught:
        scene.find(tenant="red")
    assert (caught.value.code, caught.value.param) == ("collection_not_found", "retrieval.collection")


def test_a_cache_that_cannot_be_written_is_no_fault_of_the_search(scene):
    scene.cache.is_away = True
    assert scene.said() == ("search", None, 3)


def test_a_cache_that_was_spoiled_is_searched_anew(scene):
    scene.find()
    scene.cache.kept = dict.fromkeys(scene.cache.kept, "spoiled")
    assert scene.said() == ("search", None, 3)

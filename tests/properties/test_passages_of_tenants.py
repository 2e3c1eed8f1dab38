"""Property: no passage crosses tenants or collections, whatever is asked, cached, loaded, deleted or late."""

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from shared.clock import RealClock
from shared.retrieval.errors import DatabaseAway, OutOfTime, RetrievalError
from shared.retrieval.records import Found, Passage, Query
from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.passages import FakeDatabase, a_collection
from web.jobs.callers import Caller
from web.retrieval.finding import Source, Wanted, find_passages
from web.retrieval.query_vectors import QueryVectors
from web.runtime.context import DoorContext

TENANTS = ("a", "b", "a-b", "A")
#: Names and queries in which one might look like a part of another, or like the id of a vector store.
NAMES = ("h", "h.b", "a.h", "h|q", 'h","q', "h q", "vs_id-of-h")
QUERIES = ("q", "q q", "b.q", '"q"', "q|6", "'; DROP TABLE chunks; --")
FAULTS: dict[str, RetrievalError | None] = {"": None, "late": OutOfTime(started=True), "away": DatabaseAway("refused")}

STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "tenant": st.sampled_from(TENANTS),
            "name": st.sampled_from(NAMES),
            "is_store": st.booleans(),
            "query": st.sampled_from(QUERIES),
            "k": st.integers(1, 3),
            "fault": st.sampled_from(list(FAULTS)),
            "loads": st.booleans(),
            "drops": st.integers(0, 9).map(lambda number: number == 0),
        }
    ),
    min_size=1,
    max_size=12,
)


class NamingDatabase(FakeDatabase):
    """Its passages name the tenant and the collection that they belong to, and the query and the version."""

    def search(self, tenant: str, name: str, query: Query, until: float) -> Found:
        found = super().search(tenant, name, query, until)
        words = [tenant, name, query.text, found.version]
        passages = (Passage(repr([*words, number]), number, repr(words), 1, 0.5, {}) for number in range(query.k))
        return replace(found, passages=tuple(passages))


@pytest.fixture
def context(store: Store, settings: Settings) -> DoorContext:
    return DoorContext(replace(settings, auth="open"), store, RealClock())


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(steps=STEPS)
def test_each_passage_is_one_of_the_tenants_own_collection(context: DoorContext, steps: Any) -> None:
    for tenant in TENANTS:
        context.passage_cache.drop(tenant)
    time.sleep(0.002)  # what is found in the same ms counts as of before
    database = NamingDatabase(*(a_collection(name, tenant) for tenant in TENANTS for name in NAMES))
    context.process.database = database  # type: ignore[assignment]  # has the methods that are called
    for step in steps:
        tenant, name = step["tenant"], step["name"]
        if step["loads"]:
            database.load(tenant, name)
        if step["drops"]:
            context.passage_cache.drop(tenant)
        fault = FAULTS[step["fault"]]
        database.faults = {"search": fault} if fault else {}
        wanted = Wanted(name, step["query"], step["k"], None, time.monotonic() + 10)
        if step["is_store"]:
            wanted = replace(wanted, collection=f"vs_id-of-{name}", store_at="tools[0].vector_store_ids[0]")
        caller = Caller(tenant, "", None)
        found = find_passages(context, caller, wanted, QueryVectors(context, caller))
        version = database.collections[tenant, name].version
        for passage in found.passages:
            words = [tenant, name, step["query"]]
            assert passage.text.startswith(repr(words)[:-1])
            assert found.source is Source.CACHED or passage.text == repr([*words, version])
        assert found.source in ({Source.CACHED, Source.NONE, Source.CACHE} if fault else {Source.SEARCH, Source.CACHE})

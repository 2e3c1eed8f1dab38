"""Property: no cached answer crosses tenants, keys, models or parameters, and the guard agrees with each."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from shared.accounts.tenants import Tenants
from shared.clock import RealClock
from shared.jobs.job import Usage
from shared.jobs.states import JobState
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store.answer_cache import drop_answers
from shared.store.store import Store
from tests.support.builders import MODEL, heartbeat
from web.api.deadline import RequestDeadline
from web.jobs.callers import Caller
from web.jobs.generation import GenerationRequest
from web.retrieval.query_vectors import QueryVectors
from web.runtime.context import DoorContext
from web.semantic_cache.guard import difference
from web.semantic_cache.kept import Facts, KeptAnswer, view_of
from web.semantic_cache.look_up import Wishes, look_up

TENANTS = ("a", "b", "a-b", "A")
POLICY = TenantPolicy(semantic_cache=True)
#: Some of these prompts ask the same. All have one vector, so that only the guard and the scope separate them.
PROMPTS = (
    "How do I bake bread?",
    "How can I bake bread?",
    "How do I bake bread without yeast?",
    "How do I bake 2 loaves of bread?",
    'how do i bake bread in "Bern"?',
)

BASE: dict[str, Any] = {
    "tenant": "a",
    "key": "k1",
    "private": True,
    "model": MODEL,
    "system": "",
    "temperature": 0,
    "max_tokens": 20,
    "prompt": PROMPTS[0],
    "reads": True,
}
CHANGES = {
    "tenant": st.sampled_from(TENANTS),
    "key": st.sampled_from(("", "k2")),
    "private": st.just(value=False),
    "model": st.just("other"),
    "system": st.just("Be brief."),
    "temperature": st.sampled_from((0.0, 0.5)),
    "max_tokens": st.sampled_from((None, 21)),
    "prompt": st.sampled_from(PROMPTS),
    "reads": st.just(value=False),
}
#: Requests that differ in one or two fields from the same one, so that many are equal in all but one.
STEP = st.lists(st.sampled_from(list(CHANGES)), max_size=2).flatmap(
    lambda names: st.fixed_dictionaries({name: CHANGES[name] for name in names})
)
STEPS = st.lists(STEP.map(lambda changed: BASE | changed), min_size=6, max_size=16)


@pytest.fixture
def context(store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> DoorContext:
    monkeypatch.setattr(QueryVectors, "vector", lambda *_, **__: [1.0, 0.5])
    for model in (MODEL, "other"):
        heartbeat(store, f"w-{model}", model=model, slots=1)
    for tenant in TENANTS:
        Tenants(store.client).set(tenant, POLICY)
    given = replace(settings, auth="open", embedding_model="vectors", retrieval_budget_ms=10_000)
    return DoorContext(given, store, RealClock())


def a_request(step: dict[str, Any]) -> GenerationRequest:
    system = [{"role": "system", "content": step["system"]}] if step["system"] else []
    messages = [*system, {"role": "user", "content": step["prompt"]}]
    return GenerationRequest(
        payload={"messages": messages, "temperature": step["temperature"]},
        deadline=RequestDeadline(600_000, "default"),
        model=step["model"],
        max_tokens=step["max_tokens"],
        default_max_tokens=16,
        private=step["private"],
    )


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(steps=STEPS)
def test_each_answer_is_one_of_an_equal_request_that_asks_the_same(context: DoorContext, steps: Any) -> None:
    for tenant in TENANTS:
        drop_answers(context.store.client, tenant)
    answers: dict[str, dict[str, Any]] = {}
    for number, step in enumerate(steps):
        request, caller = a_request(step), Caller(step["tenant"], "", POLICY, key_id=step["key"])
        found = look_up(context, caller, request, Wishes(reads=step["reads"]), QueryVectors(context, caller), None)
        assert (found is None) == (step["temperature"] == 0.5 or (step["private"] and not step["key"]))
        if found is None:
            continue
        if found.hit is not None:
            of = answers[str(found.hit.text)]
            assert step["reads"]
            for name in ("tenant", "private", "model", "system", "temperature", "max_tokens"):
                assert of[name] == step[name], name
            assert not step["private"] or of["key"] == step["key"]
            assert difference(step["prompt"], of["prompt"]) is None
            continue
        answers[f"answer {number}"] = step
        kept = KeptAnswer(step["prompt"], step["model"], f"answer {number}", "stop")
        view = view_of(kept, step["tenant"], request, Facts(1.0, 0, 0))
        found.keep(replace(view, state=JobState.SUCCEEDED, usage=Usage(1, 0, 1), form={}))

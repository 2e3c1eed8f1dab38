"""The field `retrieval` at the door: passages in prompts, citations, what is left out, errors and repetitions."""

import json
import threading
from typing import Any

import pytest
from flask.testing import FlaskClient

from shared.accounts.routes import Pools
from shared.accounts.tenants import Tenants
from shared.jobs.job import ClaimedJob
from shared.jobs.tenant_policy import TenantPolicy
from shared.retrieval.errors import DatabaseAway, OutOfTime
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import MODEL, a_heartbeat, claim_one, heartbeat, reconfigure, view_of
from tests.support.door import a_door, admitted_job, fault, job_of, serve, settle, submit, worker
from tests.support.gate import served, submit_frame
from tests.support.passages import FakeDatabase, a_collection, a_passage
from tests.support.processes import wait_for
from tests.support.program import program
from web.api.own_words import own_messages
from web.gate.answers import final
from web.openapi import compatible_models
from web.retrieval.query_vectors import QueryVectors
from web.runtime.context import DoorContext
from web.runtime.current import EXTENSION_NAME

BLUE = {"X-Tenant": "blue"}
HANDBOOK = {"collection": "handbook", "k": 2, "budget_ms": 10_000}
CHAT = {"messages": [{"role": "user", "content": "How many days?"}], "max_tokens": 20, "retrieval": HANDBOOK}
CITATIONS = [{"document": "doc0.md", "chunk": 0, "score": 1.0}, {"document": "doc1.md", "chunk": 1, "score": 0.5}]


@pytest.fixture
def database() -> FakeDatabase:
    return FakeDatabase(a_collection(), a_collection("secrets", "red"))


@pytest.fixture
def client(store: Store, settings: Settings, database: FakeDatabase) -> FlaskClient:
    """A door with a database."""
    serve(store)
    client = a_door(store, settings)
    context: DoorContext = client.application.extensions[EXTENSION_NAME]
    context.process.database = database  # type: ignore[assignment]  # has the methods that the door calls
    return client


def retrieved(client: FlaskClient, **body: Any) -> dict[str, Any]:
    """Submit a job with passages, which must be admitted."""
    return admitted_job(submit(client, headers=BLUE, **{"retrieval": HANDBOOK, "deadline_ms": 600_000} | body))


def claimed(store: Store) -> ClaimedJob:
    return claim_one(store, cells_free=10**6)


def test_a_job_has_the_passages_in_its_prompt_and_cites_them_wherever_it_is_shown(client, store):
    job = retrieved(client, prompt="How many days?")
    assert job["citations"] == CITATIONS
    assert "degraded" not in job
    held = claimed(store)
    prompt = held.payload["prompt"]
    assert "[1] (doc0.md)\ntext 0\n\n[2] (doc1.md)\ntext 1\n" in prompt
    assert prompt.endswith("\n\nHow many days?")
    assert "retrieval" not in held.payload
    settle(store, held.held)
    assert job_of(client.get(job["urls"]["self"], headers=BLUE))["citations"] == CITATIONS
    events = client.get(job["urls"]["events"], headers=BLUE).text
    ended = json.loads(events[events.index("event: ended") :].partition("data: ")[2].partition("\n")[0])
    assert ended["citations"] == CITATIONS
    assert final("a1", view_of(store, job["id"]))["citations"] == CITATIONS


def test_the_passages_count_as_tokens_of_the_prompt(client, store):
    plain = admitted_job(submit(client, headers=BLUE, prompt="How many days?"))
    job = retrieved(client, prompt="How many days?")
    counted = [view_of(store, each["id"]).prompt_tokens for each in (plain, job)]
    database_text = "[1] (doc0.md)\ntext 0\n\n[2] (doc1.md)\ntext 1"
    assert counted[1] - counted[0] > len(database_text) / 4
    quote = client.post("/v1/quote", json={"prompt": "How many days?", "retrieval": HANDBOOK}, headers=BLUE)
    assert quote.get_json()["prompt_tokens"] == counted[1]


def test_a_chat_cites_its_passages_and_so_does_the_last_chunk_of_its_stream(client, store):
    with worker(store, lambda held: settle(store, held)):
        answer = client.post("/v1/chat/completions", json=CHAT, headers=BLUE)
    body = answer.get_json()
    assert answer.status_code == 200, body
    compatible_models.Completion.model_validate(body)
    assert body["citations"] == CITATIONS
    with worker(store, lambda held: settle(store, held)):
        answer = client.post("/v1/chat/completions", json=CHAT | {"stream": True}, headers=BLUE)
        lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert [chunk.get("citations") for chunk in chunks if "citations" in chunk] == [CITATIONS]
    assert chunks[-1]["citations"] == CITATIONS


def test_a_chat_for_an_upstream_has_passages_whose_control_tokens_are_broken_up(client, store, database):
    heartbeat(store, "other", model="far", facts={"forwards": "true", "forwards_several": "true"})
    database.passages = (a_passage(0, "<|im_end|>"),)
    held: list[ClaimedJob] = []

    def act() -> None:
        wait_for(lambda: store.snapshot().waiting, "a job to wait")
        held.extend(store.claim("other", "claim", "far", room=1, cells_free=10**6))
        settle(store, held[0].held, "other")

    thread = threading.Thread(target=act)
    thread.start()
    answer = client.post("/v1/chat/completions", json=CHAT | {"model": "far", "odd": 1}, headers=BLUE)
    thread.join(20)
    assert answer.get_json()["citations"] == CITATIONS[:1]
    payload = held[0].payload
    assert payload["forward"] == {"odd": 1}
    assert "[1] (doc0.md)\n<\u200b|im_end|>\n" in payload["messages"][0]["content"]


def test_the_query_is_the_users_last_message_unless_the_request_names_one(client, database):
    retrieved(
        client, prompt=None, messages=[{"role": "user", "content": "first"}, {"role": "user", "content": " a\n b "}]
    )
    retrieved(client, retrieval=HANDBOOK | {"query": "leave", "filter": {"type": "eq", "key": "team", "value": "x"}})
    retrieved(client, prompt="x" * 5_000 + "?")
    assert [query.text for query in database.queries] == ["a b", "leave", "x" * 3_999 + "?"]
    assert [query.filter is None for query in database.queries] == [True, False, True]


def test_a_query_whose_normal_form_is_longer_is_cut_to_what_a_search_may_have(client, database):
    longer = "\ufb2c" * 4_000  # three characters in normal form
    retrieved(client, prompt=longer)
    retrieved(client, retrieval=HANDBOOK | {"query": longer})
    assert [len(query.text or "") for query in database.queries] == [4_000]  # the second one is found in the cache


def test_the_query_of_a_private_request_is_private_too(client, store, database, monkeypatch):
    for tenant in ("blue", "red"):
        database.collections[tenant, "handbook"] = a_collection(tenant=tenant, model="vectors", dimensions=2)
    Tenants(store.client).set("red", TenantPolicy(private=True))
    Pools(store.client).change(MODEL, {"local": True})
    seen = []
    monkeypatch.setattr(QueryVectors, "vector", lambda *_, private: seen.append(private))
    retrieved(client, prompt="one")
    retrieved(client, prompt="two", private=True)
    admitted_job(submit(client, headers={"X-Tenant": "red"}, retrieval=HANDBOOK))
    assert seen == [False, True, True]


def test_a_document_that_was_deleted_is_not_in_cached_passages(client, database, monkeypatch):
    retrieved(client, prompt="p")
    monkeypatch.setattr(database, "delete_document", lambda *_: True, raising=False)
    assert client.delete("/v1/collections/handbook/documents/doc0.md", headers=BLUE).status_code == 200
    database.faults = {"search": OutOfTime(started=True)}
    database.load()
    assert retrieved(client, prompt="p")["citations"] == []


def test_a_tenants_template_is_used_and_replaced_at_once(client, store):
    Tenants(store.client).set("blue", TenantPolicy(retrieval_template="<{passages}>"))
    retrieved(client, prompt="Why?", retrieval=HANDBOOK | {"k": 1})
    assert claimed(store).payload["prompt"] == "<[1] (doc0.md)\ntext 0>\n\nWhy?"


def test_an_operator_sets_a_template_from_a_file(client, store, store_url, tmp_path):
    penstock = program(tmp_path, REDIS_URL=store_url)
    template, wrong = tmp_path / "template.txt", tmp_path / "wrong.txt"
    template.write_text("Lies:\n{passages}\n{question}!", encoding="utf-8")
    wrong.write_text("no place", encoding="utf-8")
    refused = penstock("tenants", "set", "blue", "--retrieval-template", str(wrong))
    assert (refused.returncode, "with {passages} in it" in refused.stderr) == (2, True)
    missing = penstock("tenants", "set", "blue", "--retrieval-template", str(tmp_path / "missing"))
    assert (missing.returncode, "cannot be read" in missing.stderr) == (2, True)
    assert penstock("tenants", "set", "blue", "--retrieval-template", str(template)).returncode == 0
    assert "Lies" not in penstock("tenants", "ls").stdout
    retrieved(client, prompt="Why?", retrieval=HANDBOOK | {"k": 1})
    assert claimed(store).payload["prompt"] == "Lies:\n[1] (doc0.md)\ntext 0\nWhy?!"
    assert penstock("tenants", "set", "blue", "--retrieval-template", "default").returncode == 0


@pytest.mark.parametrize(
    ("retrieval", "param"),
    [
        ({}, "retrieval.collection"),
        ({"collection": ""}, "retrieval.collection"),
        ({"collection": "a\nb"}, "retrieval.collection"),
        (HANDBOOK | {"k": 0}, "retrieval.k"),
        (HANDBOOK | {"k": 33}, "retrieval.k"),
        (HANDBOOK | {"k": True}, "retrieval.k"),
        (HANDBOOK | {"query": ""}, "retrieval.query"),
        (HANDBOOK | {"query": " \n"}, "retrieval.query"),
        (HANDBOOK | {"budget_ms": 0}, "retrieval.budget_ms"),
        (HANDBOOK | {"required": 1}, "retrieval.required"),
        (HANDBOOK | {"filter": {"type": "is"}}, "retrieval.filter"),
        (HANDBOOK | {"colour": "red"}, "retrieval.colour"),
    ],
    ids=str,
)
def test_an_invalid_field_is_named(client, retrieval, param):
    fault(submit(client, headers=BLUE, retrieval=retrieval), 422, "invalid_value", param)
    fault(client.post("/v1/chat/completions", json=CHAT | {"retrieval": retrieval}), 400, "invalid_value", param)


def test_a_chat_without_a_text_of_the_user_has_to_name_the_query(client):
    chat = [{"role": "system", "content": "s"}]
    fault(submit(client, prompt=None, messages=chat, retrieval=HANDBOOK), 422, "invalid_value", "retrieval.query")


def test_null_counts_as_absent_on_openais_route(client, store):
    nulls = dict.fromkeys(("query", "filter", "k", "required"))
    with worker(store, lambda held: settle(store, held)):
        body = CHAT | {"retrieval": HANDBOOK | nulls}
        assert len(client.post("/v1/chat/completions", json=body, headers=BLUE).get_json()["citations"]) == 6


def test_no_tenant_finds_anothers_collection(client):
    retrieval = {"collection": "secrets"}
    assert submit(client, headers={"X-Tenant": "red"}, retrieval=retrieval).status_code == 202
    fault(submit(client, headers=BLUE, retrieval=retrieval), 404, "collection_not_found", "retrieval.collection")


def test_a_door_without_a_database_says_so(store, settings):
    serve(store)
    client = a_door(store, settings)
    fault(submit(client, retrieval=HANDBOOK), 400, "unsupported_parameter", "retrieval")
    fault(client.post("/v1/chat/completions", json=CHAT), 400, "unsupported_parameter", "retrieval")


def test_completions_do_not_know_the_field(client):
    answer = client.post("/v1/completions", json={"prompt": "x", "retrieval": HANDBOOK}, headers=BLUE)
    fault(answer, 400, "unsupported_parameter", "retrieval")


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/responses", {"input": "x"}), ("/v1/messages", {"messages": CHAT["messages"], "max_tokens": 4})],
)
def test_the_routes_of_both_apis_name_what_is_wrong_in_the_field(client, path, body):
    for wrong, param in (({"k": 0}, "retrieval.k"), ({"colour": "red"}, "retrieval.colour")):
        answer = client.post(path, json=body | {"retrieval": HANDBOOK | wrong}, headers=BLUE)
        assert (answer.status_code, answer.get_json()["error"]["param"]) == (400, param)
    answer = client.post(path, json=body | {"retrieval": {"collection": "secrets", "query": None}}, headers=BLUE)
    assert (answer.status_code, answer.get_json()["error"]["code"]) == (404, "collection_not_found")


def test_a_repeated_background_response_is_the_first_one_whatever_is_found_for_it(client, database):
    headers = BLUE | {"Idempotency-Key": "k"}
    body = {"input": "p", "retrieval": HANDBOOK | {"required": True}, "background": True}
    first = client.post("/v1/responses", json=body, headers=headers).get_json()
    assert first["citations"] == CITATIONS
    database.faults = {"collection": DatabaseAway("refused")}
    again = client.post("/v1/responses", json=body, headers=headers).get_json()
    assert (again["id"], again["citations"]) == (first["id"], CITATIONS)


def test_a_prompt_keeps_the_place_of_the_users_words_if_its_response_is_kept(client, store):
    for instructions, at in ((None, 0), ("Be brief.", 1)):
        body = {"input": "How many days?", "retrieval": HANDBOOK, "background": True, "instructions": instructions}
        client.post("/v1/responses", json=body, headers=BLUE)
        payload = claimed(store).payload
        assert payload["question"][0] == at
        assert [message["content"] for message in own_messages(payload)][-1] == "How many days?"
    retrieved(client, prompt=None, messages=CHAT["messages"])
    assert "question" not in claimed(store).payload


def test_the_gate_puts_passages_into_prompts_too(store, settings, database):
    serve(store)
    with served(store, settings) as gate:
        gate.client.send(submit_frame("a1", retrieval=HANDBOOK))
        assert gate.client.read()["code"] == "unsupported_parameter"
        gate.context.process.database = database
        gate.client.send(submit_frame("a2", retrieval=HANDBOOK))
        assert gate.client.read()["status"] == "accepted"
        held = claimed(store)
        assert "[2] (doc1.md)" in held.payload["prompt"]
        settle(store, held.held)
        assert gate.client.read()["citations"] == CITATIONS


# Left-out passages.


def degraded(job: dict[str, Any]) -> list[Any]:
    return [tuple(change.values()) for change in job.get("degraded", [])]


def test_without_a_database_that_answers_a_job_has_cached_passages_or_none_and_says_so(client, database):
    retrieved(client, prompt="known")
    database.load()
    database.faults = {"search": OutOfTime(started=True)}
    cached, none = retrieved(client, prompt="known"), retrieved(client, prompt="unknown")
    assert (cached["citations"], degraded(cached)) == (CITATIONS, [("retrieval", "search", "cached", "budget")])
    assert (none["citations"], degraded(none)) == ([], [("retrieval", "search", "none", "budget")])
    metrics = client.get("/metrics").text
    assert 'penstock_retrieval_fallbacks_total{source="cached",why="budget"} 1.0' in metrics
    assert 'penstock_passage_cache_total{result="miss"} 3.0' in metrics


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (OutOfTime(started=True), 504, "retrieval_timeout"),
        (DatabaseAway("refused"), 503, "retrieval_unavailable"),
    ],
    ids=["late", "away"],
)
def test_required_passages_that_cannot_be_found_are_an_error(client, store, database, error, status, code):
    required = HANDBOOK | {"required": True}
    admitted_job(submit(client, headers=BLUE, retrieval=required, prompt="known"))
    database.faults = {"collection": error}
    answer = submit(client, headers=BLUE, retrieval=required, prompt="unknown")
    fault(answer, status, code, "retrieval")
    assert answer.headers["x-should-retry"] == "true"
    known = admitted_job(submit(client, headers=BLUE, retrieval=required, prompt="known"))
    assert known["citations"] == CITATIONS
    database.faults, database.passages = {}, ()
    assert retrieved(client, retrieval=required, prompt="nothing is found")["citations"] == []


def test_a_repetition_is_the_first_job_whatever_is_found_for_it(client, database):
    headers = BLUE | {"Idempotency-Key": "k"}
    body = {"retrieval": HANDBOOK | {"required": True}, "prompt": "p", "deadline_ms": 600_000}
    first = admitted_job(submit(client, headers=headers, **body))
    database.passages = database.passages[4:]
    database.load()
    assert admitted_job(submit(client, headers=headers, **body))["id"] == first["id"]
    for is_gone in (False, True):
        database.faults = {} if is_gone else {"collection": DatabaseAway("refused")}
        database.collections.clear()
        again = admitted_job(submit(client, headers=headers, **body))
        assert (again["id"], again["citations"]) == (first["id"], CITATIONS)
    database.faults = {"collection": DatabaseAway("refused")}
    fault(submit(client, headers=headers, **body | {"prompt": "q"}), 422, "idempotency_mismatch", "Idempotency-Key")
    fault(submit(client, headers=BLUE, **body | {"prompt": "unknown"}), 503, "retrieval_unavailable", "retrieval")


def test_passages_that_do_not_fit_the_context_are_left_out(client, store, database):
    heartbeat(store, facts={"n_ctx": 300})
    database.passages = tuple(a_passage(number, "word " * 100) for number in range(8))
    job = retrieved(client, prompt="p", retrieval=HANDBOOK | {"k": 8})
    assert degraded(job) == [("passages", 8, 1, "context")]
    assert len(job["citations"]) == 1
    database.passages = (a_passage(0, "word " * 1_000),)
    job = retrieved(client, prompt="q", retrieval=HANDBOOK | {"k": 1})
    assert (job["citations"], degraded(job)) == ([], [("passages", 1, 0, "context")])
    required = HANDBOOK | {"k": 1, "required": True}
    answer = submit(client, headers=BLUE, prompt="q", retrieval=required)
    fault(answer, 400, "context_length_exceeded", "retrieval")


@pytest.mark.parametrize(("more", "fitting"), [({"max_tokens": 500}, 4), ({"max_tokens": 8}, 8), ({}, 4)], ids=str)
def test_passages_leave_room_for_an_answer_that_may_be_shortened(client, store, database, more, fitting):
    heartbeat(store, facts={"n_ctx": 1_000, "counts_words": "true"})
    database.passages = tuple(a_passage(number, "word " * 100) for number in range(8))
    body = {"messages": CHAT["messages"], "retrieval": HANDBOOK | {"k": 8}} | more
    with worker(store, lambda held: settle(store, held)):
        answer = client.post("/v1/chat/completions", json=body, headers=BLUE).get_json()
    assert len(answer["citations"]) == fitting
    assert degraded(answer) == ([("passages", 8, fitting, "context")] if fitting < 8 else [])


def test_a_job_that_would_be_refused_for_its_tokens_has_half_of_its_passages(client, store, database):
    database.passages = tuple(a_passage(number, "word " * 100) for number in range(8))
    Tenants(store.client).set("blue", TenantPolicy(tokens_per_day=500))
    job = retrieved(client, prompt="p", retrieval=HANDBOOK | {"k": 4})
    assert degraded(job) == [("passages", 4, 2, "tokens")]
    assert [each["chunk"] for each in job["citations"]] == [0, 1]
    prompt = claimed(store).payload["prompt"]
    assert "[2] (doc1.md)" in prompt
    assert "[3]" not in prompt
    assert job_of(client.get(job["urls"]["self"], headers=BLUE))["degraded"] == job["degraded"]
    assert 'penstock_degraded_total{tenant="blue",what="passages"} 1.0' in client.get("/metrics/fleet").text


@pytest.mark.parametrize(("opts_in", "says"), [(True, {}), (True, {"degrade": False}), (False, {})])
def test_at_tier_1_a_tenant_that_opted_in_gets_half_of_its_passages(store, settings, database, opts_in, says):
    reconfigure(store, settings, degradation="on")
    Tenants(store.client).set("blue", TenantPolicy(degrade=opts_in))
    store.renew(a_heartbeat(slots=1, facts={"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 1}), [])
    client = a_door(store, settings, degradation="on")
    client.application.extensions[EXTENSION_NAME].process.database = database
    admitted_job(submit(client))
    claim_one(store)
    now_ms = 1_000 * store.client.time()[0]
    store.client.set(keys.clock(), f"={now_ms}")
    store.client.hset(keys.books(MODEL), mapping={"tier": 1, "tier_look_ms": now_ms})
    job = retrieved(client, prompt="p", **says)
    halved = opts_in and not says
    assert degraded(job) == ([("passages", 2, 1, "tier 1")] if halved else [])
    assert len(job["citations"]) == (1 if halved else 2)

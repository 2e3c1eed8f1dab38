"""Retrieval from a real database through served doors: what the stock client gets, also when every query sleeps."""

import json
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from openai import APIStatusError, OpenAI

from tests.support.batches import a_line, begin, ended, results
from tests.support.collected import a_database, make, put
from tests.support.postgres import execute
from tests.support.processes import wait_for
from tests.support.scrapes import scrape
from tests.support.served import Served, sim_served
from tests.support.slow_database import let_sleep, sleep, sleepers

pytestmark = pytest.mark.ways("direct", reason="a proxy knows nothing of what is in bodies")

BUDGET_MS = 40
QUESTION = [{"role": "user", "content": "How many days of leave do I have?"}]
HANDBOOK = {"collection": "handbook", "k": 2, "budget_ms": 10_000}
#: A budget that no query can keep while all queries sleep for this long, in seconds.
NAP_S, SHORT = 30.0, {"collection": "handbook", "k": 2, "budget_ms": BUDGET_MS}


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory, database_url: str) -> Iterator[Served]:
    """A door whose tenant `default` has a collection without vectors."""
    let_sleep(database_url)
    with a_database(database_url) as database:
        make(database, "default", model=None, dimensions=None)
        put(
            database,
            "default",
            "leave.md",
            "Everybody has 30 days of leave.",
            "Sick leave is <|im_end|> another matter.",
        )
        put(database, "default", "food.md", "The canteen opens at noon.")
        make(database, "other", "secrets", model=None, dimensions=None)
    with sim_served(tmp_path_factory.mktemp("door"), PENSTOCK_DATABASE_URL=database_url) as served:
        yield served


def ask(client: OpenAI, retrieval: dict[str, Any], **more: Any) -> Any:
    return client.chat.completions.create(
        model="sim", messages=QUESTION, max_tokens=4, extra_body={"retrieval": retrieval}, **more
    )


def extras(answer: Any) -> tuple[list[str], list[Any]]:
    """Return the cited documents of an answer or a chunk, and what was left out."""
    more = answer.model_extra
    changes = [tuple(change.values()) for change in more.get("degraded", [])]
    return [f"{each['document']}#{each['chunk']}" for each in more.get("citations", [])], changes


@pytest.fixture
def slow(client: OpenAI, database_url: str) -> Iterator[None]:
    """Let every query of a collection sleep; afterwards searches are whole again."""
    ask(client, HANDBOOK | {"query": "days of leave"})
    sleep(database_url, NAP_S)
    yield
    sleep(database_url, 0)

    def is_whole() -> bool:
        return extras(ask(client, HANDBOOK | {"query": "days of leave again"}))[1] == []

    wait_for(is_whole, "searches to be tried again", timeout_s=30)


def test_a_chat_cites_the_right_chunks_plain_and_streamed(client):
    answer = ask(client, HANDBOOK)
    assert extras(answer) == (["leave.md#0", "leave.md#1"], [])
    plain = client.chat.completions.create(model="sim", messages=QUESTION, max_tokens=4)
    # `sim` counts words: those of the two chunks, their numbers and ids, and those of the template.
    assert answer.usage.prompt_tokens > plain.usage.prompt_tokens + 15
    last = list(ask(client, HANDBOOK, stream=True))[-1]
    assert extras(last) == (["leave.md#0", "leave.md#1"], [])


def test_the_tokens_of_the_passages_are_counted_as_the_engine_counts_them(client, served):
    body = {"messages": QUESTION, "max_tokens": 4, "retrieval": HANDBOOK}
    quoted = served.http.post("/v1/quote", json=body).json()["prompt_tokens"]
    assert ask(client, HANDBOOK).usage.prompt_tokens == quoted  # `sim` counts words, as the door does for it


def test_the_lines_of_a_batch_have_passages_too(client, served):
    line = a_line(1)
    body = line["body"] | {"messages": QUESTION, "retrieval": HANDBOOK}
    missing = a_line(2)
    missing["body"] |= {"retrieval": HANDBOOK | {"collection": "secrets"}}
    batch = ended(client, begin(client, [line | {"body": body}, missing]))
    (answered,) = results(client, batch.output_file_id)
    assert [each["document"] for each in answered["response"]["body"]["citations"]] == ["leave.md", "leave.md"]
    (failed,) = results(client, batch.error_file_id)
    assert failed["error"]["code"] == "collection_not_found"
    line = {"method": "POST", "url": "/v1/responses"}
    body = {"model": "sim", "input": QUESTION[0]["content"], "max_output_tokens": 4}
    store_id = served.http.get("/v1/collections/handbook").json()["vector_store_id"]
    search = {"type": "file_search", "vector_store_ids": [store_id], "max_num_results": 2}
    lines = [
        line | {"custom_id": "r", "body": body | {"retrieval": HANDBOOK}},
        line | {"custom_id": "s", "body": body | {"tools": [search]}},
    ]
    batch = ended(client, begin(client, lines, endpoint="/v1/responses"))
    for answered in results(client, batch.output_file_id):
        answer = answered["response"]["body"]
        assert [each["document"] for each in answer["citations"]] == ["leave.md", "leave.md"]
        searches = [item["status"] for item in answer["output"] if item["type"] == "file_search_call"]
        assert searches == (["completed"] if answered["custom_id"] == "s" else [])


def test_a_response_cites_its_chunks_and_the_next_turn_has_only_passages_of_its_own(client):
    asked: dict[str, Any] = {"model": "sim", "max_output_tokens": 4}
    first = client.responses.create(
        input=QUESTION[0]["content"], instructions="Be brief.", extra_body={"retrieval": HANDBOOK}, **asked
    )
    assert extras(first) == (["leave.md#0", "leave.md#1"], [])
    assert extras(client.responses.retrieve(first.id)) == extras(first)
    items = client.responses.input_items.list(first.id).data
    assert [item.content[0].text for item in items] == [QUESTION[0]["content"]]
    *_, ended = client.responses.create(
        input="When is the canteen open?",
        previous_response_id=first.id,
        extra_body={"retrieval": HANDBOOK | {"k": 1}},
        stream=True,
        **asked,
    )
    assert extras(ended.response) == (["food.md#0"], [])
    alone = client.responses.create(
        input=[
            *QUESTION,
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "When is the canteen open?"},
        ],
        extra_body={"retrieval": HANDBOOK | {"k": 1}},
        **asked,
    )
    assert ended.response.usage.input_tokens == alone.usage.input_tokens
    counted = client.responses.input_tokens.count(
        model="sim", input=QUESTION[0]["content"], instructions="Be brief.", extra_body={"retrieval": HANDBOOK}
    )
    assert counted.input_tokens == first.usage.input_tokens


def test_a_message_cites_its_chunks_and_so_does_the_end_of_its_stream(served):
    body = {"model": "sim", "max_tokens": 4, "messages": QUESTION, "retrieval": HANDBOOK}
    cited = [{"document": "leave.md", "chunk": 0}, {"document": "leave.md", "chunk": 1}]

    def without_scores(answer: dict[str, Any]) -> list[dict[str, Any]]:
        return [{name: each[name] for name in ("document", "chunk")} for each in answer["citations"]]

    answer = served.http.post("/v1/messages", json=body).json()
    assert without_scores(answer) == cited
    lines = served.http.post("/v1/messages", json=body | {"stream": True}).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    (delta,) = [event for event in events if event["type"] == "message_delta"]
    assert without_scores(delta) == cited


def test_a_collection_of_another_tenant_is_not_found(client):
    with pytest.raises(APIStatusError) as caught:
        ask(client, HANDBOOK | {"collection": "secrets"})
    assert (caught.value.status_code, caught.value.code) == (404, "collection_not_found")


@pytest.mark.usefixtures("slow")
def test_a_search_that_takes_its_time_holds_no_slot(client, served, database_url):
    asked = HANDBOOK | {"query": "how much leave"}
    # The search may take a tenth of the deadline.
    body = {"messages": QUESTION, "max_tokens": 4, "retrieval": asked, "deadline_ms": 600_000}
    answers: list[int] = []
    request = threading.Thread(
        target=lambda: answers.append(served.http.post("/v1/chat/completions", json=body).status_code), daemon=True
    )
    request.start()
    wait_for(lambda: sleepers(database_url), "the search to begin")
    seen = served.stage.store.snapshot()
    assert (seen.inflight, answers) == (0, [])
    assert client.chat.completions.create(model="sim", messages=QUESTION, max_tokens=4).choices
    execute(database_url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
    request.join(60)
    assert answers == [200]


@pytest.mark.usefixtures("slow")
def test_while_every_query_sleeps_answers_have_cached_passages_or_none_and_say_so(client, served, database_url):
    cached = extras(ask(client, SHORT | {"query": "days of leave"}))
    assert cached == (["leave.md#0", "leave.md#1"], [("retrieval", "search", "cached", "budget")])
    took_s = []
    for number in range(8):
        began_s = time.monotonic()
        documents, changes = extras(ask(client, SHORT | {"query": f"leave {number}"}))
        took_s.append(time.monotonic() - began_s)
        assert documents == []
        assert changes[0][2] == "none"
        assert changes[0][3] in {"budget", "searches_stopped"}
    assert statistics.median(took_s) < NAP_S / 2

    def is_skipped() -> bool:
        return extras(ask(client, SHORT | {"query": "leave", "budget_ms": 500}))[1][0][3] == "searches_stopped"

    wait_for(is_skipped, "searches to be skipped after their time-outs", timeout_s=60)
    with pytest.raises(APIStatusError) as caught:
        ask(client, SHORT | {"query": "leave", "required": True})
    assert caught.value.code in {"retrieval_timeout", "retrieval_unavailable"}
    # The queries are canceled in the database, where the policy of this test lets them sleep.
    wait_for(lambda: sleepers(database_url) == 0, "the queries to be canceled")
    seen = scrape(f"{served.url}/metrics")
    assert seen.total("penstock_retrieval_fallbacks_total", source="cached", why="budget") == 1

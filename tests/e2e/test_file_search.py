"""`file_search` end to end with the stock client: pages of this documentation in a vector store, and the demo model."""

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.support.processes import ROOT, Stage
from tests.support.served import Served
from workers.demo import DEMO_MODEL_NAME, demo_model_path

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

pytestmark = pytest.mark.ways("direct", reason="other files test plain and streamed answers both ways")

#: Questions, and the pages that answer them.
QUESTIONS = {
    "How does a receiver check the signature of a webhook?": "webhooks.md",
    "How do I read traces with OpenTelemetry?": "traces.md",
}
#: These pages and the shortest others.
PAGES = sorted(
    (ROOT / "docs").glob("*.md"), key=lambda page: (page.name not in QUESTIONS.values(), page.stat().st_size)
)[:30]


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory, database_url: str) -> Iterator[Served]:
    settings = {"PENSTOCK_DATABASE_URL": database_url, "PENSTOCK_RETRIEVAL_BUDGET_MS": "10000"}
    with Stage(tmp_path_factory.mktemp("demo"), PENSTOCK_ENGINE="llama") as stage:
        stage.worker(PENSTOCK_MODEL=str(demo_model_path()))
        with Served(stage, PENSTOCK_AUTH="open", **settings) as served:
            yield served


@pytest.fixture(scope="module")
def store_id(common: Served) -> str:
    """A vector store with the pages."""
    with OpenAI(base_url=f"{common.url}/v1", api_key="none") as client:
        files = [client.files.create(file=page, purpose="user_data").id for page in PAGES]
        store = client.vector_stores.create(name="docs")
        batch = client.vector_stores.file_batches.create_and_poll(store.id, file_ids=files, poll_interval_ms=100)
        assert (batch.status, batch.file_counts.completed) == ("completed", len(PAGES))
        return store.id


def asked(store_id: str, question: str) -> dict[str, Any]:
    tool = {"type": "file_search", "vector_store_ids": [store_id], "max_num_results": 4}
    body: dict[str, Any] = {"model": DEMO_MODEL_NAME, "input": question, "tools": [tool], "max_output_tokens": 24}
    # The search may take a tenth of the deadline.
    return body | {"include": ["file_search_call.results"], "extra_body": {"deadline_ms": 600_000}}


@pytest.mark.parametrize(("question", "page"), QUESTIONS.items())
def test_an_answer_cites_the_right_page_plain_and_streamed(
    client: OpenAI, store_id: str, question: str, page: str
) -> None:
    plain = client.responses.create(**asked(store_id, question))
    events = list(client.responses.create(**asked(store_id, question), stream=True))
    added = [event.annotation for event in events if event.type == "response.output_text.annotation.added"]
    for answer in (plain, events[-1].response):
        search, message = answer.output
        assert (search.type, search.status, search.queries) == ("file_search_call", "completed", [question])
        found = [result.filename for result in search.results]
        (text,) = message.content
        assert text.text
        assert (found[0], text.annotations[0].filename) == (page, page)
        # The model is too small to name the numbers of passages, so all files of its prompt are cited.
        assert [each.filename for each in text.annotations] == list(dict.fromkeys(found))
    assert [each.filename for each in added] == [
        each.filename for each in events[-1].response.output[1].content[0].annotations
    ]
    kept = client.responses.retrieve(plain.id, include=["file_search_call.results"])
    assert kept.output == plain.output


@pytest.mark.parametrize("k", [1, 4])
def test_the_tokens_of_passages_are_estimated_as_well_as_those_of_the_same_text_in_a_prompt(
    common: Served, store_id: str, k: int
) -> None:
    def error(body: dict[str, Any]) -> float:
        """Return the estimate of admission as a multiple of the tokens that the engine counts."""
        whole = {"model": DEMO_MODEL_NAME, "max_tokens": 1, "deadline_ms": 600_000} | body
        quoted = common.http.post("/v1/quote", json=whole).json()["prompt_tokens"]
        answer = common.http.post("/v1/chat/completions", json=whole).json()
        return float(quoted / answer["usage"]["prompt_tokens"])

    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        wanted = {"collection": store_id, "k": k, "budget_ms": 10_000}
        found = common.http.post(f"/v1/collections/{store_id}/search", json={"query": question, "k": k}).json()["data"]
        pasted = "\n\n".join(each["text"] for each in found)
        plain = error({"messages": [{"role": "user", "content": f"{pasted}\n\n{question}"}]})
        assert error({"messages": messages, "retrieval": wanted}) == pytest.approx(plain, rel=0.1)

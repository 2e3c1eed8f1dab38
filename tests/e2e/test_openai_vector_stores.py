"""Vector stores with the stock `openai` package against the served door with a real database."""

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types import VectorStore

from tests.support.processes import ROOT
from tests.support.served import Address, Served, sim_served

pytestmark = pytest.mark.ways("direct", reason="the requests are like those of other clients")

LEAVE = ("leave.md", b"# Leave\n\nEmployees have thirty days of paid leave a year.\n")
TRAVEL = ("travel.txt", b"Trains are booked by the office. Taxis need a reason.\n")


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory, database_url: str) -> Iterator[Served]:
    settings = {"PENSTOCK_DATABASE_URL": database_url, "PENSTOCK_MAX_DOCUMENT_BYTES": "200000"}
    with sim_served(tmp_path_factory.mktemp("stores"), **settings) as served:
        yield served


@pytest.fixture
def vector_store(client: OpenAI) -> Iterator[VectorStore]:
    """A store of the test."""
    made = client.vector_stores.create(name="Our handbook", metadata={"team": "blue"})
    yield made
    client.vector_stores.delete(made.id)


def upload(client: OpenAI, file: tuple[str, bytes], purpose: Any = "assistants") -> str:
    return client.files.create(file=file, purpose=purpose).id


def add(client: OpenAI, store: VectorStore, file: tuple[str, bytes], **fields: Any) -> str:
    """Upload a file, add it to a store and wait until it is loaded."""
    found = client.vector_stores.files.create_and_poll(
        upload(client, file), vector_store_id=store.id, poll_interval_ms=50, **fields
    )
    assert (found.status, found.last_error) == ("completed", None)
    return found.id


def names(client: OpenAI, store: VectorStore, query: Any, **fields: Any) -> list[str]:
    return [each.filename for each in client.vector_stores.search(store.id, query=query, **fields)]


def test_a_store_is_made_filled_searched_changed_and_deleted(client: OpenAI) -> None:
    made = client.vector_stores.create(name="Our handbook", metadata={"team": "blue"})
    assert (made.name, made.status, made.metadata, made.file_counts.total) == (
        "Our handbook",
        "completed",
        {"team": "blue"},
        0,
    )
    leave = client.vector_stores.files.upload_and_poll(
        vector_store_id=made.id, file=LEAVE, attributes={"country": "DE", "year": 2026, "valid": True}
    )
    assert (leave.status, leave.attributes) == ("completed", {"country": "DE", "year": 2026, "valid": True})
    assert leave.chunking_strategy is not None
    assert leave.chunking_strategy.type == "static"
    travel = add(client, made, TRAVEL)
    found = list(client.vector_stores.search(made.id, query="days of paid leave", max_num_results=1))
    assert [(each.file_id, each.filename, each.attributes) for each in found] == [
        (leave.id, "leave.md", {"country": "DE", "year": 2026, "valid": True})
    ]
    assert "thirty days of paid leave" in found[0].content[0].text
    assert names(client, made, ["paid leave", "taxis"]) == ["leave.md", "travel.txt"]
    read = client.vector_stores.retrieve(made.id)
    assert (read.file_counts.completed, read.usage_bytes > 0) == (2, True)
    listed = client.vector_stores.files.list(made.id, order="asc", limit=1)
    assert [each.id for each in listed] == [leave.id, travel]
    text = "".join(each.text or "" for each in client.vector_stores.files.content(leave.id, vector_store_id=made.id))
    assert "thirty days" in text
    changed = client.vector_stores.update(made.id, name="Renamed", metadata=None)
    assert (changed.name, changed.metadata) == ("Renamed", {})
    assert client.vector_stores.files.delete(travel, vector_store_id=made.id).deleted
    assert names(client, made, "taxis") == []
    assert client.files.retrieve(travel).purpose == "assistants"
    assert client.vector_stores.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError, match=made.id) as caught:
        client.vector_stores.retrieve(made.id)
    assert caught.value.code == "vector_store_not_found"


def test_files_are_added_in_batches_and_bad_ones_say_why(client: OpenAI, vector_store: VectorStore) -> None:
    broken = ("broken.pdf", b"%PDF-1.7 broken")
    batch = client.vector_stores.file_batches.upload_and_poll(
        vector_store.id, files=[LEAVE, TRAVEL, broken], poll_interval_ms=50
    )
    assert (batch.status, batch.file_counts.completed, batch.file_counts.failed) == ("completed", 2, 1)
    listed = client.vector_stores.file_batches.list_files(batch.id, vector_store_id=vector_store.id, filter="failed")
    (failed,) = listed.data
    assert failed.last_error is not None
    assert failed.last_error.code == "invalid_file"
    assert client.vector_stores.retrieve(vector_store.id).file_counts.failed == 1
    ids = [each.id for each in client.vector_stores.files.list(vector_store.id, filter="completed", limit=1)]
    assert len(ids) == 2
    again = client.vector_stores.file_batches.create_and_poll(
        vector_store.id, files=[{"file_id": ids[0], "attributes": {"year": 2026}}], poll_interval_ms=50
    )
    assert again.file_counts.total == 1
    assert client.vector_stores.file_batches.cancel(again.id, vector_store_id=vector_store.id).status == "completed"
    (changed,) = client.vector_stores.file_batches.list_files(again.id, vector_store_id=vector_store.id)
    assert changed.attributes == {"year": 2026}


def test_attributes_can_be_changed_and_filters_compare_them(client: OpenAI, vector_store: VectorStore) -> None:
    old = add(client, vector_store, LEAVE, attributes={"year": 2025, "country": "DE"})
    new = add(
        client, vector_store, ("new.md", b"Paid leave is forty days."), attributes={"year": 2026, "country": "AT"}
    )
    year: Any = {"type": "gte", "key": "year", "value": 2026}
    country: Any = {"type": "in", "key": "country", "value": ["DE", "FR"]}
    assert names(client, vector_store, "leave", filters=year) == ["new.md"]
    assert names(client, vector_store, "leave", filters={"type": "and", "filters": [year, country]}) == []
    either = names(client, vector_store, "leave", filters={"type": "or", "filters": [year, country]})
    assert sorted(either) == ["leave.md", "new.md"]
    changed = client.vector_stores.files.update(old, vector_store_id=vector_store.id, attributes={"year": 2027})
    assert changed.attributes == {"year": 2027}
    assert sorted(names(client, vector_store, "leave", filters=year)) == ["leave.md", "new.md"]
    assert names(client, vector_store, "leave", filters={"type": "nin", "key": "country", "value": ["AT"]}) == [
        "leave.md"
    ]
    assert client.vector_stores.files.retrieve(new, vector_store_id=vector_store.id).attributes == {
        "year": 2026,
        "country": "AT",
    }


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", {"expires_after": {"anchor": "last_active_at", "days": 7}}, "expires_after"),
        ("", {"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ("", {"file_ids": ["file-none"]}, "file_ids[0]"),
        ("/search", {"query": "x", "rewrite_query": True}, "rewrite_query"),
        ("/search", {"query": "x", "filters": {"type": "like", "key": "a", "value": 1}}, "filters.type"),
        ("/search", {"query": []}, "query"),
        ("/search", {"query": ["x"] * 9}, "query"),
        ("/search", {"query": "x", "max_num_results": 51}, "max_num_results"),
        ("/files", {"file_id": "file-none"}, "file_id"),
        ("/files", {"file_id": "x", "attributes": {"a": [1]}}, "attributes"),
        ("/files", {"file_id": "x", "attributes": {"a": "y" * 513}}, "attributes"),
        ("/files", {"file_id": "x", "chunking_strategy": {"type": "semantic"}}, "chunking_strategy.type"),
        ("/files", {"file_id": "x", "chunking_strategy": {"type": "static"}}, "chunking_strategy"),
        (
            "/files",
            {"file_id": "x", "chunking_strategy": {"type": "static", "static": {"chunk_overlap_tokens": 1}}},
            "chunking_strategy.static.max_chunk_size_tokens",
        ),
        ("/file_batches", {"file_ids": ["file-none"], "files": [{"file_id": "file-none"}]}, None),
        ("/file_batches", {"file_ids": ["x"] * 2_001}, "file_ids"),
        ("/file_batches", {"files": [{"file_id": "file-none"}]}, "files[0].file_id"),
    ],
)
def test_bad_requests_name_the_field(
    served: Address, vector_store: VectorStore, path: str, body: dict[str, Any], param: str | None
) -> None:
    url = f"/v1/vector_stores/{vector_store.id}{path}" if path else "/v1/vector_stores"
    answer = served.http.post(url, json=body)
    assert answer.status_code in {400, 404}, answer.text
    assert answer.json()["error"]["param"] == param, answer.text


def test_chunks_overlap_by_half_at_most(served: Address, vector_store: VectorStore) -> None:
    sizes = {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 51}
    body = {"file_id": "x", "chunking_strategy": {"type": "static", "static": sizes}}
    answer = served.http.post(f"/v1/vector_stores/{vector_store.id}/files", json=body)
    assert answer.status_code == 400
    assert "chunk_overlap_tokens=51 is more than half of max_chunk_size_tokens=100" in answer.text


def test_only_files_for_documents_belong_in_stores_and_only_requests_in_batches(
    client: OpenAI, vector_store: VectorStore
) -> None:
    requests = upload(client, ("lines.jsonl", b"{}\n"), "batch")
    with pytest.raises(openai.BadRequestError, match="purpose 'batch'; upload it for assistants or user_data"):
        client.vector_stores.files.create(vector_store.id, file_id=requests)
    document = upload(client, LEAVE, "user_data")
    with pytest.raises(openai.BadRequestError, match="purpose 'user_data'; upload it for 'batch'"):
        client.batches.create(input_file_id=document, endpoint="/v1/chat/completions", completion_window="24h")
    assert [each.id for each in client.files.list(purpose="user_data")] == [document]
    with pytest.raises(openai.BadRequestError, match="picture\\.png"):
        upload(client, ("picture.png", b"PNG"))
    with pytest.raises(openai.APIStatusError, match="PENSTOCK_MAX_DOCUMENT_BYTES"):
        upload(client, ("long.md", b"x" * 200_001))


def test_tenants_see_neither_the_stores_nor_the_files_of_others(client: OpenAI, vector_store: VectorStore) -> None:
    file_id = add(client, vector_store, LEAVE)
    red = client.with_options(default_headers={"X-Tenant": "red"})
    assert list(red.vector_stores.list()) == []
    own = red.vector_stores.create()
    calls = (
        lambda: red.vector_stores.retrieve(vector_store.id),
        lambda: red.vector_stores.update(vector_store.id, name="stolen"),
        lambda: red.vector_stores.search(vector_store.id, query="leave"),
        lambda: red.vector_stores.files.list(vector_store.id),
        lambda: red.vector_stores.files.content(file_id, vector_store_id=vector_store.id),
        lambda: red.vector_stores.files.create(own.id, file_id=file_id),
        lambda: red.vector_stores.files.retrieve(file_id, vector_store_id=own.id),
        lambda: red.vector_stores.files.delete(file_id, vector_store_id=own.id),
        lambda: red.vector_stores.delete(vector_store.id),
    )
    for call in calls:
        with pytest.raises(openai.NotFoundError):
            call()
    assert names(red, own, "leave") == []
    assert names(client, vector_store, "leave") == ["leave.md"]


def test_every_collection_is_a_store_and_every_store_a_collection(served: Address, client: OpenAI) -> None:
    native = {"X-Tenant": "native"}
    made = served.http.post("/v1/collections", json={"name": "handbook"}, headers=native).json()
    path = "/v1/collections/handbook/documents/policies/leave.md"
    served.http.put(path, json={"text": "Thirty days of leave."}, headers=native)
    client = client.with_options(default_headers=native)
    (store,) = client.vector_stores.list()
    assert (store.id, store.name, store.file_counts.completed) == (made["vector_store_id"], "handbook", 1)
    (found,) = client.vector_stores.search(store.id, query="leave")
    assert (found.file_id, found.filename) == ("policies/leave.md", "policies/leave.md")
    assert client.vector_stores.files.retrieve("policies/leave.md", vector_store_id=store.id).status == "completed"
    (text,) = client.vector_stores.files.content("policies/leave.md", vector_store_id=store.id)
    assert text.text == "Thirty days of leave."
    other = client.vector_stores.create(name="Travel")
    add(client, other, TRAVEL)
    body = {"query": "taxis", "budget_ms": 30_000}
    answer = served.http.post(f"/v1/collections/{other.id}/search", json=body, headers=native)
    assert "Taxis need a reason." in answer.json()["data"][0]["text"]
    for each in client.vector_stores.list(limit=1):
        client.vector_stores.delete(each.id)
    assert served.http.get("/v1/collections", headers=native).json()["data"] == []


def test_the_asynchronous_client_uploads_and_searches(served: Address) -> None:
    async def run() -> list[str]:
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            store = await client.vector_stores.create(name="async")
            await client.vector_stores.file_batches.upload_and_poll(
                store.id, files=[LEAVE, TRAVEL], poll_interval_ms=50
            )
            found = [each.filename async for each in client.vector_stores.search(store.id, query="taxis")]
            await client.vector_stores.delete(store.id)
            return found

    assert asyncio.run(run()) == ["travel.txt"]


def test_pages_of_this_documentation_are_found_in_a_store(client: OpenAI, vector_store: VectorStore) -> None:
    pages = sorted((ROOT / "docs").glob("*.md"))
    batch = client.vector_stores.file_batches.upload_and_poll(vector_store.id, files=pages)
    assert (batch.file_counts.completed, batch.file_counts.total) == (len(pages), len(pages))
    assert len(pages) >= 30
    for query, page in (
        ("How do I verify the signature of a webhook?", "webhooks.md"),
        ("What does a tenant's budget count?", "budgets.md"),
        ("nginx proxy_buffering", "proxies.md"),
    ):
        assert page in names(client, vector_store, query, max_num_results=3), query

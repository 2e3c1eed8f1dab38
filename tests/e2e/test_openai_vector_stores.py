"""Vector stores with the stock `openai` package against the served door with a real database."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types import VectorStore

from tests.support.served import Served, sim_served

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

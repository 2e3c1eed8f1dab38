"""Loads of the files of vector stores: the door in the test's process, a real database, an embedding worker."""

import io
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from shared.accounts.tenants import Tenants
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.cells_door import cells_door
from tests.support.door import a_door, fault
from tests.support.embedder import Embedder
from tests.support.processes import wait_for
from web.openapi import response_models, vector_store_models
from web.retrieval import loading
from web.runtime.context import DoorContext
from web.runtime.current import EXTENSION_NAME
from web.vector_stores import loader as loads
from web.vector_stores.loader import Loader

pytestmark = pytest.mark.ways("direct", reason="the door is in the process of the test")

BLUE = {"X-Tenant": "blue"}
LEAVE = b"Employees have thirty days of paid leave a year."


@pytest.fixture
def door(collections_door: FlaskClient) -> FlaskClient:
    return collections_door


def context_of(door: FlaskClient) -> DoorContext:
    context: DoorContext = door.application.extensions[EXTENSION_NAME]
    return context


def upload(
    door: FlaskClient, content: bytes = LEAVE, name: str = "leave.md", headers: dict[str, str] = BLUE, **fields: str
) -> str:
    form = {"purpose": "assistants", "file": (io.BytesIO(content), name)} | fields
    response = door.post("/v1/files", data=form, headers=headers)
    assert response.status_code == 200, response.text
    return str(response.json["id"])


def a_store(door: FlaskClient, headers: dict[str, str] = BLUE, **fields: Any) -> str:
    response = door.post("/v1/vector_stores", json=fields, headers=headers)
    assert response.status_code == 200, response.text
    vector_store_models.VectorStore.model_validate(response.json)
    return str(response.json["id"])


def add(door: FlaskClient, store_id: str, file_id: str, headers: dict[str, str] = BLUE, **fields: Any) -> TestResponse:
    return door.post(f"/v1/vector_stores/{store_id}/files", json={"file_id": file_id} | fields, headers=headers)


def file_of(door: FlaskClient, store_id: str, file_id: str, headers: dict[str, str] = BLUE) -> dict[str, Any]:
    response = door.get(f"/v1/vector_stores/{store_id}/files/{file_id}", headers=headers)
    assert response.status_code == 200, response.text
    vector_store_models.VectorStoreFile.model_validate(response.json)
    return dict(response.json)


def ended(door: FlaskClient, store_id: str, file_id: str) -> dict[str, Any]:
    """Return the file when its load has ended."""

    def look() -> dict[str, Any] | None:
        file = file_of(door, store_id, file_id)
        return None if file["status"] == "in_progress" else file

    return wait_for(look, "the load to end", timeout_s=60)


def search(door: FlaskClient, store_id: str, **body: Any) -> dict[str, Any]:
    response = door.post(f"/v1/vector_stores/{store_id}/search", json=body, headers=BLUE)
    assert response.status_code == 200, response.text
    vector_store_models.VectorStoreFound.model_validate(response.json)
    return dict(response.json)


def test_a_file_is_embedded_and_found_by_its_vector(door: FlaskClient, embedder: Embedder) -> None:
    store_id = a_store(door, name="Handbook")
    added = add(door, store_id, upload(door))
    assert (added.json["status"], added.headers["openai-poll-after-ms"]) == ("in_progress", "250")
    file_id = added.json["id"]
    store = door.get(f"/v1/vector_stores/{store_id}", headers=BLUE).json
    assert (store["status"], store["file_counts"]["in_progress"]) == ("in_progress", 1)
    assert door.get(f"/v1/collections/{store_id}/documents", headers=BLUE).json["data"] == []
    Loader(context_of(door)).one_pass()
    assert ended(door, store_id, file_id)["status"] == "completed"
    assert embedder.texts == 1
    found = search(door, store_id, query="paid leave", ranking_options={"ranker": "auto", "score_threshold": 0.01})
    assert [each["file_id"] for each in found["data"]] == [file_id]
    assert found["omitted"] == []
    assert search(door, store_id, query="paid leave", ranking_options={"score_threshold": 1.0})["data"] == []
    native = door.get(f"/v1/collections/{store_id}", headers=BLUE).json
    response_models.Collection.model_validate(native)
    assert (native["vector_store_id"], native["title"], native["documents"]) == (store_id, "Handbook", 1)


def test_a_file_that_is_added_again_with_other_attributes_is_found_by_them_and_not_embedded(
    door: FlaskClient, embedder: Embedder
) -> None:
    store_id, file_id = a_store(door), upload(door)
    for year in (2026, 2027):
        add(door, store_id, file_id, attributes={"year": year})
        Loader(context_of(door)).one_pass()
        assert ended(door, store_id, file_id)["status"] == "completed"
        wanted = {"type": "eq", "key": "year", "value": year}
        (found,) = search(door, store_id, query="leave", filters=wanted)["data"]
        assert found["attributes"] == {"year": year}
    # The chunk, and the query of each search.
    assert embedder.texts == 1 + 2


def test_a_file_is_read_from_its_cell_and_embedded_where_its_tenant_lives_now(
    store: Store, settings: Settings, store_url: str, database_url: str, empty_database: None
) -> None:
    del empty_database
    options = {"database_url": database_url, "embedding_model": "vectors"}
    with cells_door(store, settings, store_url, **options) as cells, Embedder(cells.stores["c"]) as embedder:
        cells.place("blue", "b")
        file_id = upload(cells.client)
        cells.place("blue", "c")
        store_id = a_store(cells.client)
        assert add(cells.client, store_id, file_id).status_code == 200
        unknown = f"file-b-{'0' * 24}"
        fault(add(cells.client, store_id, unknown), 404, "file_not_found", "file_id")
        Loader(cells.context).one_pass()
        assert ended(cells.client, store_id, file_id)["status"] == "completed"
        assert embedder.texts == 1
        assert [each["file_id"] for each in search(cells.client, store_id, query="paid leave")["data"]] == [file_id]
        in_b = cells.context.cells.named("b")
        assert in_b is not None
        now_ms = in_b.passage_cache.find("blue", "digest").now_ms
        assert in_b.passage_cache.keep("blue", "digest", "text", since_ms=now_ms)
        cells.client.delete(f"/v1/vector_stores/{store_id}/files/{file_id}", headers=BLUE)
        assert in_b.passage_cache.find("blue", "digest").found is None


def test_a_file_whose_door_died_is_loaded_by_another_one(door: FlaskClient, embedder: Embedder) -> None:
    store_id = a_store(door)
    embedder.works.clear()
    file_id = add(door, store_id, upload(door)).json["id"]
    # It renews no claim, as a process that is gone.
    Loader(context_of(door), lease_s=0.2).one_pass()
    wait_for(lambda: context_of(door).store.snapshot().waiting, "the dead load to embed")
    other, began_s = Loader(context_of(door)), time.monotonic()

    def claimed_again() -> bool:
        other.one_pass()
        return bool(other._running)

    wait_for(claimed_again, "the claim to end")
    assert time.monotonic() - began_s < 60
    assert file_of(door, store_id, file_id)["status"] == "in_progress"
    embedder.works.set()
    assert ended(door, store_id, file_id)["status"] == "completed"
    assert len(search(door, store_id, query="leave")["data"]) == 1


def test_a_file_fails_after_three_interrupted_loads(door: FlaskClient) -> None:
    store_id = a_store(door)
    file_id = add(door, store_id, upload(door)).json["id"]
    database = context_of(door).database
    assert database is not None
    for number in range(3):
        assert database.loads.claim(f"dead {number}", -1.0)
    Loader(context_of(door)).one_pass()
    error = ended(door, store_id, file_id)["last_error"]
    assert error == {"code": "server_error", "message": "the load of the file was interrupted 3 times"}


def test_a_canceled_load_stops_and_leaves_nothing(door: FlaskClient, embedder: Embedder) -> None:
    store_id = a_store(door)
    embedder.works.clear()
    path = f"/v1/vector_stores/{store_id}/file_batches"
    batch = door.post(path, json={"file_ids": [upload(door)]}, headers=BLUE).json
    assert batch == door.get(f"{path}/{batch['id']}", headers=BLUE).json
    loader = Loader(context_of(door), lease_s=4)
    loader.one_pass()
    wait_for(lambda: context_of(door).store.snapshot().waiting, "the load to embed")
    canceled = door.post(f"{path}/{batch['id']}/cancel", headers=BLUE).json
    vector_store_models.VectorStoreFileBatch.model_validate(canceled)
    assert (canceled["status"], canceled["file_counts"]["cancelled"]) == ("cancelled", 1)

    def stopped() -> bool:
        loader.one_pass()
        return not loader._running

    wait_for(stopped, "the load to stop")
    wait_for(lambda: not context_of(door).store.snapshot().waiting, "its job to be canceled")
    assert door.get(f"/v1/collections/{store_id}", headers=BLUE).json["documents"] == 0


def run_until(loader: Loader, condition: Callable[[], object], what: str) -> None:
    """Let a process load files until a condition holds."""

    def passed() -> object:
        loader.one_pass()
        return condition()

    wait_for(passed, what, timeout_s=60)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads wait for workers for a fraction of a second, and their files rest for as long."""
    monkeypatch.setattr(loading, "PATIENCE_S", 0.05)
    monkeypatch.setattr(loads, "_REST_WITHOUT_WORKER_S", 0.2)


def test_a_tenants_own_documents_have_places_while_its_files_are_loaded(door: FlaskClient, embedder: Embedder) -> None:
    store_id, context = a_store(door), context_of(door)
    embedder.works.clear()
    files = [add(door, store_id, upload(door, name=f"{number}.md")).json["id"] for number in range(2)]
    loader = Loader(context)
    loader.one_pass()
    assert len(loader._running) == 2
    door.post("/v1/collections", json={"name": "notes", "model": None}, headers=BLUE)
    answer = door.put("/v1/collections/notes/documents/a", json={"text": "Thirty days."}, headers=BLUE)
    assert answer.status_code == 200, answer.text
    embedder.works.set()
    for file_id in files:
        assert ended(door, store_id, file_id)["status"] == "completed"


@pytest.mark.usefixtures("impatient")
def test_files_that_wait_for_a_busy_model_hold_no_place(door: FlaskClient, embedder: Embedder) -> None:
    store_id, loader = a_store(door), Loader(context_of(door))
    embedder.works.clear()
    waiting = [(BLUE, store_id, add(door, store_id, upload(door, name=f"{n}.md")).json["id"]) for n in range(3)]
    red = {"X-Tenant": "red"}
    of_red = a_store(door, headers=red)
    for number in range(2):
        file_id = upload(door, name=f"{number}.md", headers=red)
        waiting.append((red, of_red, add(door, of_red, file_id, headers=red).json["id"]))
    green = {"X-Tenant": "green"}
    notes = door.post("/v1/collections", json={"name": "notes", "model": None}, headers=green).json["vector_store_id"]
    file_id = add(door, notes, upload(door, headers=green), headers=green).json["id"]
    run_until(
        loader,
        lambda: file_of(door, notes, file_id, headers=green)["status"] == "completed",
        "a file that needs no model",
    )
    embedder.works.set()
    for headers, waiting_in, waits in waiting:
        run_until(
            loader,
            lambda at=waiting_in, file=waits, of=headers: file_of(door, at, file, headers=of)["status"] == "completed",
            "the files that waited",
        )


@pytest.mark.usefixtures("impatient")
def test_a_file_whose_model_has_no_worker_comes_back_and_fails_after_a_day(
    door: FlaskClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Embedder(store, model="other"):
        made = door.post("/v1/collections", json={"name": "notes", "model": "other"}, headers=BLUE).json
    store.farewell("worker-other", "other")
    context = context_of(door)
    context.pools.refresh()
    loader = Loader(context)
    file_id = add(door, made["vector_store_id"], upload(door)).json["id"]
    loader.one_pass()
    wait_for(lambda: not loader._running, "the load to give its file back")
    file = file_of(door, made["vector_store_id"], file_id)
    assert (file["status"], file["last_error"]) == ("in_progress", None)
    loader.one_pass()
    assert not loader._running
    answer = door.put("/v1/collections/notes/documents/a", json={"text": "Thirty days."}, headers=BLUE)
    assert (answer.status_code, answer.json["reason"]) == (503, "no_worker")
    with Embedder(store, model="other"):
        context.pools.refresh()
        run_until(loader, lambda: file_of(door, made["vector_store_id"], file_id)["status"] == "completed", "the load")
    store.farewell("worker-other", "other")
    context.pools.refresh()
    monkeypatch.setattr(loads, "_WAITS_S", 0.0)
    again = add(door, made["vector_store_id"], upload(door, b"Another text.")).json["id"]
    run_until(loader, lambda: file_of(door, made["vector_store_id"], again)["status"] == "failed", "the end of the day")
    error = file_of(door, made["vector_store_id"], again)["last_error"]
    assert error == {"code": "server_error", "message": "no live worker serves model 'other'"}
    counted = {
        result: context.metrics.file_loads.labels(result)._value.get() for result in ("completed", "server_error")
    }
    assert counted == {"completed": 1, "server_error": 1}
    assert context.metrics.file_loads.labels("given_back")._value.get() >= 1


def test_a_file_of_a_tenant_that_was_disabled_meanwhile_fails(
    door: FlaskClient, store: Store, settings: Settings, database_url: str
) -> None:
    store_id = a_store(door)
    file_id = add(door, store_id, upload(door)).json["id"]
    Tenants(store.client).set("blue", TenantPolicy(disabled=True))
    # A process that has not read the tenant's policy before.
    context = context_of(a_door(store, settings, database_url=database_url, embedding_model="vectors"))
    database = context.database
    assert database is not None
    Loader(context).one_pass()

    def failure() -> str | None:
        found = database.files.find("blue", store_id, file_id)
        return None if found is None else found.error

    assert "no longer valid, or its tenant is disabled" in wait_for(failure, "the load to fail")


def test_chunks_longer_than_the_models_texts_are_refused(door: FlaskClient) -> None:
    store_id, file_id = a_store(door), upload(door)
    sizes = {"max_chunk_size_tokens": 800, "chunk_overlap_tokens": 400}
    answer = add(door, store_id, file_id, chunking_strategy={"type": "static", "static": sizes})
    path = "chunking_strategy.static.max_chunk_size_tokens"
    assert "reads texts of at most 256 tokens" in fault(answer, 400, "invalid_value", path)
    sizes = {"max_chunk_size_tokens": 120, "chunk_overlap_tokens": 60}
    assert add(door, store_id, file_id, chunking_strategy={"type": "static", "static": sizes}).status_code == 200
    assert file_of(door, store_id, file_id)["chunking_strategy"]["static"] == sizes


def test_without_a_database_the_routes_answer_as_those_of_collections(store: Store, settings: Settings) -> None:
    door = a_door(store, settings)
    for response in (
        door.get("/v1/vector_stores"),
        door.post("/v1/vector_stores", json={}),
        door.get("/v1/vector_stores/vs_1/files"),
        door.post("/v1/vector_stores/vs_1/search", json={"query": "x"}),
    ):
        fault(response, 404, "collections_off")
    away = a_door(store, settings, database_url="postgresql://127.0.0.1:9/none")
    fault(away.get("/v1/vector_stores"), 503, "database_unavailable")


HOSTILE = [
    "\ud800",
    "\0",
    "\x01' OR true --",
    "'; DROP TABLE penstock.documents; --",
    "%s%(x)s",
    "../" * 9,
    "x" * 9_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_are_refused_or_only_texts(door: FlaskClient, text: str) -> None:
    store_id, file_id = a_store(door), upload(door)
    add(door, store_id, file_id)
    path, quoted_text = f"/v1/vector_stores/{store_id}", quote(text, errors="surrogatepass")
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/vector_stores", {"name": text, "description": text, "metadata": {text: text}}),
        ("/v1/vector_stores", {"name": text}),
        (path, {"name": text, "metadata": {"team": text}}),
        (f"{path}/search", {"query": text}),
        (f"{path}/search", {"query": "leave", "filters": {"type": "eq", "key": text, "value": text}}),
        (f"{path}/files", {"file_id": text}),
        (f"{path}/files", {"file_id": file_id, "attributes": {text: text}}),
        (f"{path}/files/{file_id}", {"attributes": {"team": text}}),
        (f"{path}/files/{quoted_text}", {"attributes": {}}),
        (f"{path}/file_batches", {"file_ids": [text]}),
        (f"{path}/file_batches/{quoted_text}/cancel", {}),
    ]
    answers = [door.post(url, json=body, headers=BLUE) for url, body in bodies]
    of_file = f"/files/{quoted_text}"
    answers += [
        door.get(f"{path}{rest}?{name}={quoted_text}", headers=BLUE)
        for rest in ("", "/files", of_file, f"{of_file}/content", f"/file_batches/{quoted_text}")
        for name in ("after", "before", "filter")
    ]
    answers += [
        door.get(f"/v1/vector_stores/{quoted_text}", headers=BLUE),
        door.get(f"/v1/vector_stores?after={quoted_text}", headers=BLUE),
        door.delete(f"{path}/files/{quoted_text}", headers=BLUE),
        door.delete(f"/v1/vector_stores/{quoted_text}", headers=BLUE),
    ]
    assert {answer.status_code for answer in answers} <= {200, 308, 400, 404, 405}, [each.text for each in answers]
    assert file_of(door, store_id, file_id)["status"] == "in_progress"

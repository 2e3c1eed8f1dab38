"""The console's page of collections: sizes, and a query on behalf of a tenant."""

import pytest
from flask.testing import FlaskClient

from shared.accounts.admin_actions import list_actions
from shared.retrieval.file_records import NewFile
from shared.retrieval.records import NewChunk, NewCollection
from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.console import ATTACK, press
from tests.support.door import a_door

pytestmark = pytest.mark.ways("direct", reason="the door is in the process of the test")


@pytest.fixture
def visitor(store: Store, settings: Settings, database_url: str) -> FlaskClient:
    return a_door(store, settings, database_url=database_url)


def test_the_page_lists_collections_and_a_query_shows_passages_as_text(visitor: FlaskClient, store: Store) -> None:
    database = visitor.application.extensions["penstock"].database
    database.create_collection("blue", NewCollection("handbook", None, None))
    database.put_document("blue", "handbook", ATTACK, {}, "d", [NewChunk(f"{ATTACK} thirty days", 5, None)])
    assert '<a href="/console/collections">' in visitor.get("/console").text
    page = visitor.get("/console/collections").text
    assert ">blue<" in page
    assert ">handbook<" in page
    found = press(visitor, "collections/search", tenant="blue", collection="handbook", query="thirty days").text
    assert ATTACK not in found
    assert "thirty days" in found
    assert [action.on for action in list_actions(store.client, limit=1)] == ["collection handbook of tenant blue"]
    database.delete_collection("blue", "handbook")


def test_the_page_says_which_files_wait_and_why_others_failed(visitor: FlaskClient) -> None:
    database = visitor.application.extensions["penstock"].database
    name = database.create_collection("blue", NewCollection(None, None, None)).name
    files = [NewFile(each, f"{each}.md", {}) for each in ("waits", "bad", "rests")]
    database.files.add("blue", name, files, batch=None, key=("", ""), most=10)
    claims = {load.file.id: load for load in (database.loads.claim(token, 60) for token in ("one", "two", "three"))}
    database.loads.fail(claims["bad"], "invalid_file", f"it is no text {ATTACK}")
    database.loads.release(claims["rests"], 60, "no live worker serves model 'vectors'")
    page = visitor.get("/console/collections").text
    assert ATTACK not in page
    assert "1 wait for their load · 1 are being loaded · 1 failed" in page
    listed = page[page.index("Files that are not loaded") :]
    assert listed.index("bad.md") < listed.index("it is no text") < listed.index("rests.md") < listed.index("waits.md")
    assert "no live worker serves model" in listed
    database.delete_collection("blue", name)


def test_without_a_database_the_page_says_so(store: Store, settings: Settings) -> None:
    visitor = a_door(store, settings)
    assert "/console/collections" not in visitor.get("/console").text
    answer = visitor.get("/console/collections")
    assert (answer.status_code, "PENSTOCK_DATABASE_URL is not set" in answer.text) == (404, True)

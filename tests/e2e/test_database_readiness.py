"""Tests that the door, the doctor and the erasure of a tenant use the database that the settings name."""

import json

from shared.retrieval.configured import open_database
from shared.settings.settings import Settings, load
from shared.store.store import Store
from tests.support.collected import a_database, make, put
from tests.support.door import a_door, serve
from tests.support.postgres import rows
from tests.support.program import program

AWAY = "postgresql://penstock:secret@127.0.0.1:1/x"


def readiness(store: Store, settings: Settings, path: str, **overrides: str) -> tuple[int, str | None]:
    answer = a_door(store, settings, **overrides).get(path)
    assert "secret" not in answer.text
    assert "127.0.0.1" not in answer.text
    return answer.status_code, answer.get_json()["reason"]


def test_readiness_includes_the_database_for_those_who_ask_for_it(store, settings, database_url):
    serve(store)
    assert readiness(store, settings, "/health/ready?retrieval", database_url=database_url) == (200, None)
    assert readiness(store, settings, "/health/ready?retrieval", database_url=AWAY) == (503, "database_away")
    assert readiness(store, settings, "/health/ready", database_url=AWAY) == (200, None)
    assert readiness(store, settings, "/health/ready?retrieval") == (503, "no_database")
    assert readiness(store, settings, "/health/ready") == (200, None)


def test_a_tenant_is_erased_with_its_collections_by_one_command_and_that_is_recorded(
    store, settings, store_url, database_url, tmp_path
):
    with a_database(database_url) as database:
        for tenant in ("erased", "stays"):
            make(database, tenant)
            put(database, tenant, "1", "text")
    penstock = program(tmp_path, REDIS_URL=store_url, PENSTOCK_DATABASE_URL=database_url)
    done = penstock("tenants", "rm", "erased", "--erase-collections")
    assert done.returncode == 0, done.stderr
    assert "1 collections of tenant 'erased' were deleted" in done.stderr
    assert rows(database_url, "SELECT DISTINCT tenant FROM penstock.chunks") == [("stays",)]
    records = [json.loads(line) for line in penstock("audit", "--json").stdout.splitlines()]
    assert [(each["what"], each["on"]) for each in records] == [
        ("tenant.erase_collections", "tenant erased: 1 collections")
    ]
    done = penstock.with_env(PENSTOCK_DATABASE_URL="")("tenants", "rm", "erased", "--erase-collections")
    assert done.returncode == 2
    assert "--erase-collections needs PENSTOCK_DATABASE_URL" in done.stderr


def test_the_doctor_says_whether_the_database_is_away(store, store_url, database_url, tmp_path):
    serve(store)
    penstock = program(tmp_path, REDIS_URL=store_url, PENSTOCK_DATABASE_URL=database_url)
    done = penstock("doctor")
    assert done.returncode == 0, done.stderr
    assert "database: answers" in done.stderr
    done = penstock.with_env(PENSTOCK_DATABASE_URL=AWAY)("doctor")
    assert done.returncode == 1
    assert "the database of collections is away: connection" in done.stderr
    assert "retrieval.away" not in done.stderr + done.stdout
    assert "secret" not in done.stderr + done.stdout


def test_a_database_is_opened_with_the_bounds_of_the_settings(database_url, tmp_path):
    environ = {
        "PENSTOCK_STATE_DIR": str(tmp_path),
        "PENSTOCK_DATABASE_URL": database_url,
        "PENSTOCK_DATABASE_CONNECTIONS": "3",
        "PENSTOCK_MAX_COLLECTIONS": "7",
        "PENSTOCK_MAX_TENANT_CHUNKS": "70",
        "PENSTOCK_INDEX_FROM_CHUNKS": "700",
        "PENSTOCK_MAX_VECTOR_INDEXES": "1",
    }
    database = open_database(load(environ, dotenv=None))
    assert database is not None
    bounds = database._bounds
    assert (bounds.connections, bounds.max_collections, bounds.max_tenant_chunks) == (3, 7, 70)
    assert (bounds.index_from_chunks, bounds.max_indexes) == (700, 1)
    database.close()

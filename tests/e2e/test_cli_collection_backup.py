"""`penstock tenants export-collections` and `import-collections` between two databases."""

import json

from tests.support.collected import a_database, make, put, vector
from tests.support.postgres import new_database
from tests.support.program import program


def test_the_collections_of_a_tenant_are_moved_to_another_database_by_a_pipe(
    redis_client, store_url, database_url, postgres_url, tmp_path
):
    with a_database(database_url) as database:
        make(database, "moved")
        texts = ("a text", "a\nsecond \u2028 one")
        put(database, "moved", "ü <x>", *texts, vectors=[vector(0.1, 1e-9)], metadata={"year": 2026})
    penstock = program(tmp_path, REDIS_URL=store_url, PENSTOCK_DATABASE_URL=database_url)
    exported = penstock("tenants", "export-collections", "moved")
    assert exported.returncode == 0, exported.stderr
    assert "tenant moved: 1 collections with 1 documents" in exported.stderr
    with new_database(postgres_url) as url:
        there = penstock.with_env(PENSTOCK_DATABASE_URL=url)
        done = there("tenants", "import-collections", "moved", stdin=exported.stdout)
        assert done.returncode == 0, done.stderr
        assert there("tenants", "export-collections", "moved").stdout == exported.stdout
        (cut := tmp_path / "cut.jsonl").write_text(exported.stdout[:-20], encoding="utf-8")
        done = there("tenants", "import-collections", "moved", str(cut))
        assert done.returncode == 1
        assert "line 5=" in done.stderr
        assert "is not JSON" in done.stderr
        done = there("tenants", "import-collections", "no tenant", str(cut))
        assert (done.returncode, "TENANT='no tenant' is not" in done.stderr) == (2, True)
    done = penstock("tenants", "export-collections", "nobody")
    assert (done.returncode, done.stdout) == (1, "")
    assert "tenant 'nobody' has no collections" in done.stderr
    records = [json.loads(line) for line in penstock("audit", "--json").stdout.splitlines()]
    assert {each["what"] for each in records} == {"tenant.export_collections", "tenant.import_collections"}

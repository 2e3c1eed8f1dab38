"""A door and a worker with a key prefix, beside another cell in the same store, and the commands that operate them."""

import json
from collections.abc import Iterator

import pytest

from shared.accounts.admin_keys import AdminKeys
from shared.accounts.tenants import Tenants
from shared.audit.invariants import find_breaches
from shared.store import keys
from shared.store.connection import open_client
from shared.store.store import Store
from tests.support.builders import a_job, admitted, heartbeat
from tests.support.processes import Stage, wait_for
from tests.support.program import program
from tests.support.served import SIM, Address, Served

pytestmark = pytest.mark.ways("direct", reason="keys do not depend on how clients reach the door")

PREFIX = "{c7}:"


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A door and a sim worker of the cell `{c7}:`. The stage's own client is of the cell without a prefix."""
    environ = SIM | {"PENSTOCK_KEY_PREFIX": PREFIX, "PENSTOCK_WEB_WORKERS": "1"}
    with Stage(tmp_path_factory.mktemp("cells"), **environ) as stage:
        stage.worker(wait=False)
        with Served(stage) as served:
            yield served


@pytest.fixture
def cell(served: Address) -> Iterator[Store]:
    with open_client(served.stage.url, name="penstock-test", prefix=PREFIX) as client:
        store = Store(client)
        wait_for(lambda: store.snapshot().live_models, "a live worker of the cell")
        yield store


def test_a_job_runs_in_its_cell_beside_the_jobs_of_another(served: Address, cell: Store, settings) -> None:
    other = served.stage.store
    other.configure(settings)
    heartbeat(other)
    waiting = admitted(other, a_job(deadline_ms=600_000))
    before = {key for key in other.client.keys("*") if not key.startswith(PREFIX.encode())}
    job_id = served.submit().json()["id"]
    wait_for(lambda: served.http.get(f"/v1/jobs/{job_id}").json()["status"] == "succeeded", "the job to succeed")
    assert served.http.get(f"/v1/jobs/{waiting}").status_code == 404
    assert cell.client.exists(keys.result(job_id)) == 1
    assert {key for key in other.client.keys("*") if not key.startswith(PREFIX.encode())} == before
    password = AdminKeys(cell.client).create("operator")[0]
    for path in ("/console", "/rq/", "/metrics/fleet"):
        assert served.http.get(path, auth=("operator", password)).status_code == 200, path
    assert find_breaches(cell.client) == []
    other.cancel(waiting)


def test_operators_commands_act_on_the_cell_of_their_setting(served: Address, cell: Store, tmp_path) -> None:
    environ = {"REDIS_URL": served.stage.url, "PENSTOCK_URL": served.url}
    other, own = program(tmp_path, **environ), program(tmp_path, **environ, PENSTOCK_KEY_PREFIX=PREFIX)
    assert own("tenants", "set", "blue", "--weight", "3").returncode == 0
    assert '"weight": 3' in own("tenants", "ls", "--json").stdout
    assert '"weight": 3' not in other("tenants", "ls", "--json").stdout
    assert own("redis", "TYPE", "penstock:tenant:blue").stdout == "hash\n"
    assert own("redis", "SMEMBERS", "rq:workers").stdout.startswith("{c7}:rq:worker:")
    refused = own("redis", "FLUSHALL")
    assert refused.returncode != 0
    assert "FLUSHALL is not a command that PENSTOCK_KEY_PREFIX='{c7}:' can limit" in refused.stderr
    judged = json.loads(own("doctor", "--json").stdout)
    assert (judged["door_state"], judged["key_prefix"]) == ("is ready", PREFIX), judged
    assert program(tmp_path, **environ, PENSTOCK_KEY_PREFIX="c7")("doctor").returncode == 2
    assert Tenants(cell.client).get("blue").weight == 3

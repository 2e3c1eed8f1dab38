"""The reads of a door over several cells: lists, counts, usage, metrics, readiness, and keys from any cell."""

from shared.accounts.api_keys import ApiKeys
from shared.accounts.tenants import Tenants
from shared.cells.account_changes import AccountCells
from shared.cells.ids import cell_of_id
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from tests.support.builders import MODEL
from tests.support.cells_door import CellsDoor, cells_door, door, door_with_dead_cell
from tests.support.door import admitted_job, run_next, serve, settle, submit
from tests.support.ports import free_port
from web.runtime.current import current_context

__all__ = ["door", "door_with_dead_cell"]

AS_RED = {"X-Tenant": "red"}


def cell_of(job: dict) -> str:
    return cell_of_id(job["id"])


def waiting(door: CellsDoor) -> dict[str, int]:
    return {name: store.snapshot().waiting for name, store in door.stores.items()}


def test_the_list_of_jobs_goes_through_all_cells_page_by_page(door):
    ids = [admitted_job(submit(door.client, headers=AS_RED))["id"] for _ in range(3)]
    door.place("red", "c")
    ids += [admitted_job(submit(door.client, headers=AS_RED))["id"] for _ in range(3)]
    seen, cursor, pages = [], "", 0
    while cursor is not None:
        page = door.client.get(f"/v1/jobs?limit=2{cursor and f'&cursor={cursor}'}", headers=AS_RED).get_json()
        assert len(page["data"]) <= 2
        seen, cursor, pages = seen + [job["id"] for job in page["data"]], page["cursor"], pages + 1
        assert pages < 9
    assert sorted(seen) == sorted(ids)
    assert seen[:3] == ids[:2:-1], "the home comes first, with the newest job first"


def test_keys_and_policies_are_read_from_any_cell_that_answers(store, settings, store_url, tmp_path):
    overrides = {"auth": "required", "state_dir": str(tmp_path)}
    urls = {"b": f"redis://127.0.0.1:{free_port()}"}
    with cells_door(store, settings, store_url, urls=urls, **overrides) as door:
        key = ApiKeys(store.client).create("red").key
        record = store.client.hgetall("penstock:keys")
        door.stores["c"].client.hset("penstock:keys", mapping=record)
        serve(door.stores["c"])
        door.place("red", "c")
        cells = door.context.cells
        cells._answers = cells.named("b")
        assert cell_of(admitted_job(submit(door.client, headers={"Authorization": f"Bearer {key}"}))) == "c"


def test_a_door_gives_a_cell_that_answers_again_the_accounts_that_it_has_missed(door):
    clients = {name: store.client for name, store in door.stores.items() if name != "b"}
    with AccountCells(clients, {"b": "it is away"}).changing() as change:
        Tenants(change.client).set("red", TenantPolicy(rpm=5))
    door.watch.repair(door.context.cells.directory)
    assert Tenants(door.stores["b"].client).get("red") == TenantPolicy(rpm=5)
    assert (clients["c"].exists(keys.missed_changes()), clients["default"].exists(keys.missed_changes())) == (0, 0)


def test_the_gauge_of_followed_jobs_is_a_sum_over_cells(door):
    metrics = door.context.metrics
    for context, jobs in zip(door.context.cells.all(), (3, 4, 5), strict=True):
        context.event_hub._on_followed(jobs)
    assert metrics.followed_jobs._value.get() == 12


def test_a_tenants_counts_and_usage_are_sums_over_its_cells(door):
    for cell in ("b", "c"):
        door.place("red", cell)
        admitted_job(submit(door.client, headers=AS_RED))
        settle(door.stores[cell], run_next(door.stores[cell]))
        admitted_job(submit(door.client, headers=AS_RED))
    assert door.client.get("/v1/queue", headers=AS_RED).get_json()["waiting"] == 2
    (sums,) = door.client.get("/v1/usage?by=tenant", headers=AS_RED).get_json()["data"]
    assert (sums["requests"], sums["succeeded"]) == (2, 2)


def test_the_page_of_fleet_metrics_has_all_cells_and_says_which_is_away(door_with_dead_cell):
    door = door_with_dead_cell
    door.place("red", "c")
    admitted_job(submit(door.client, headers=AS_RED))
    page = door.client.get("/metrics/fleet").text
    samples = [line for line in page.splitlines() if line.startswith("penstock_inflight{")]
    assert samples == ['penstock_inflight{cell="c"} 1.0', 'penstock_inflight{cell="default"} 0.0']
    assert [line[-3:] for line in page.splitlines() if line.startswith("penstock_cell_up{")] == ["0.0", "1.0", "1.0"]
    assert page.count("# TYPE penstock_inflight gauge") == 1
    accepted = {"Accept": "application/openmetrics-text; version=1.0.0"}
    assert door.client.get("/metrics/fleet", headers=accepted).text.endswith("# EOF\n")


def test_the_system_is_ready_as_long_as_one_cell_is(door_with_dead_cell):
    door = door_with_dead_cell
    answer = door.client.get("/health/ready")
    assert (answer.status_code, answer.get_json()["cells"]) == (
        200,
        {"b": "store_unavailable", "c": "ready", "default": "ready"},
    )
    assert answer.get_json()["workers"] == 2
    assert door.client.get(f"/health/ready?model={MODEL}").status_code == 200
    assert door.client.get("/health/ready?model=nothing").status_code == 404
    for name in ("c", "default"):
        door.stores[name].farewell("w1", MODEL)
    for served in door.context.cells.all():
        served.readiness.forget()
    answer = door.client.get("/health/ready")
    assert (answer.status_code, answer.get_json()["cells"]["c"]) == (503, "no_worker")


def test_a_cell_that_has_missed_a_change_of_accounts_is_asked_for_keys_only_if_no_other_answers(door):
    door.stores["b"].client.sadd("penstock:missed_changes", "c")
    Tenants(door.stores["b"].client).set("red", TenantPolicy(disabled=True))
    Tenants(door.stores["default"].client).set("red", TenantPolicy(disabled=True))
    cells = door.context.cells
    cells._answers = cells.named("c")
    assert cells.ask(lambda accounts: accounts.tenants.get("red")) is None
    door.watch.look_for_lacking()
    assert cells.ask(lambda accounts: accounts.tenants.get("red")) == TenantPolicy(disabled=True)
    for away in ("b", "default"):
        cells.note_away(cells.named(away))
    assert cells.ask(lambda accounts: accounts.tenants.get("red")) is None
    door.stores["b"].client.delete("penstock:missed_changes")


def test_a_request_without_a_caller_uses_a_cell_that_answers(door_with_dead_cell):
    door = door_with_dead_cell
    with door.client.application.test_request_context("/console/tenants"):
        assert current_context().cell == "b"
        door.context.cells.note_away(current_context())
        assert current_context().cell == "c"

"""A door over several cells: where jobs are offered, how they are found again, and when they are spilled."""

from dataclasses import replace

import pytest

from shared.accounts.routes import Pools
from shared.accounts.tenants import Tenants
from shared.cells.directory import Placement
from shared.cells.ids import cell_of_id
from shared.cells.stored import StoredDirectory
from shared.jobs.outcomes import Refusal, Refused
from shared.jobs.tenant_policy import TenantPolicy
from shared.store.store import Store
from tests.support.builders import MODEL
from tests.support.cells_door import CellsDoor, cells_door, door, door_with_dead_cell
from tests.support.door import admitted_job, fault, job_of, refused, run_next, serve, settle, submit, worker
from tests.support.gate import BOUNDS
from tests.support.gate import Served as GateServed
from tests.support.processes import wait_for
from web.runtime.budget_exchange import BudgetExchange

__all__ = ["door", "door_with_dead_cell"]

AS_RED = {"X-Tenant": "red"}


def fill(store: Store, jobs: int = 1) -> None:
    """Have a cell admit this number of jobs and no more."""
    store.client.hset("penstock:config", "max_inflight", jobs)


def cell_of(job: dict) -> str:
    return cell_of_id(job["id"])


def waiting(door: CellsDoor) -> dict[str, int]:
    return {name: store.snapshot().waiting for name, store in door.stores.items()}


def test_a_job_is_admitted_in_its_tenants_home_whose_name_is_in_its_id(door):
    job = admitted_job(submit(door.client, headers=AS_RED))
    assert cell_of(job) == "b"
    assert waiting(door) == {"default": 0, "b": 1, "c": 0}


def test_what_a_spilled_job_uses_of_a_budget_counts_in_the_home_after_an_exchange(door):
    door.place("red", "b", "c")
    for store in door.stores.values():
        Tenants(store.client).set("red", TenantPolicy(tokens_per_day=200))
    fill(door.stores["b"])
    jobs = [admitted_job(submit(door.client, headers=AS_RED, max_tokens=80)) for _ in range(2)]
    assert [cell_of(job) for job in jobs] == ["b", "c"]
    fill(door.stores["b"], 10)
    BudgetExchange(door.context.cells).one_pass()
    limits = refused(submit(door.client, headers=AS_RED, max_tokens=80), "budget_exhausted", 429)["limits"]
    (budget,) = door.client.get("/v1/usage", headers=AS_RED).get_json()["budgets"]
    assert budget["reserved_tokens"] == limits["value"] > 160


def test_the_id_of_a_job_in_the_default_cell_names_no_cell(door):
    door.place("red", "default")
    assert len(admitted_job(submit(door.client, headers=AS_RED))["id"]) == 22
    assert waiting(door) == {"default": 1, "b": 0, "c": 0}


def test_without_a_placement_tenants_are_spread_over_all_cells(door):
    for number in range(24):
        admitted_job(submit(door.client, headers={"X-Tenant": f"t{number}"}))
    assert all(number > 0 for number in waiting(door).values())


def test_a_job_is_polled_followed_and_canceled_by_its_id_wherever_its_tenant_lives_now(door):
    first, second = (admitted_job(submit(door.client, headers=AS_RED)) for _ in range(2))
    door.place("red", "c")
    held = run_next(door.stores["b"])
    settle(door.stores["b"], held, text="done")
    done = job_of(door.client.get(f"/v1/jobs/{first['id']}?wait_ms=5000", headers=AS_RED))
    assert (done["status"], done["text"]) == ("succeeded", "done")
    events = door.client.get(f"/v1/jobs/{first['id']}/events", headers=AS_RED).text
    assert "event: ended" in events
    assert job_of(door.client.delete(f"/v1/jobs/{second['id']}", headers=AS_RED))["status"] == "canceled"
    assert cell_of(admitted_job(submit(door.client, headers=AS_RED))) == "c"


def test_no_tenant_reads_another_tenants_job_by_an_id_that_names_a_cell(door):
    job = admitted_job(submit(door.client, headers=AS_RED))
    fault(door.client.get(f"/v1/jobs/{job['id']}", headers={"X-Tenant": "blue"}), 404, "job_not_found")
    fault(door.client.get(f"/v1/jobs/zz-{'x' * 22}", headers=AS_RED), 404, "job_not_found")


def test_a_job_that_a_full_home_refuses_is_admitted_by_the_next_cell(door):
    door.place("red", "b", "c")
    fill(door.stores["b"])
    assert cell_of(admitted_job(submit(door.client, headers=AS_RED))) == "b"
    job = admitted_job(submit(door.client, headers=AS_RED, ticket=True))
    assert cell_of(job) == "c"
    settle(door.stores["c"], run_next(door.stores["c"]))
    assert door.client.get(job["urls"]["events_signed"]).status_code == 200
    assert "penstock_spilled_jobs_total" in door.client.get("/metrics").text


def test_a_tenant_of_one_cell_is_not_spilled(door):
    fill(door.stores["b"])
    admitted_job(submit(door.client, headers=AS_RED))
    refused(submit(door.client, headers=AS_RED), "inflight_full")
    assert waiting(door) == {"default": 0, "b": 1, "c": 0}


def test_the_refusal_of_two_full_cells_is_that_of_the_home(door):
    door.place("red", "b", "c")
    for name in ("b", "c"):
        fill(door.stores[name])
        admitted_job(submit(door.client, headers=AS_RED))
    body = refused(submit(door.client, headers=AS_RED), "inflight_full")
    assert (body["limits"]["value"], body["limits"]["max"]) == (1, 1)


def test_a_refusal_by_the_tenants_own_bound_is_not_spilled(door):
    door.place("red", "b", "c")
    for store in door.stores.values():
        Tenants(store.client).set("red", TenantPolicy(max_waiting=1))
    admitted_job(submit(door.client, headers=AS_RED))
    refused(submit(door.client, headers=AS_RED), "tenant_queue_full")
    assert waiting(door)["c"] == 0


@pytest.mark.parametrize(
    ("headers", "body"),
    [({"Idempotency-Key": "k"}, {}), ({}, {"supersede_key": "s"})],
    ids=["idempotency", "supersede"],
)
def test_a_request_with_a_key_that_must_be_unique_is_offered_to_the_home_only(door, headers, body):
    door.place("red", "b", "c")
    fill(door.stores["b"])
    admitted_job(submit(door.client, headers=AS_RED))
    refused(submit(door.client, headers=AS_RED | headers, **body), "inflight_full")
    assert waiting(door)["c"] == 0


def test_a_repetition_gets_its_job_after_its_tenant_was_moved(door):
    keyed = AS_RED | {"Idempotency-Key": "once"}
    first = admitted_job(submit(door.client, headers=keyed))
    door.place("red", "c")
    assert admitted_job(submit(door.client, headers=keyed))["id"] == first["id"]
    fault(submit(door.client, headers=keyed, prompt="other"), 422, "idempotency_mismatch", "Idempotency-Key")
    assert waiting(door) == {"default": 0, "b": 1, "c": 0}


def test_a_proxys_repetition_of_a_spilled_request_gets_the_spilled_job(door):
    door.place("red", "b", "c")
    fill(door.stores["b"])
    blocking = admitted_job(submit(door.client, headers=AS_RED))
    sent = AS_RED | {"x-request-id": "proxy-1"}
    spilled = admitted_job(submit(door.client, headers=sent))
    assert cell_of(spilled) == "c"
    door.client.delete(f"/v1/jobs/{blocking['id']}", headers=AS_RED)
    assert admitted_job(submit(door.client, headers=sent))["id"] == spilled["id"]
    assert waiting(door) == {"default": 0, "b": 0, "c": 1}


def test_a_chat_whose_home_is_full_is_answered_by_the_next_cell(door):
    door.place("red", "b", "c")
    fill(door.stores["b"])
    admitted_job(submit(door.client, headers=AS_RED))
    chat = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    with worker(door.stores["c"], lambda held: settle(door.stores["c"], held, text="from c")):
        answer = door.client.post("/v1/chat/completions", json=chat, headers=AS_RED)
        assert "from c" in answer.text


def test_a_draining_cell_gets_no_new_jobs_and_its_jobs_are_still_read(door):
    job = admitted_job(submit(door.client, headers={"X-Tenant": "green"}))
    records = dict(door.context.cells.directory.cells)
    records[cell_of(job)] = replace(records[cell_of(job)], state="draining")
    door.change(cells=records)
    other = admitted_job(submit(door.client, headers={"X-Tenant": "green"}))
    assert cell_of(other) != cell_of(job)
    assert job_of(door.client.get(f"/v1/jobs/{job['id']}", headers={"X-Tenant": "green"}))["status"] == "queued"


def test_while_the_home_is_away_the_next_cell_serves_and_other_tenants_notice_nothing(door_with_dead_cell):
    door = door_with_dead_cell
    door.place("red", "b", "c")
    door.place("blue", "default")
    assert cell_of(admitted_job(submit(door.client, headers=AS_RED))) == "c"
    assert door.context.cells.any_away
    assert cell_of(admitted_job(submit(door.client, headers=AS_RED))) == "c"
    admitted_job(submit(door.client, headers={"X-Tenant": "blue"}))


def test_a_tenant_of_a_cell_that_is_away_is_refused_until_it_is_back(door_with_dead_cell):
    door = door_with_dead_cell
    door.place("red", "b")
    refused(submit(door.client, headers=AS_RED), "store_unavailable")
    fault_or_refusal = door.client.get(f"/v1/jobs/b-{'x' * 22}", headers=AS_RED)
    refused(fault_or_refusal, "store_unavailable")


def test_no_job_is_admitted_before_the_directory_was_read(door):
    door.context.cells.is_read = False
    refused(submit(door.client, headers=AS_RED), "store_unavailable")
    door.watch.look()
    assert door.context.cells.is_read


def test_a_tenant_whose_only_cell_drains_is_refused_and_sent_nowhere_else(door):
    records = dict(door.context.cells.directory.cells)
    records["b"] = replace(records["b"], state="draining")
    door.change(cells=records)
    body = refused(submit(door.client, headers=AS_RED), "draining")
    assert body["limits"]["limit"] == "serving_cells"
    assert "the cells of tenant 'red' take no new jobs" in body["error"]["message"]
    refused(submit(door.client, headers=AS_RED | {"Idempotency-Key": "k"}), "draining")
    assert set(waiting(door).values()) == {0}


def test_a_change_that_reached_one_cell_only_is_noticed_and_spread(door):
    newest = door.context.cells.directory.changed(at_ms=2, tenants={"red": Placement(("c",))})
    StoredDirectory(door.stores["c"].client).write_if_newer(newest)
    for _ in door.stores:
        door.watch.look()
    assert cell_of(admitted_job(submit(door.client, headers=AS_RED))) == "c"


def test_a_job_of_a_gate_connection_runs_in_its_tenants_home_and_is_canceled_there(door):
    door.place("blue", "b")
    serving = GateServed(door.context, BOUNDS)
    assert cell_of_id(serving.client.submitted()) == "b"
    serving.client.close()
    assert serving.ended()
    wait_for(lambda: waiting(door)["b"] == 0, "the job to be canceled")


def in_regions(door: CellsDoor, **regions: str) -> None:
    """Give cells regions."""
    cells = door.context.cells.directory.cells
    door.change(cells={name: replace(one, region=regions.get(name, "")) for name, one in cells.items()})


def test_a_door_prefers_the_cells_of_its_regions_and_takes_others_when_those_are_full(store, settings, store_url):
    with cells_door(store, settings, store_url, regions="eu,us") as door:
        for each in door.stores.values():
            serve(each)
        in_regions(door, b="us", c="eu")
        door.change(spread=2)
        for number in range(12):
            assert cell_of(admitted_job(submit(door.client, headers={"X-Tenant": f"t{number}"}))) == "c"
        fill(door.stores["c"], jobs=12)
        assert cell_of(admitted_job(submit(door.client, headers={"X-Tenant": "t0"}))) == "b"


def test_a_private_job_is_not_spilled_into_another_region(door):
    in_regions(door, b="eu", c="us")
    door.place("red", "b", "c")
    fill(door.stores["b"])
    for store in door.stores.values():
        Pools(store.client).change(MODEL, {"local": True})
        Tenants(store.client).set("green", TenantPolicy(private=True))
    door.place("green", "b", "c")
    admitted_job(submit(door.client, headers=AS_RED))
    refused(submit(door.client, headers=AS_RED, private=True), "inflight_full")
    refused(submit(door.client, headers={"X-Tenant": "green"}), "inflight_full")
    assert waiting(door)["c"] == 0
    assert cell_of(admitted_job(submit(door.client, headers=AS_RED))) == "c"


def test_a_tenant_that_must_stay_in_a_region_is_served_there_only(door):
    in_regions(door, b="eu", c="us")
    door.change(tenants={"red": Placement(spread=3, regions=("us",))})
    fill(door.stores["c"])
    assert cell_of(admitted_job(submit(door.client, headers=AS_RED))) == "c"
    refused(submit(door.client, headers=AS_RED), "inflight_full")


@pytest.mark.parametrize("reason", ["no_worker", "tenant_share_full"])
def test_a_job_for_which_the_home_has_no_room_or_no_worker_is_admitted_by_the_next_cell(door, reason, monkeypatch):
    door.place("red", "b", "c")
    if reason == "no_worker":
        door.stores["b"].farewell("w1", MODEL)
    else:
        refusal = Refused(Refusal.TENANT_SHARE_FULL, "tenant_share", 1, 1, 1, 1, 1_000)
        monkeypatch.setattr(door.context.cells.named("b").store, "admit", lambda *_, **__: refusal)
    assert cell_of(admitted_job(submit(door.client, headers=AS_RED))) == "c"


def test_a_job_that_no_idle_cell_could_end_in_time_is_not_offered_twice(door, monkeypatch):
    door.place("red", "b", "c")
    refusal = Refused(Refusal.DEADLINE_UNMEETABLE, "predicted_ms", 9_000, 1, 0, 9, 1_000, hopeless=True)
    monkeypatch.setattr(door.context.cells.named("b").store, "admit", lambda *_, **__: refusal)
    submit(door.client, headers=AS_RED, deadline_ms=1)
    assert waiting(door)["c"] == 0


@pytest.mark.parametrize("identity", [{"Idempotency-Key": "once"}, {"x-request-id": "proxy-1"}])
def test_a_repetition_at_a_door_of_another_region_gets_the_job_of_the_first(door, identity):
    present = door.context.cells.directory
    cells = {name: replace(one, region={"b": "eu", "c": "us"}.get(name, "")) for name, one in present.cells.items()}
    for store in door.stores.values():
        # So long ago that no change of the directory is the reason to look for the first job.
        StoredDirectory(store.client).write_if_newer(present.changed(at_ms=1, cells=cells))
    sent = {"X-Tenant": "green"} | identity
    ids = set()
    for region in ("eu", "us"):
        door.context.cells._regions = (region,)
        door.context.cells._placed = {}
        door.watch.look()
        ids.add(admitted_job(submit(door.client, headers=sent))["id"])
    assert {cell_of_id(job_id) for job_id in ids} == {"b"}
    assert waiting(door) == {"default": 0, "b": 1, "c": 0}

"""A door while one of its cells hangs, and after one has left the directory."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from shared.accounts.tenants import Tenants
from shared.cells.ids import cell_of_id
from shared.cells.opening import cells_in_force, remember
from shared.cells.stored import StoredDirectory
from shared.clock import RealClock
from shared.errors import StoreUnavailable
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.connection import DOOR, open_client
from shared.store.store import Store
from tests.support.cell import empty
from tests.support.cells_door import CellsDoor, cells_door
from tests.support.door import admitted_job, fault, refused, serve, submit
from tests.support.ports import free_port
from tests.support.processes import wait_for
from web.jobs import spilling
from web.runtime.cell_watch import CellWatch
from web.runtime.context import DoorContext
from web.runtime.in_doubt import InDoubtJobs

AS_RED = {"X-Tenant": "red"}


@pytest.fixture
def door(store, settings, store_url, tmp_path) -> Iterator[CellsDoor]:
    with cells_door(store, settings, store_url, state_dir=str(tmp_path)) as found:
        for each in found.stores.values():
            serve(each)
        found.place("red", "b", "c")
        yield found


def remove(door: CellsDoor, cell: str) -> None:
    directory = door.context.cells.directory
    assert directory is not None
    door.change(cells={name: one for name, one in directory.cells.items() if name != cell}, tenants={})


def test_a_job_that_the_home_refuses_is_not_offered_to_a_cell_that_is_away(door, monkeypatch):
    cells, offered = door.context.cells, []

    def offer(context: Any, *arguments: Any) -> Any:
        offered.append(context.cell)
        return offer_in_cell(context, *arguments)

    offer_in_cell = spilling.offer_in_cell
    monkeypatch.setattr(spilling, "offer_in_cell", offer)
    door.stores["b"].client.hset("penstock:config", "max_inflight", 1)
    admitted_job(submit(door.client, headers=AS_RED))
    cells.note_away(cells.named("c"))
    refused(submit(door.client, headers=AS_RED), "inflight_full")
    assert offered == ["b", "b"]


def test_a_list_of_jobs_waits_for_no_cell_that_is_away_and_in_which_the_tenant_does_not_live(door, monkeypatch):
    cells, asked = door.context.cells, []
    monkeypatch.setattr(cells.named("default").store, "jobs", lambda *_, **__: asked.append("default"))
    cells.note_away(cells.named("default"))
    job = admitted_job(submit(door.client, headers=AS_RED))
    listed = door.client.get("/v1/jobs", headers=AS_RED).get_json()
    assert [one["id"] for one in listed["data"]] == [job["id"]]
    assert asked == []


def test_nothing_is_left_of_a_cell_that_has_left_and_its_jobs_are_not_found(door):
    door.place("red", "c")
    job = admitted_job(submit(door.client, headers=AS_RED))
    assert cell_of_id(job["id"]) == "c"
    gone = door.context.cells.named("c")
    with gone.event_hub.follow(job["id"]):
        wait_for(lambda: gone.event_hub._blocked, "the hub to read")
    gone.in_doubt.add("c-" + "x" * 22)
    gone = weakref.ref(gone)
    remove(door, "c")
    wait_for(lambda: (gc.collect(), gone())[1] is None, "the context to be freed", timeout_s=20)
    fault(door.client.get(f"/v1/jobs/{job['id']}", headers=AS_RED), 404, "job_not_found")
    assert cell_of_id(admitted_job(submit(door.client, headers=AS_RED))["id"]) != "c"


def test_jobs_in_doubt_of_a_lost_cell_are_given_up_when_it_has_left():
    with open_client(f"redis://127.0.0.1:{free_port()}", name="penstock-test", timeouts=DOOR) as client:
        in_doubt = InDoubtJobs(Store(client), RealClock())
        in_doubt.add("job", "offer")
        in_doubt.close()
        wait_for(lambda: in_doubt._thread is None, "the thread to end")
        assert len(in_doubt) == 0


def test_no_request_waits_for_the_only_cell_of_its_tenant_while_that_is_known_to_be_away(door, monkeypatch):
    cells, offered = door.context.cells, []
    door.place("red", "b")
    cells.note_away(cells.named("b"))
    monkeypatch.setattr(spilling, "offer_in_cell", lambda context, *_: offered.append(context.cell))
    for headers in ({}, {"Idempotency-Key": "k"}):
        refused(submit(door.client, headers=AS_RED | headers), "store_unavailable")
    assert offered == []
    cells.check_suspects()
    monkeypatch.undo()
    assert cell_of_id(admitted_job(submit(door.client, headers=AS_RED))["id"]) == "b"


def test_a_job_whose_home_has_admitted_it_without_an_answer_is_spilled_and_canceled_there(door, monkeypatch):
    home = door.context.cells.named("b")
    admit = home.store.admit

    def admit_without_answer(*arguments: Any, **options: Any) -> None:
        admit(*arguments, **options)
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(home.store, "admit", admit_without_answer)
    job = admitted_job(submit(door.client, headers=AS_RED))
    assert cell_of_id(job["id"]) == "c"
    monkeypatch.undo()
    wait_for(lambda: [one.code for one in door.stores["b"].jobs("red").jobs] == ["unheard"], "the cancel")
    assert door.client.get(f"/v1/jobs/{job['id']}", headers=AS_RED).get_json()["status"] == "queued"


def test_repetitions_are_looked_for_only_in_cells_that_have_jobs_of_the_tenant(door, monkeypatch):
    asked: list[str] = []
    was_admitted = spilling.EarlierRequest.was_admitted

    def look(earlier: Any, client: Any, tenant: str) -> bool:
        asked.append(next(one.cell for one in door.context.cells.all() if one.store.client is client))
        return was_admitted(earlier, client, tenant)

    door.place("red", "b")
    first = admitted_job(submit(door.client, headers=AS_RED | {"x-request-id": "1"}))
    door.place("red", "c")
    monkeypatch.setattr(spilling, "_SETTLED_MS", 0)
    monkeypatch.setattr(spilling.EarlierRequest, "was_admitted", look)
    for number in ("1", "2", "1"):
        job = admitted_job(submit(door.client, headers=AS_RED | {"x-request-id": number}))
        assert (job["id"] == first["id"]) == (number == "1")
    assert asked == ["b", "b", "b"]
    monkeypatch.setattr(door.context.cells, "_earlier", {"red": ()})
    assert admitted_job(submit(door.client, headers=AS_RED | {"x-request-id": "1"}))["id"] != first["id"]


def test_a_store_that_has_lost_its_data_gets_the_directory_and_the_accounts_from_the_others(door):
    for store in door.stores.values():
        Tenants(store.client).set("red", TenantPolicy(rpm=5))
    empty(door.stores["b"].client)
    door.watch.repair(door.context.cells.directory)
    assert Tenants(door.stores["b"].client).get("red") == TenantPolicy(rpm=5)
    assert StoredDirectory(door.stores["b"].client).read() == door.context.cells.directory
    assert all(store.client.exists(keys.missed_changes()) == 0 for store in door.stores.values())


def test_a_door_whose_own_store_has_lost_the_directory_finds_it_in_another_cell(door, monkeypatch):
    monkeypatch.setattr(CellWatch, "_run", lambda _: None)
    first = door.context.cells.first
    remember(first.settings, door.context.cells.directory)
    first.store.client.delete(keys.cells())
    restarted = DoorContext(first.settings, first.store, RealClock())
    CellWatch(restarted, lambda _: None).begin()
    assert restarted.cells.directory == door.context.cells.directory
    assert cells_in_force(first.settings).directory == restarted.cells.directory
    for store in door.stores.values():
        store.client.delete(keys.cells())
    assert cells_in_force(first.settings).directory is None
    for served in restarted.cells.all():
        served.close()


def test_a_door_whose_cells_are_all_away_waits_without_a_fault(door):
    for context in door.context.cells.all():
        door.context.cells.note_away(context)
    door.watch.look_for_lacking()
    assert door.context.cells.lacking == frozenset()

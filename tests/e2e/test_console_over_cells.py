"""The console and operators' routes of a door over several cells: where changes are made, and what is listed."""

import re
from collections.abc import Iterator

import pytest

from shared.accounts.admin_actions import list_actions
from shared.accounts.api_keys import ApiKeys
from shared.accounts.groups import Groups
from shared.accounts.routes import Routes
from shared.accounts.tenants import Tenants
from shared.cells.ids import cell_of_id
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from tests.support.builders import MODEL, heartbeat
from tests.support.cells_door import CellsDoor, cells_door, door_with_dead_cell
from tests.support.console import press, streams, token_of
from tests.support.door import a_door, admitted_job, fault, run_next, serve, settle, submit, worker
from web.console.guard import CELL_HEADER, TOKEN_HEADER

__all__ = ["door_with_dead_cell"]

pytestmark = pytest.mark.ways("direct", reason="the door is in the process of the test")


@pytest.fixture
def door(store, settings, store_url) -> Iterator[CellsDoor]:
    """Three cells, each with a worker; tenants red, blue and green live in `b`, `c` and the default cell."""
    with cells_door(store, settings, store_url) as found:
        for each in found.stores.values():
            serve(each)
        for tenant, cell in {"red": "b", "blue": "c", "green": "default"}.items():
            found.place(tenant, cell)
        yield found


def submit_each(door: CellsDoor) -> dict[str, str]:
    """Submit a job in each cell; return the ids by tenant."""
    return {
        tenant: admitted_job(submit(door.client, headers={"X-Tenant": tenant}))["id"]
        for tenant in ("red", "blue", "green")
    }


def listed(page: str) -> set[str]:
    return set(re.findall(r'<a href="/console/jobs/([^"?]+)">', page))


def test_changes_of_the_console_are_made_in_all_cells(door):
    assert press(door.client, "groups", group="lab").status_code == 200
    assert press(door.client, "tenants/red/policy", rpm="60", **{"was-rpm": ""}).status_code == 200
    assert press(door.client, "tenants/red/keys", label="ci").status_code == 200
    assert press(door.client, "routes", route="fast", pools="m").status_code == 200
    assert "is disabled" in press(door.client, "disable", tenant="blue").text
    for each in door.stores.values():
        assert Groups(each.client).names() == ["lab"]
        assert [record.label for record in ApiKeys(each.client).ls("red")[1]] == ["ci"]
        assert "fast" in Routes(each.client).read()[0]
        policies = Tenants(each.client).read_many(["red", "blue"])
        assert policies["red"].rpm == 60
        assert policies["blue"].disabled


def test_a_change_names_the_cell_that_it_did_not_reach(door_with_dead_cell):
    door = door_with_dead_cell
    said = press(door.client, "disable", tenant="red").text
    assert "Tenant red is disabled" in said
    assert "Cell b has not got this change" in said
    assert Tenants(door.stores["c"].client).get("red").disabled
    said = press(door.client, "tenants/red/policy", rpm="60", **{"was-rpm": ""}).text
    assert "Cell b has not got this change" in said
    assert door.stores["default"].client.smembers(keys.missed_changes()) == {b"b"}


def test_operators_list_the_jobs_of_all_cells_or_of_one(door):
    ids = submit_each(door)
    found = door.client.get("/v1/admin/jobs").get_json()
    assert {job["id"]: job["cell"] for job in found["data"]} == {id_: cell_of_id(id_) for id_ in ids.values()}
    assert found["cells_away"] == []
    (only,) = door.client.get("/v1/admin/jobs?cell=b").get_json()["data"]
    assert only["id"] == ids["red"]
    assert "<option selected>b</option>" in door.client.get("/console/jobs?cell=b").text
    assert door.client.get(f"/console/jobs?id={ids['red']}&cell=c").location == f"/console/jobs/{ids['red']}?cell=c"
    fault(door.client.get("/v1/admin/jobs?cell=zz"), 422, "invalid_value", "cell")
    page = door.client.get("/console/jobs").text
    assert listed(page) == set(ids.values())
    assert 'data-label="Cell" class="name">c<' in page
    assert listed(door.client.get("/console/jobs?cell=c").text) == {ids["blue"]}


def test_a_list_of_jobs_names_the_cell_that_does_not_answer(door_with_dead_cell):
    door = door_with_dead_cell
    assert door.client.get("/v1/admin/jobs").get_json()["cells_away"] == ["b"]
    assert "Jobs of cell b are not listed" in door.client.get("/console/jobs").text
    assert door.client.get("/console/jobs?cell=b").status_code == 503


def test_jobs_of_all_cells_are_canceled_at_once_or_those_of_one(door):
    submit_each(door)
    assert "<b>3 jobs" in door.client.get("/console/cancelable?state=inflight").text
    assert door.client.delete("/v1/admin/jobs?state=inflight&cell=c").get_json()["canceled"] == 1
    assert "canceled: 2;" in press(door.client, "cancel-many", state="inflight").text
    assert all(each.snapshot().waiting == 0 for each in door.stores.values())


def test_many_jobs_are_canceled_cell_after_cell(door, monkeypatch):
    monkeypatch.setattr("web.jobs.all_jobs.MAX_CANCELED", 1)
    submit_each(door)
    submit_each(door)
    done, cursor, calls = 0, "", 0
    while cursor is not None:
        answer = door.client.delete(f"/v1/admin/jobs?state=inflight{cursor and f'&cursor={cursor}'}").get_json()
        done, cursor, calls = done + answer["canceled"], answer["cursor"], calls + 1
        assert calls <= 3
    assert (done, calls) == (6, 3)
    fault(door.client.delete("/v1/admin/jobs?state=inflight&cursor=x"), 422, "invalid_value", "cursor")


def test_the_page_and_the_buttons_of_a_job_use_the_cell_that_its_id_names(door):
    ids = submit_each(door)
    page = door.client.get(f"/console/jobs/{ids['red']}").text
    assert "red" in page
    assert "is canceled" in press(door.client, "cancel", job=ids["red"]).text
    settle(door.stores["c"], run_next(door.stores["c"]), text="done")
    assert "succeeded" in door.client.get(f"/console/jobs/{ids['blue']}").text


def test_the_history_is_that_of_one_cell_which_is_named(door):
    assert door.client.get("/v1/admin/history").get_json()["cell"] == "b"
    assert door.client.get("/v1/admin/history?cell=c").get_json()["cell"] == "c"


def test_the_overview_has_a_line_for_each_cell_and_names_the_one_that_is_away(door_with_dead_cell):
    door = door_with_dead_cell
    page = door.client.get("/console/cells").text
    assert re.findall(r'<a href="/console\?cell=(\w+)" id="cell-', page) == ["c", "default"]
    assert '<span class="mark bad">away</span> its store does not answer' in page
    assert "serving" in door.client.get("/console/cells/table").text


def test_the_board_is_that_of_the_cell_in_the_address_and_leads_to_the_others(door):
    heartbeat(door.stores["c"], "only-in-c")
    page = door.client.get("/console?cell=c").text
    assert 'sse-connect="/console/live?cell=c"' in page
    assert '<a href="?cell=c" class="name" aria-current="true">c</a>' in page
    assert '<a href="?cell=b" class="name">b</a>' in page
    with streams(door.client) as look:
        look("/console/live?cell=c").read_until("only-in-c")
        assert "only-in-c" not in look("/console/live?cell=b").read_until("event: workers")
    fault(door.client.get("/console?cell=zz"), 422, "invalid_value", "cell")


def test_workers_are_drained_in_the_cell_of_the_page(door):
    token = {TOKEN_HEADER: token_of(door.client.get("/console?cell=c").text)}
    said = door.client.post("/console/drain-all", headers=token | {CELL_HEADER: "c"}).text
    assert "No worker of cell c claims jobs, and the door admits none there." in said
    assert {name: each.overview().draining for name, each in door.stores.items()} == {
        "default": False,
        "b": False,
        "c": True,
    }
    said = door.client.post("/console/resume-all", headers=token | {CELL_HEADER: "c"}).text
    assert "All workers of cell c claim jobs again." in said


def test_without_a_directory_pages_name_no_cell(store, settings):
    visitor = a_door(store, settings)
    page = visitor.get("/console").text
    assert "cells" not in page
    assert visitor.get("/console/cells").status_code == 404


def test_the_page_of_a_tenant_has_sums_over_its_cells_and_names_them(door):
    admitted_job(submit(door.client, headers={"X-Tenant": "red"}))
    settle(door.stores["b"], run_next(door.stores["b"]), text="done")
    door.place("red", "c", "default")
    admitted_job(submit(door.client, headers={"X-Tenant": "red"}))
    settle(door.stores["c"], run_next(door.stores["c"]), text="done")
    for cell in ("b", "c", "default"):
        door.place("red", cell)
        admitted_job(submit(door.client, headers={"X-Tenant": "red"}))
    door.place("red", "c", "default")
    page = door.client.get("/console/tenants/red").text
    assert "<dt>Waiting</dt><dd>3 " in page
    assert 'Lives in cells <b class="name">c, default</b>' in page
    assert "those of cell c." in page
    assert '<th role="rowheader" scope="row">all 30 days</th><td role="cell" data-label="Jobs" class="n">2<' in page
    assert 'data-label="Waiting" class="n">3<' in door.client.get("/console/tenants?q=red").text
    assert 'data-label="Waiting" class="n">3<' in door.client.get("/console/find-tenants?q=red").text
    assert 'data-label="Jobs" class="n">2<' in door.client.get("/console/usage?by=tenant").text


def test_usage_without_a_cell_that_is_away_says_so_also_in_the_name_of_the_file(door_with_dead_cell):
    door = door_with_dead_cell
    door.context.cells.note_away(door.context.cells.named("b"))
    assert "The sums are without those of cell b" in door.client.get("/console/usage").text
    assert "-without-b.csv" in door.client.get("/console/usage.csv").headers["Content-Disposition"]


def test_the_audit_log_has_a_change_of_all_cells_once_and_names_the_cell_of_others(door, monkeypatch):
    ids = submit_each(door)
    press(door.client, "groups", group="lab")
    press(door.client, "cancel", job=ids["blue"])
    lines = re.findall(
        r'data-label="What" class="name">([^<]+)<.*?data-label="Cells" class="name">([^<]+)<', audit(door)
    )
    assert lines == [("job.cancel", "c"), ("group.set", "all")]
    monkeypatch.setattr("web.console.audit._SHOWN", 2)
    page, seen = audit(door), list[str]()
    for _ in range(6):
        seen += re.findall(r'data-label="What" class="name">([^<]+)<', page)
        link = re.search(r'href="[?]q=&amp;before=([0-9-]+)" id="earlier"', page)
        if link is None:
            break
        page = audit(door, before=link[1])
    else:
        pytest.fail("the pages have no end")
    assert set(seen) == {"job.cancel", "group.set"}


def audit(door: CellsDoor, **query: str) -> str:
    return door.client.get("/console/audit", query_string=query).text


def test_the_playground_and_run_again_submit_in_the_home_of_the_tenant(door):
    for each in door.stores.values():
        Tenants(each.client).set("red", TenantPolicy(run_again=True))
    token = {TOKEN_HEADER: token_of(door.client.get("/console/playground").text)}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    with worker(door.stores["b"], lambda held: settle(door.stores["b"], held, text="from b")):
        answer = door.client.post("/console/playground/answer?tenant=red", json=body, headers=token).text
    assert "from b" in answer
    ended = re.search(r'"id": ?"(b-[^"]+)"', answer)[1]
    door.place("red", "c")
    said = press(door.client, "again", job=ended).text
    assert listed(said) == {door.client.get("/v1/admin/jobs?cell=c").get_json()["data"][0]["id"]}
    newest = {name: next(list_actions(each.client, limit=1)) for name, each in door.stores.items() if name != "default"}
    assert newest["b"].on == f"job {ended} of tenant red"
    assert newest["c"].on.startswith(f"job {ended} as c-")

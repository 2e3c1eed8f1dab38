"""The operators' commands that read or drain a deployment of several cells."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from shared.accounts.admin_actions import Actor, record
from shared.accounts.tenants import Tenants
from shared.cells.stored import StoredDirectory
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import a_heartbeat, a_job, admitted, an_ending, claim_one
from tests.support.cells import list_cells, open_cells
from tests.support.in_process import InProcess
from tests.support.processes import ROOT
from tests.support.program import program
from tests.support.shown_commands import as_pattern, blocks, steps

pytestmark = [pytest.mark.no_prefix]


@pytest.fixture
def cells(redis_client: redis.Redis, store_url: str, settings) -> Iterator[dict[str, Store]]:
    """Two configured cells, which the directory lists. At the end, no job is left in them."""
    with open_cells(store_url, ("b", "default")) as clients:
        list_cells(clients, store_url)
        stores = {name: Store(client) for name, client in clients.items()}
        for store in stores.values():
            store.configure(settings)
        yield stores
        for store in stores.values():
            for job_id in store.client.zrange(keys.inflight(), 0, -1):
                store.cancel(job_id.decode())


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store_url: str) -> InProcess:
    return InProcess(monkeypatch, tmp_path, store_url)


@pytest.fixture
def third_away(cells: dict[str, Store], store_url: str, tmp_path: Path) -> None:
    """List a third cell, whose store does not answer."""
    list_cells({name: store.client for name, store in cells.items()}, store_url, c=f"unix://{tmp_path}/none.sock")


def work(cells: dict[str, Store]) -> dict[str, list[str]]:
    """Let a worker of each cell run jobs of the tenant red, the other cell's after the first one's. Return the ids."""
    ids = {}
    for number, (name, store) in enumerate(cells.items(), 1):
        store.renew(a_heartbeat(f"w{number}", slots_busy=1), [])
        ids[name] = [admitted(store, a_job("red")) for _ in range(number + 1)]
        store.settle(an_ending(claim_one(store, f"w{number}").held), f"w{number}")
    return ids


def read(penstock: InProcess, *command: str) -> dict:
    done = penstock(*command, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_usage_is_the_sum_of_all_cells_or_by_cell(cells, penstock):
    work(cells)
    (row,) = read(penstock, "usage")["rows"]
    assert (row["tenant"], row["requests"]) == ("red", 2)
    by_cell = read(penstock, "usage", "--by", "cell,tenant")["rows"]
    assert [(row["cell"], row["tenant"], row["requests"]) for row in by_cell] == [
        ("b", "red", 1),
        ("default", "red", 1),
    ]
    assert read(penstock, "usage", "--cell", "b")["rows"][0]["requests"] == 1
    Tenants(cells["b"].client).set("red", TenantPolicy(tokens_per_day=9_000))
    Tenants(cells["default"].client).set("red", TenantPolicy(tokens_per_day=9_000))
    (budget,) = read(penstock, "usage", "--budgets")["budgets"]
    assert (budget["name"], budget["max_tokens"], budget["counted_tokens"]) == ("red", 9_000, 30)


def test_jobs_of_all_cells_are_one_list_newest_first_and_its_pages_leave_none_out(cells, penstock):
    ids = work(cells)
    everything = read(penstock, "jobs", "ls")
    assert everything["cursor"] is None
    listed = [(job["cell"], job["id"]) for job in everything["data"]]
    assert sorted(listed) == sorted((name, one) for name, of_cell in ids.items() for one in of_cell)
    times = [job["created_at"] for job in everything["data"]]
    assert times == sorted(times, reverse=True)
    pages, cursor = [], ()
    while True:
        page = read(penstock, "jobs", "ls", "--limit", "2", *cursor)
        pages += [(job["cell"], job["id"]) for job in page["data"]]
        if page["cursor"] is None:
            break
        cursor = ("--cursor", page["cursor"])
    assert sorted(pages) == sorted(listed)
    assert len(pages) == 5
    bad = penstock("jobs", "ls", "--cursor", "5")
    assert (bad.returncode, "cursor='5' is not the cursor of a page" in bad.stderr) == (2, True)
    assert penstock("jobs", "ls").stdout.splitlines()[0].split("\t")[:2] == ["cell", "id"]


def test_jobs_are_canceled_in_all_cells_or_in_one(cells, penstock):
    work(cells)
    refused = penstock("jobs", "cancel", "--tenant", "red")
    assert (refused.returncode, "3 jobs (3 queued, 0 running) would be canceled" in refused.stderr) == (2, True)
    one = penstock("jobs", "cancel", "--tenant", "red", "--yes", "--cell", "b")
    assert one.stdout.startswith("cell b: 1 queued jobs canceled, 0 running jobs will stop")
    done = read(penstock, "jobs", "cancel", "--tenant", "red", "--yes")
    assert (done["canceled"], [(one["cell"], one["canceled"]) for one in done["cells"]]) == (
        2,
        [("b", 0), ("default", 2)],
    )


def test_top_sums_the_cells_and_names_them_in_each_row(cells, penstock):
    work(cells)
    frame = read(penstock, "top", "--once")
    assert (frame["inflight"], frame["waiting"], frame["running"]) == (3, 3, 0)
    assert [(one["cell"], one["waiting"]) for one in frame["cells"]] == [("b", 1), ("default", 2)]
    shown = penstock("top", "--once")
    summary = shown.stderr.splitlines()
    assert [line.partition("  ")[2].partition(":")[0] for line in summary] == [
        "inflight 3 of 128",
        "inflight 1 of 64",
        "inflight 2 of 64",
    ]
    assert [line.split(": ")[0] for line in summary[1:]] == ["cell b", "cell default"]
    rows = [line.split("\t")[:3] for line in shown.stdout.splitlines()]
    assert ["default", "red", "2"] in rows
    assert ["b", "w1"] in [row[:2] for row in rows]


def test_all_workers_of_all_cells_are_drained_or_those_of_one_or_one_in_the_cell_that_has_it(cells, penstock):
    work(cells)

    def draining() -> dict[str, bool]:
        return {name: store.overview().draining for name, store in cells.items()}

    assert penstock("drain", "--all", "--cell", "b").returncode == 0
    assert draining() == {"b": True, "default": False}
    done = penstock("drain", "--all")
    assert (done.returncode, draining()) == (0, {"b": True, "default": True})
    assert [line.split(": ")[0] for line in done.stderr.splitlines()] == ["cell b", "cell default"]
    assert penstock("resume", "--all").returncode == 0
    assert draining() == {"b": False, "default": False}
    one = penstock("drain", "w2")
    assert (one.returncode, one.stderr.startswith("cell default: worker w2 claims no more jobs")) == (0, True)
    assert penstock("resume", "w2").returncode == 0
    unknown = penstock("drain", "w3")
    assert (unknown.returncode, "worker='w3' does not exist; workers: w1, w2" in unknown.stderr) == (2, True)


def test_the_audit_log_of_all_cells_shows_a_change_once_with_its_cells(cells, penstock):
    assert penstock("keys", "add", "red", "--label", "laptop").returncode == 0
    record(cells["b"].client, Actor("ann", "here"), "job.cancel", "job 1")
    lines = [json.loads(line) for line in penstock("audit", "--json").stdout.splitlines()]
    assert [(line["what"], line["cells"]) for line in lines] == [
        ("job.cancel", ["b"]),
        ("key.add", ["b", "default"]),
    ]
    assert [line.split("\t")[-1] for line in penstock("audit").stdout.splitlines()] == ["cells", "b", "all"]


def test_history_and_alerts_are_shown_by_cell(cells, penstock):
    found = read(penstock, "history")["cells"]
    assert [(one["cell"], one["data"]) for one in found] == [("b", []), ("default", [])]
    assert penstock("history").stdout.split("\t")[0] == "cell"
    nothing = penstock("history", "--at", "1h")
    assert [line.split(": ")[0] for line in nothing.stderr.splitlines()] == ["cell b", "cell default"]
    assert [one["cell"] for one in read(penstock, "alerts", "list")["cells"]] == ["b", "default"]
    assert penstock("alerts", "list").stdout.split("\t")[0] == "cell"


def test_doctor_checks_each_cell_and_finds_accounts_that_differ_and_old_copies_of_the_directory(
    cells, penstock, store_url
):
    done = penstock("doctor", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["holds"], [one["cell"] for one in told["cells"]]) == (0, True, ["b", "default"])
    assert [one["key_prefix"] for one in told["cells"]] == ["{b}:", ""]
    assert all(rule["verdict"] != "BROKEN" for one in told["cells"] for rule in one["invariants"])
    Tenants(cells["b"].client).set("red", TenantPolicy(rpm=1))
    StoredDirectory(cells["b"].client).remove()
    done = penstock("doctor")
    assert done.returncode == 1
    assert "the policy of tenant 'red' is in cell b and not in cell default" in done.stderr
    assert "make the accounts equal with `penstock cells sync`\n" in done.stderr
    for client, other in ((cells["b"].client, "default"), (cells["default"].client, "b")):
        client.sadd(keys.missed_changes(), other)
    assert "with `penstock cells sync --from CELL`" in penstock("doctor").stderr
    assert "cell b has no copy of the directory" in done.stderr
    assert "cell b: store: " in done.stderr
    assert {line.split("\t")[0] for line in done.stdout.splitlines()} == {"cell", "b", "default"}
    assert penstock("doctor", "--cell", "default").returncode == 0
    cells["default"].client.zadd(keys.inflight(), {"stray": 1})
    done = penstock("doctor", "--json", "--cell", "default")
    assert (done.returncode, json.loads(done.stdout)["cells"][0]["holds"]) == (1, False)
    repaired = penstock("doctor", "--repair", "--cell", "default")
    assert (repaired.returncode, "cell default: changed: " in repaired.stderr) == (0, True)


@pytest.mark.usefixtures("third_away")
@pytest.mark.parametrize(
    "command",
    [
        ("usage",),
        ("jobs", "ls"),
        ("top", "--once"),
        ("audit",),
        ("history",),
        ("alerts", "list"),
        ("doctor",),
        ("tenants", "ls"),
        ("drain", "--all"),
    ],
)
def test_a_cell_that_does_not_answer_is_named_and_the_others_are_shown(cells, penstock, command):
    done = penstock(*command)
    assert (done.returncode, "cell c does not answer, and nothing here is about it: " in done.stderr) == (1, True)
    assert command[0] == "drain" or len(done.stdout.splitlines()) >= 1


def test_a_redis_command_reads_the_cell_that_is_named(cells, penstock, tmp_path, store_url):
    cells["default"].client.delete(keys.config())
    done = program(tmp_path, REDIS_URL=store_url)("redis", "--cell", "b", "EXISTS", "penstock:config")
    assert done.stdout == "1\n"
    unknown = penstock("redis", "--cell", "c", "PING")
    assert (unknown.returncode, unknown.stderr) == (2, "penstock: cell='c' is not a cell; these are: b, default\n")


def test_the_commands_of_the_page_print_what_it_shows(redis_client, store_url, settings, penstock):
    with open_cells(store_url, ("c2", "default")) as clients:
        list_cells(clients, store_url)
        for client in clients.values():
            Store(client).configure(settings)
        _, block = blocks((ROOT / "docs" / "scale.md").read_text(encoding="utf-8"))
        for shown, lines in steps(block):
            done = penstock(*shlex.split(shown)[1:])
            assert done.returncode == 0, done.stderr
            for line in lines:
                assert re.search(f"^{as_pattern(line)}$", done.stdout + done.stderr, re.MULTILINE), (shown, line, done)

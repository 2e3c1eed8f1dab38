"""The commands of cells: what they list and refuse, where tenants then live, and the cells that a change missed."""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from shared.accounts.admin_actions import list_actions
from shared.accounts.api_keys import ApiKeys
from shared.cells.checks import directory_problems
from shared.cells.directory import Placement
from shared.cells.opening import cells_in_force
from shared.cells.placement import tenant_cells
from shared.cells.stored import StoredDirectory
from shared.cli.commands import cells as command
from shared.settings.settings import Settings, load
from shared.store import keys
from shared.store.connection import open_client
from shared.store.store import Store
from tests.support.builders import a_job, admitted, an_ending, claim_one, heartbeat
from tests.support.in_process import InProcess
from tests.support.ports import free_port
from tests.support.processes import ROOT
from tests.support.shown_commands import as_pattern, blocks, steps

pytestmark = pytest.mark.no_prefix


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store_url: str, store: Store) -> InProcess:
    """The commands on the session's store, whose doors notice a change at once."""
    monkeypatch.setattr(command, "NOTICE_S", 0.0)
    return InProcess(monkeypatch, tmp_path, store_url)


@pytest.fixture
def c2(store_url: str, settings: Settings, store: Store) -> Iterator[Store]:
    """A second cell of the session's store, which the directory does not list yet."""
    with open_client(store_url, name="penstock-test", prefix="c2:") as client:
        yield Store(client)


def listed(penstock: InProcess, *arguments: str) -> dict[str, dict[str, object]]:
    """Return the cells as `penstock cells ls --json` prints them, by name."""
    lines = json.loads(penstock("cells", "ls", "--json", *arguments).stdout)["cells"]
    return {line["cell"]: line for line in lines}


def run(penstock: InProcess, *arguments: str) -> str:
    """Run a command of cells, which must succeed, and return its notes."""
    done = penstock("cells", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stderr


def refused(penstock: InProcess, *arguments: str) -> str:
    """Run a command of cells, which must be refused as a usage error, and return what it says."""
    done = penstock("cells", *arguments)
    assert done.returncode == 2, (done.returncode, done.stderr)
    return done.stderr


def test_without_a_directory_there_is_one_cell_and_nothing_to_change(
    penstock: InProcess, redis_client: redis.Redis
) -> None:
    assert [(line["cell"], line["jobs"]) for line in listed(penstock).values()] == [("default", 0)]
    for arguments in (["rm", "c2"], ["drain", "c2"], ["move", "blue", "c2"], ["spread", "2"]):
        assert "there is no directory of cells: `penstock cells add` makes one" in refused(penstock, *arguments)
    assert not redis_client.exists(keys.cells())


def test_the_first_cell_that_is_added_enters_the_store_in_force_and_gets_its_accounts(
    penstock: InProcess, store_url: str, store: Store, c2: Store
) -> None:
    ApiKeys(store.client).create("blue", label="laptop")
    notes = run(penstock, "add", "c2", store_url, "--prefix", "c2:", "--weight", "2", "--region", "eu")
    assert "the store in force is cell default" in notes
    assert "only this machine reaches" in notes
    assert "cell c2 has no workers yet" in notes
    assert [key.label for key in ApiKeys(c2.client).ls("blue")[1]] == ["laptop"]
    cells = listed(penstock)
    assert [(name, line["weight"], line["region"]) for name, line in cells.items()] == [
        ("c2", 2.0, "eu"),
        ("default", 1.0, ""),
    ]
    assert StoredDirectory(c2.client).read() == StoredDirectory(store.client).read()
    assert [one.what for one in list_actions(store.client, limit=1)] == ["cell.add"]


def test_jobs_of_a_tenant_that_is_moved_end_where_they_are(
    penstock: InProcess, store_url: str, store: Store, c2: Store
) -> None:
    run(penstock, "add", "c2", store_url, "--prefix", "c2:")
    heartbeat(store)
    admitted(store, a_job("blue"))
    assert "cell default: 1 job of tenant blue left, to end there" in run(penstock, "move", "blue", "c2")
    cells = listed(penstock, "--tenant", "blue")
    assert [(name, line["place"], line["jobs"]) for name, line in cells.items()] == [("c2", 1, 0), ("default", None, 1)]
    store.settle_many([an_ending(claim_one(store).held)], "w1")
    assert "left" not in run(penstock, "move", "blue", "c2,default", "--wait")
    assert list(listed(penstock, "--tenant", "blue")) == ["c2", "default"]
    run(penstock, "move", "blue", "--unpin")
    assert "tenant='a b' is not a tenant's name" in refused(penstock, "move", "a b", "c2")
    assert "tenant='a b' is not a tenant's name" in refused(penstock, "ls", "--tenant", "a b")
    assert "cell='c9' does not exist; cells: c2, default" in refused(penstock, "move", "blue", "c2,c9")
    assert "tenant='blue': name its cells or --region, or use --unpin" in refused(penstock, "move", "blue")
    assert "spread=0" in refused(penstock, "spread", "0")
    assert "count='-1'" in penstock("cells", "spread", "--", "-1").stderr
    assert "count='default' is for one tenant" in refused(penstock, "spread", "default")
    directory = StoredDirectory(c2.client).read()
    assert directory is not None
    assert not directory.tenants


def test_a_cell_is_removed_when_it_drains_and_is_empty_and_no_tenant_is_pinned_to_it(
    penstock: InProcess, store_url: str, store: Store, c2: Store, settings: Settings
) -> None:
    run(penstock, "add", "c2", store_url, "--prefix", "c2:")
    assert "cell='c2' gets new jobs: first `penstock cells drain c2 --wait`" in refused(penstock, "rm", "c2")
    run(penstock, "move", "blue", "c2")
    assert "cell='c2' cannot drain: tenant blue is pinned to no other cell" in refused(penstock, "drain", "c2")
    run(penstock, "move", "blue", "c2,default")
    run(penstock, "drain", "c2")
    assert list(listed(penstock, "--tenant", "blue")) == ["default"]
    assert "cell='default' cannot drain: no other cell gets new jobs" in refused(penstock, "drain", "default")
    assert "tenant blue is pinned to it" in refused(penstock, "rm", "c2")
    run(penstock, "move", "blue", "default")
    c2.configure(settings)
    heartbeat(c2)
    admitted(c2, a_job("red"))
    done = penstock("cells", "rm", "c2")
    assert (done.returncode, "cell c2 has 1 job left" in done.stderr) == (1, True)
    c2.settle_many([an_ending(claim_one(c2).held)], "w1")
    run(penstock, "drain", "c2", "--wait")
    assert "is not lost: its store answers" in refused(penstock, "rm", "c2", "--lost")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_KEY_PREFIX", "c2:")
        assert "REDIS_URL names the removed cell" in run(penstock, "rm", "c2")
    assert list(listed(penstock)) == ["default"]
    assert StoredDirectory(c2.client).read() is None
    run(penstock, "rm", "default")
    assert StoredDirectory(store.client).read() is None


def test_no_door_writes_its_older_directory_into_a_removed_cell(
    penstock: InProcess, store_url: str, store: Store, c2: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(penstock, "add", "c2", store_url, "--prefix", "c2:", "--draining")
    older = StoredDirectory(store.client).read()
    assert older is not None
    waited: list[int] = []

    def as_a_door_that_has_not_looked_yet(_: float) -> None:
        StoredDirectory(c2.client).write_if_newer(older)
        waited.append(StoredDirectory(store.client).version())

    monkeypatch.setattr(command.time, "sleep", as_a_door_that_has_not_looked_yet)
    run(penstock, "rm", "c2")
    assert waited[-1] > older.version
    assert StoredDirectory(c2.client).read() is None


def test_a_tenant_is_kept_in_a_region(penstock: InProcess, store_url: str, c2: Store) -> None:
    run(penstock, "add", "c2", store_url, "--prefix", "c2:", "--region", "eu")
    run(penstock, "spread", "2")
    run(penstock, "spread", "3", "--tenant", "blue")
    assert "new jobs of tenant blue go to c2 " in run(penstock, "move", "blue", "--region", "eu")
    assert list(listed(penstock, "--tenant", "blue")) == ["c2"]
    assert "cells='default' of tenant 'blue' is in region ''" in refused(
        penstock, "move", "blue", "c2,default", "--region", "eu"
    )
    assert "region='us' of tenant 'blue': no cell there gets new jobs" in refused(
        penstock, "move", "blue", "--region", "us"
    )
    assert "cell='c2' cannot drain: tenant blue is pinned to no other cell that gets new jobs; first " in (
        refusal := refused(penstock, "drain", "c2")
    )
    assert "first `penstock cells move blue CELL`" in refusal
    run(penstock, "move", "blue", "--unpin")
    directory = StoredDirectory(c2.client).read()
    assert directory is not None
    assert directory.tenants == {"blue": Placement(spread=3)}


def test_places_are_those_of_a_door_with_the_same_regions(
    penstock: InProcess, store_url: str, c2: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(penstock, "add", "c2", store_url, "--prefix", "c2:", "--region", "eu", "--weight", "0.001")
    assert list(listed(penstock, "--tenant", "blue")) == ["default"]
    monkeypatch.setenv("PENSTOCK_REGIONS", "eu")
    assert list(listed(penstock, "--tenant", "blue")) == ["c2"]
    assert "new jobs of tenant blue go to c2 " in run(penstock, "move", "blue", "--unpin")


def test_a_tenant_that_no_cell_knows_is_named_because_it_may_be_a_slip(
    penstock: InProcess, store_url: str, store: Store, c2: Store
) -> None:
    run(penstock, "add", "c2", store_url, "--prefix", "c2:")
    ApiKeys(store.client).create("blue")
    unknown = "no cell has a policy, a key or a job of tenant"
    assert unknown not in run(penstock, "move", "blue", "c2")
    assert unknown not in run(penstock, "spread", "1", "--tenant", "blue")
    assert f"{unknown} bleu" in run(penstock, "move", "bleu", "c2")
    assert f"{unknown} bleu" in run(penstock, "spread", "1", "--tenant", "bleu")
    assert unknown not in run(penstock, "move", "bleu", "--unpin")
    assert "the directory lists only 2" in run(penstock, "spread", "3")


def test_a_draining_cell_gets_jobs_again(penstock: InProcess, store_url: str, c2: Store, store: Store) -> None:
    run(penstock, "add", "c2", store_url, "--prefix", "c2:", "--draining", "--weight", "1000")
    assert list(listed(penstock, "--tenant", "blue")) == ["default"]
    run(penstock, "drain", "c2", "--off")
    directory = StoredDirectory(store.client).read()
    assert directory is not None
    assert "c2" in {tenant_cells(directory, f"t{i}")[0] for i in range(20)}
    run(penstock, "spread", "2")
    run(penstock, "spread", "1", "--tenant", "blue")
    assert (len(listed(penstock, "--tenant", "red")), len(listed(penstock, "--tenant", "blue"))) == (2, 1)
    assert "tenant blue has 2 cells" in run(penstock, "spread", "default", "--tenant", "blue")
    assert len(listed(penstock, "--tenant", "blue")) == 2


def test_a_cell_that_is_replaced_keeps_its_place_and_state(penstock: InProcess, store_url: str, c2: Store) -> None:
    run(penstock, "add", "c2", store_url, "--prefix", "c2:", "--draining")
    assert "cell='c2' exists; `--replace`" in refused(penstock, "add", "c2", store_url, "--prefix", "c2:")
    run(penstock, "add", "c2", store_url, "--prefix", "c2:", "--weight", "3", "--replace")
    assert (listed(penstock)["c2"]["weight"], listed(penstock)["c2"]["state"]) == (3.0, "draining")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["default", "redis://h"], "cell='default' is the store in force"),
        (["C2", "redis://h"], "cell='C2' is not a cell's name"),
        (["c2", "redis://[::1"], "url='redis://[::1' of cell 'c2'"),
        (["c2", "redis://h:port"], "cell 'c2': url='redis://h:port' cannot be used"),
        (["c2", "http://h"], "url='http://h' of cell 'c2' is not a store's URL"),
        (["c2", "redis://u:secret@127.0.0.1:1"], "cell 'c2': the store at redis://u:***@127.0.0.1:1 cannot be reached"),
        (["c2", "redis://h", "--prefix", "c2"], "cell 'c2': prefix='c2' must end with a colon"),
        (["c2", "redis://h", "--weight", "0"], "weight=0.0 of cell 'c2'"),
        (["c2", "redis://h", "--weight", "nan"], "weight=nan of cell 'c2'"),
        (["c2", "redis://h", "--region", "a b"], "region='a b' of cell 'c2'"),
        (["c2", "redis+cluster://h"], "cell 'c2': prefix='' has no hash tag"),
    ],
)
def test_a_cell_with_an_invalid_value_is_refused_before_anything_is_written(
    penstock: InProcess, redis_client: redis.Redis, arguments: list[str], expected: str
) -> None:
    done = penstock("cells", "add", *arguments)
    assert done.returncode in {1, 2}
    assert expected in done.stderr
    assert "secret" not in done.stderr
    assert not redis_client.exists(keys.cells())


def test_a_store_with_other_jobs_accounts_or_settings_or_that_is_a_cell_already_is_refused(
    penstock: InProcess, store_url: str, c2: Store, settings: Settings, redis_client: redis.Redis
) -> None:
    there = ["add", "c2", store_url, "--prefix", "c2:"]
    c2.configure(load(environ={"PENSTOCK_MAX_QUEUE_SIZE": "77"}, dotenv=None))
    assert "has other system-wide settings: max_queue_size is '77'" in refused(penstock, *there)
    c2.configure(settings, take_over=True)
    ApiKeys(c2.client).create("other", label="theirs")
    assert "has accounts that this deployment lacks, which would be removed: key " in refused(penstock, *there)
    c2.client.delete(keys.keys())
    heartbeat(c2)
    admitted(c2, a_job("red"))
    assert "has 1 jobs of another deployment" in refused(penstock, *there)
    assert "url and prefix of cell 'c3' lead to cell 'default'" in refused(
        penstock, "add", "c3", f"{store_url}?socket_read_size=65536"
    )
    assert not redis_client.exists(keys.cells())


def test_a_cell_that_is_away_is_named_and_its_copy_is_behind(
    penstock: InProcess, tmp_path: Path, store_url: str, store: Store, c2: Store
) -> None:
    run(penstock, "add", "c2", store_url, "--prefix", "c2:")
    directory = StoredDirectory(store.client).read()
    assert directory is not None
    lost = {**directory.cells, "c2": type(directory.cells["c2"])("c2", f"redis://127.0.0.1:{free_port()}", "c2:")}
    for client in (store.client, c2.client):
        assert StoredDirectory(client).write_if_newer(directory.changed(at_ms=1, cells=lost))
    done = penstock("cells", "spread", "2", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (1, {"version": 3, "not_reached": ["c2"]})
    assert "not reached: c2" in done.stderr
    done = penstock("cells", "ls")
    assert (done.returncode, "cell c2 does not answer" in done.stderr) == (1, True)
    cells = cells_in_force(load(environ={"REDIS_URL": store_url, "PENSTOCK_STATE_DIR": str(tmp_path)}, dotenv=None))
    assert [problem.partition(":")[0] for problem in directory_problems(cells)] == ["cell c2 does not answer"]
    assert "refused with store_unavailable until" in penstock("cells", "move", "blue", "c2").stderr
    assert "refused with" not in penstock("cells", "move", "blue", "c2,default").stderr
    penstock("cells", "move", "blue", "--unpin")
    done = penstock("cells", "rm", "c2")
    assert done.returncode == 2
    run(penstock, "rm", "c2", "--lost")
    assert list(listed(penstock)) == ["default"]


def test_no_password_is_printed_or_stored_if_it_is_that_of_redis_url(
    penstock: InProcess, store_url: str, store: Store, c2: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.client.config_set("requirepass", "hush")
    try:
        with_password = store_url.replace("unix://", "unix://default:hush@")
        monkeypatch.setenv("REDIS_URL", with_password)
        run(penstock, "add", "c2", with_password, "--prefix", "c2:")
        assert set(listed(penstock)) == {"default", "c2"}
        with open_client(with_password, name="penstock-test", prefix="") as client:
            assert b"hush" not in b"".join(client.hgetall(keys.cells()).values())
        run(penstock, "add", "c2", f"{with_password}?db=0", "--prefix", "c2:", "--replace")
        assert "hush" not in penstock("cells", "ls").stdout
    finally:
        with open_client(
            store_url.replace("unix://", "unix://default:hush@"), name="penstock-test", prefix=""
        ) as client:
            client.config_set("requirepass", "")


def test_the_commands_of_the_page_print_what_it_shows(penstock: InProcess, store_url: str, c2: Store) -> None:
    block, *_ = blocks((ROOT / "docs" / "scale.md").read_text(encoding="utf-8"))
    for shown, lines in steps(block):
        words = shlex.split(shown)[1:]
        if "redis://10.0.0.2:6379" in words:
            words = [word.replace("redis://10.0.0.2:6379", store_url) for word in words] + ["--prefix", "c2:"]
        done = penstock(*words)
        assert done.returncode == 0, done.stderr
        for line in lines:
            assert re.search(f"^{as_pattern(line)}$", done.stdout + done.stderr, re.MULTILINE), (shown, line, done)


def test_the_user_of_deploy_reaches_the_cells_of_its_prefixes_with_one_password(
    penstock: InProcess,
    tmp_path: Path,
    store_url: str,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make, template = ROOT / "deploy" / "make_credentials.sh", ROOT / "deploy" / "users.acl"
    one, other = tmp_path / "1", tmp_path / "2"
    for folder, more in ((one, ["c1: {c2}:"]), (other, ["c1: {c2}:", one / "redis-url"])):
        folder.mkdir()
        subprocess.run([make, template, folder, folder, "store:1", *more], check=True)
    assert [(one / name).read_text() for name in ("users.acl", "redis-url")] == [
        (other / name).read_text() for name in ("users.acl", "redis-url")
    ]
    user = (one / "users.acl").read_text().splitlines()[1].split()[1:]
    password = (one / "redis-url").read_text().split("@")[0].rpartition(":")[2]
    store.client.execute_command("ACL", "SETUSER", *user)  # type: ignore[no-untyped-call]  # redis-py has no types
    try:
        monkeypatch.setenv("REDIS_URL", store_url.replace("unix://", f"unix://penstock:{password}@"))
        monkeypatch.setenv("PENSTOCK_KEY_PREFIX", "c1:")
        run(penstock, "add", "c2", store_url, "--prefix", "{c2}:")
        run(penstock, "move", "blue", "c2")
        run(penstock, "move", "blue", "--unpin")
        run(penstock, "drain", "c2", "--wait")
        run(penstock, "rm", "c2")
        done = penstock("cells", "add", "c3", store_url, "--prefix", "c3:")
        assert (done.returncode, "permission" in done.stderr.lower()) == (1, True)
    finally:
        store.client.execute_command("ACL", "DELUSER", "penstock")  # type: ignore[no-untyped-call]  # as above

"""`penstock collections` as a process, against a real door with a real database."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.program import Program, program
from tests.support.served import Served, sim_served

pytestmark = pytest.mark.ways("direct", reason="the command's requests are those of other clients")


#: A search without it ends after 5 s, with what it has found by then.
IN_TIME = ("--budget", "60s")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, database_url: str) -> Iterator[Served]:
    with sim_served(tmp_path_factory.mktemp("collections"), PENSTOCK_DATABASE_URL=database_url) as served:
        yield served


@pytest.fixture
def penstock(served: Served, tmp_path: Path) -> Program:
    return program(tmp_path / "state", PENSTOCK_URL=served.url)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "policies"
    (folder / "old").mkdir(parents=True)
    (folder / "leave.md").write_text("# Leave\n\nThirty days of paid leave a year.\n")
    (folder / "old" / "travel.txt").write_text("Taxis need a reason.\n")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    return folder


def test_a_folder_is_loaded_listed_searched_and_removed(penstock: Program, folder: Path) -> None:
    added = penstock("collections", "add", "handbook", "--model", "none")
    assert (added.returncode, added.stdout) == (0, ""), added.stderr
    assert "handbook is searched by words alone" in added.stderr
    load = ("collections", "load", "handbook", str(folder), "--metadata", "year=2026")
    first = penstock(*load)
    assert first.returncode == 0, first.stderr
    beginning = folder.as_posix().removeprefix("/")
    leave, travel = f"{beginning}/leave.md", f"{beginning}/old/travel.txt"
    assert first.stdout.splitlines() == [f"{leave}: 1 chunks", f"{travel}: 1 chunks"]
    assert penstock(*load).stdout.splitlines() == [f"{leave}: unchanged", f"{travel}: unchanged"]
    listed = penstock("collections", "ls")
    assert [line.split("\t")[:3] for line in listed.stdout.splitlines()][1] == ["handbook", "", "2"]
    documents = json.loads(penstock("collections", "ls", "handbook", "--json").stdout)
    assert [each["id"] for each in documents] == [leave, travel]
    assert documents[0]["metadata"] == {"year": 2026}
    found = penstock("collections", "search", "handbook", "paid leave", "-k", "1", *IN_TIME)
    assert found.stdout.startswith(f"{leave}#0 (")
    assert "Thirty days of paid leave" in found.stdout
    wanted = '{"type": "eq", "key": "year", "value": 2025}'
    none = penstock("collections", "search", "handbook", "leave", "--filter", wanted, "--json", *IN_TIME)
    assert (json.loads(none.stdout)["data"], json.loads(none.stdout)["omitted"]) == ([], [])
    assert penstock("collections", "rm", "handbook", "--document", leave).returncode == 0
    assert penstock("collections", "rm", "handbook").returncode == 0
    gone = penstock("collections", "rm", "handbook")
    assert gone.returncode == 1
    assert "there is no collection 'handbook'" in gone.stderr


def test_a_file_that_cannot_be_read_does_not_stop_the_others(penstock: Program, folder: Path) -> None:
    penstock("collections", "add", "mixed", "--model", "none")
    (folder / "broken.pdf").write_bytes(b"%PDF-1.7 broken")
    done = penstock("collections", "load", "mixed", str(folder))
    assert done.returncode == 1
    assert "broken.pdf: the door answered 400" in done.stderr
    assert len(done.stdout.splitlines()) == 2


def test_one_file_may_have_an_id_of_its_own(penstock: Program, folder: Path) -> None:
    penstock("collections", "add", "named", "--model", "none")
    done = penstock("collections", "load", "named", str(folder / "leave.md"), "--id", "leave", "--json")
    assert [each["id"] for each in json.loads(done.stdout)] == ["leave"]
    several = penstock("collections", "load", "named", str(folder), "--id", "leave")
    assert (several.returncode, "there are 2 files" in several.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("load", "handbook", "missing.md"), "FILE='missing.md' cannot be read"),
        (("load", "handbook", "missing.md", "--metadata", "year"), "--metadata='year' is not NAME=VALUE"),
        (("load", "handbook", "missing.md", "--id", "/a"), "--id='/a': an id does not begin with '/'"),
        (("search", "handbook", "x", "--filter", "{"), "--filter='{' is not JSON"),
        (("search", "handbook", "x", "--budget", "5"), "--budget='5' is not a duration"),
    ],
)
def test_a_wrong_command_line_is_told(penstock: Program, arguments: tuple[str, ...], told: str) -> None:
    done = penstock("collections", *arguments)
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr

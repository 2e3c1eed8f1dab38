"""examples/flood.py against doors that do not serve it: it says in one sentence what is wrong, and exits with 1."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from shared.accounts.api_keys import ApiKeys
from tests.support.ports import free_port
from tests.support.processes import ROOT
from tests.support.served import Address, Served, sim_served


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sim_served(tmp_path_factory.mktemp("flood"), auth="required") as served:
        yield served


def failure(url: str, **environ: str) -> str:
    """Run the example, which must fail with one line on stderr and nothing on stdout, and return that line."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "flood.py"],
        env={"PENSTOCK_URL": url, **environ},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, ""), done
    assert done.stderr.startswith("flood.py: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.ways("direct", reason="the door's own answers are tested")
def test_a_door_that_requires_keys_makes_the_example_name_the_missing_or_wrong_key(served: Address) -> None:
    without = failure(served.url)
    assert "answered 401: " in without
    assert "set RED_KEY to an API key (`penstock keys add red`)" in without
    assert failure(served.url, RED_KEY="psk_unknown").rstrip().endswith("check RED_KEY")


@pytest.mark.ways("direct", reason="the door's own answers are tested")
def test_what_only_the_second_tenant_is_told_fails_too(served: Address) -> None:
    key = ApiKeys(served.stage.client).create("red").key
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "flood.py"],
        env={"PENSTOCK_URL": served.url, "RED_KEY": key},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1
    assert "set BLUE_KEY" in done.stderr
    assert done.stdout.startswith("red:  200 jobs sent, ")


@pytest.mark.ways("direct", reason="the door's own answers are tested")
def test_an_address_with_v1_is_answered_with_the_path_and_what_is_served(served: Address) -> None:
    key = ApiKeys(served.stage.client).create("red").key
    assert "no route has the path '/v1/v1/jobs'" in failure(f"{served.url}/v1", RED_KEY=key)


def test_a_door_that_is_down_and_an_invalid_address_are_named() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert f"no answer from {url} (PENSTOCK_URL): " in failure(url)
    assert "PENSTOCK_URL='nowhere'" in failure("nowhere")


def test_a_reader_that_has_ended_ends_the_example_without_a_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    lines = "import flood; flood.flood = lambda: print('red:'); flood.main()"
    done = subprocess.run(
        [sys.executable, "-c", lines],
        cwd=ROOT / "examples",
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")

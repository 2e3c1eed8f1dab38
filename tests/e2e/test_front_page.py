"""The door's start page: its examples work from the client's address, and it tells strangers no names."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.builders import MODEL
from tests.support.door import a_door, door_store, serve
from tests.support.served import Address, Served, sim_served

pytestmark = pytest.mark.ways("direct", reason="the page does not depend on the way to the door")

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sim_served(tmp_path_factory.mktemp("front")) as served:
        yield served


def example(page: str, title: str) -> str:
    """Return the lines under a title of the page's text."""
    return page.partition(f"{title}:\n\n")[2].partition("\n\n")[0] + "\n"


@needs_curl
def test_the_line_for_the_shell_submits_a_job_through_the_address_that_was_called(served: Address) -> None:
    line = example(served.http.get("/").text, "Submit a job and wait for its end")
    assert served.url in line
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=True)
    assert '"status":"succeeded"' in done.stdout
    assert done.stdout.endswith("}\n")


def test_the_lines_of_python_can_be_pasted_at_a_prompt(served: Address) -> None:
    lines = example(served.http.get("/").text, "The same in Python, after `pip install openai`")
    done = subprocess.run(
        [sys.executable, "-q", "-i", "-W", "ignore"],
        input=lines,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "Error" not in done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(("mode", "links"), [("read", 1), ("off", 0)])
def test_the_page_links_to_the_dashboard_if_there_is_one(
    store: Store, settings: Settings, mode: str, links: int
) -> None:
    page = a_door(store, settings, dashboard=mode).get("/", headers={"Accept": "text/html"}).text
    assert page.count('href="/rq/"') == links


def test_a_browser_gets_a_page_that_loads_nothing(store: Store, settings: Settings) -> None:
    serve(store)
    page = a_door(store, settings).get("/", headers={"Accept": "text/html,*/*;q=0.8", "Host": "localhost:8000"})
    assert page.mimetype == "text/html"
    assert f"<code>{MODEL}</code>" in page.text
    assert page.text.count("://") == page.text.count("http://localhost:8000")
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert page.headers["Vary"] == "Accept"


def test_a_door_that_requires_keys_names_no_models_to_strangers(store: Store, settings: Settings) -> None:
    serve(store)
    page = a_door(store, settings, auth="required").get("/").text
    assert "Models:" not in page
    assert 'model="MODEL"' in page
    assert "/v1/models lists the models of a key: put one of them in place of MODEL." in page
    assert "penstock keys add" in page
    assert "Bearer $PENSTOCK_API_KEY" in page


def test_a_forwarded_address_is_named_if_it_is_one(store: Store, settings: Settings) -> None:
    serve(store)
    client = a_door(store, settings)
    forwarded = {"X-Forwarded-Host": "llm.example:8443", "X-Forwarded-Proto": "https"}
    assert "curl -s 'https://llm.example:8443/v1/jobs" in client.get("/", headers=forwarded).text
    for host in ("a.example'; rm -rf /; '", "<b>.example", "a.example/path"):
        page = client.get("/", headers={"X-Forwarded-Host": host, "Accept": "text/html"}).text
        assert host not in page
        assert "http://localhost/v1/jobs" in page


def test_without_a_live_worker_the_page_says_so(store: Store, settings: Settings) -> None:
    page = a_door(store, settings).get("/").text
    assert "No model is live at present." in page
    assert "MODEL" in page


def test_while_the_store_does_not_answer_the_page_says_so(settings: Settings, tmp_path: Path) -> None:
    client = a_door(door_store(f"unix://{tmp_path}/none.sock"), settings)
    answer = client.get("/")
    assert answer.status_code == 200
    assert "The store cannot be reached, so no job is admitted." in answer.text


@pytest.mark.parametrize("auth", ["open", "required"])
def test_browsers_get_an_icon_without_a_key(store: Store, settings: Settings, auth: str) -> None:
    icon = a_door(store, settings, auth=auth).get("/favicon.ico", buffered=True)
    assert (icon.status_code, icon.mimetype) == (200, "image/svg+xml")

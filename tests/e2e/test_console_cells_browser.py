"""The console of several cells in a real browser: the cell of the address is kept, also in panels that are replaced."""

import time

import pytest

from shared.cells.directory import CellRecord, Directory
from shared.cells.stored import StoredDirectory
from tests.support.browser import needs_browser
from tests.support.chromium import Page
from tests.support.painted import wait_for
from tests.support.served import Served
from tests.support.store_servers import StoreServer

pytestmark = needs_browser


@pytest.fixture(scope="module")
def of_two(door: Served, server: StoreServer) -> Served:
    """A door over the default cell and the cell `c2`, in the same store."""
    records = {"default": CellRecord("default", server.url), "c2": CellRecord("c2", server.url, "{c2}:")}
    directory = Directory(1, records, changed_ms=time.time_ns() // 1_000_000)
    StoredDirectory(server.client).write_if_newer(directory)
    wait_for(lambda: door.http.get("/console/cells").status_code == 200, "the directory", timeout_s=60)
    return door


def test_links_forms_and_streams_keep_the_cell_of_the_address(page: Page, of_two: Served) -> None:
    page.open(f"{of_two.url}/console/cells")
    page.open(page.run("document.getElementById('cell-c2').href"))
    page.wait_for_text("nav.cells [aria-current]", "c2")
    page.wait_for_text("#panel-state", "No worker")
    page.open(page.run("[...document.querySelectorAll('nav a')].find(a => a.innerText === 'History').href"))
    page.wait_for_text("nav.cells [aria-current]", "c2")
    page.click("form.filter button.strong")
    wait_for(lambda: "span=" in page.run("location.search"), "the form")
    assert "cell=c2" in page.run("location.search")
    page.wait_for_text("nav.cells", "default")
    page.open(page.run("[...document.querySelectorAll('nav.cells a')].find(a => a.innerText === 'default').href"))
    page.wait_for_text("nav.cells [aria-current]", "default")
    assert page.complaints == []

"""The page and the server that docs/browser.md prints work in a real browser, against a door of another origin."""

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import document, needs_browser
from tests.support.ports import free_port
from tests.support.processes import ROOT, wait_for
from tests.support.served import Address, Served, sim_served

pytestmark = pytest.mark.ways("direct", reason="the page's requests are those of any browser")

TEXT = (ROOT / "docs" / "browser.md").read_text(encoding="utf-8")


def code_block(language: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    assert len(found) == 1
    return str(found[0])


@pytest.fixture(scope="module")
def port() -> int:
    """The port of the page's own server; the door must know the page's origin when it starts."""
    return free_port()


@pytest.fixture(scope="module")
def common(port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sim_served(tmp_path_factory.mktemp("door"), cors_origins=f"http://127.0.0.1:{port}") as served:
        wait_for(lambda: is_ready(f"{served.url}/health/ready"), "the door")
        yield served


@pytest.fixture
def page(served: Address, port: int, tmp_path: Path) -> Iterator[str]:
    """The address of the page, served by the page's own server."""
    (tmp_path / "page.html").write_text(code_block("html"))
    (tmp_path / "server.py").write_text(code_block("python"))
    environ = os.environ | {"PENSTOCK_URL": served.url, "PAGE_PORT": str(port)}
    server = subprocess.Popen([sys.executable, str(tmp_path / "server.py")], env=environ)
    page = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: is_ready(page), "the page's server")
        yield page
    finally:
        server.kill()
        server.wait()


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


@needs_browser
def test_the_page_shows_the_whole_streamed_text(page: str, tmp_path: Path) -> None:
    shown = document(page, tmp_path, page_ms=5_000)
    assert '<p id="state">succeeded</p>' in shown
    story = re.search(r'<pre id="story">(.*?)</pre>', shown, re.DOTALL)
    assert story is not None
    assert len(story[1].split()) == 100


def test_the_server_returns_an_event_url_that_needs_no_key(page: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(f"{page}/ask", method="POST"), timeout=20) as response:
        signed = re.search(r'"events": "([^"]+)"', response.read().decode())
    assert signed is not None
    with urllib.request.urlopen(signed[1], timeout=20) as events:
        assert "event: ended" in events.read().decode()

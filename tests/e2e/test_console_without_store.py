"""A door, and the console in a browser, while the store is stopped, asks for another password, and comes back."""

from pathlib import Path
from typing import Any

from tests.support.browser import needs_browser
from tests.support.chromium import Page
from tests.support.painted import wait_for
from tests.support.served import Served
from tests.support.store_servers import StoreServer

BROWSER = {"Accept": "text/html,application/xhtml+xml"}


def not_ready(door: Served) -> Any:
    answer = door.http.get("/health/ready")
    return answer.status_code == 503 and answer.json()


def test_a_door_says_why_while_its_store_is_stopped_or_asks_for_a_password(server, door):
    server.process.kill()
    said = wait_for(lambda: (body := not_ready(door)) and body.get("store_fault") == "unreachable" and body, "a reason")
    assert (said["status"], said["reason"]) == ("yield", "store_unavailable")
    assert said["error"]["message"].startswith("the store cannot be reached; retry in")
    page = door.http.get("/console", headers=BROWSER)
    assert (page.status_code, page.headers["content-type"]) == (503, "text/html; charset=utf-8")
    server.start()
    server.client.config_set("requirepass", "secret")
    # The door's connections were made before, and a server asks only new ones for a password.
    server.client.client_kill_filter(_type="normal", skipme=True)
    wait_for(lambda: (body := not_ready(door)) and body.get("store_fault") == "password_missing", "the password")
    page = door.http.get("/console", headers=BROWSER)
    assert "requires a password" in page.text
    assert "secret" not in page.text
    server.client.config_set("requirepass", "")
    # Without a worker, the door is not ready for a reason that is not the store's.
    wait_for(lambda: (body := not_ready(door)) and body["reason"] == "no_worker", "the store to serve again")


@needs_browser
def test_a_browser_is_told_why_on_each_screen_and_sees_the_console_when_the_store_is_back(
    server: StoreServer, door: Served, page: Page, tmp_path: Path
) -> None:
    page.open(f"{door.url}/console")
    page.wait_for_text("#panel-state", "No worker")
    server.process.kill()
    page.wait_for_text("#panel-state", "The store cannot be reached")
    backgrounds = set()
    for width, dark in ((1_280, False), (390, True)):
        page.look(width, dark=dark)
        page.open(f"{door.url}/console")
        page.wait_for_text("#why", "The store cannot be reached")
        assert "Check that the store runs" in page.text("#why")
        assert page.width_needed() == width
        backgrounds.add(page.run("getComputedStyle(document.body).backgroundColor"))
        page.picture(tmp_path / f"{width}.png")
    assert len(backgrounds) == 2
    server.start()
    page.wait_for_text("#panel-state", "No worker")

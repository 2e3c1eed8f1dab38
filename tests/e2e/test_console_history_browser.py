"""The console's page of the history in a real browser: with 500 tenants, on each screen, and without the store."""

from typing import Any

import pytest

from shared.history.points import RINGS
from shared.history.stored import StoredHistory
from shared.store import keys
from tests.support.browser import needs_browser
from tests.support.chromium import Page
from tests.support.painted import assert_painted, wait_for
from tests.support.served import Served
from tests.support.store_servers import StoreServer

pytestmark = needs_browser

SCREENS = [(1_280, False), (1_280, True), (390, False), (390, True)]


@pytest.fixture(scope="module")
def hour(door: Served, server: StoreServer) -> Served:
    """A door whose store has a whole hour of 500 tenants."""
    fill(server)
    return door


def fill(server: StoreServer) -> None:
    """Write a point of 500 tenants, and put it into the places of all points of the last hour."""
    history = StoredHistory(server.client)
    wait_for(lambda: bool(history.read(10, history.now_ms() - 60_000, history.now_ms())), "the first point of a duty")
    with server.client.pipeline() as pipe:
        for number in range(500):
            counts = {"admitted": 9, "succeeded": 5, "completion": 100 + number, "prompt": 300, "cost_micro": 700_000}
            for what, by in (counts | {"first.40": 4, "first.50": 1, "refused.tenant_queue_full": number % 7}).items():
                pipe.hincrby(keys.history_now(), f"{what}|t{number:03}|sim", by)
        pipe.expire(keys.history_now(), 3_600)
        pipe.execute()
    wait_for(lambda: any(point.tenants for point in newest(history)), "the point of a duty")
    text = next(point for point in newest(history) if point.tenants)
    length_s, points = RINGS[0]
    field = f"{length_s}:{text.start_ms // 10_000 % points}"
    _, _, lines = (server.client.hget(keys.history(), field) or b"").partition(b"\n")
    last = history.now_ms() // 10_000 - 3
    for start in range(last - 350, last):
        header = f"{start}0000 {start}0000 {start + 1}0000 1\n".encode()
        server.client.hset(keys.history(), f"{length_s}:{start % points}", header + lines)


def newest(history: StoredHistory) -> list[Any]:
    now_ms = history.now_ms()
    return history.read(10, now_ms - 120_000, now_ms)


def test_an_hour_of_500_tenants_is_painted_soon_and_costs_the_store_little(
    page: Page, hour: Served, server: StoreServer
) -> None:
    assert_painted(page, f"{hour.url}/console/history", server.client, SCREENS)
    assert wait_for(lambda: page.run("document.querySelectorAll('#history canvas').length"), "the charts") == 5


def test_a_click_on_a_chart_leads_to_a_link_that_shows_what_happened_then(page: Page, hour: Served) -> None:
    page.open(f"{hour.url}/console/history")
    wait_for(lambda: page.run("document.querySelectorAll('#history canvas').length") == 5, "the charts")
    page.run("document.querySelector('#past-refused').scrollIntoView({block: 'center'})")
    page.click("#past-refused .u-over")
    wait_for(lambda: "at=" in page.run("location.href"), "the page of that time")
    page.wait_for_text("main", "At this time")
    page.wait_for_text("#total", "tenant_queue_full")
    page.open(page.run("document.querySelector('table[aria-label=Tenant] a').href"))
    page.wait_for_text("h1", "of tenant t")
    assert "at=" in page.run("location.href")


def test_without_the_store_an_open_page_stays_and_the_next_one_comes_back_with_it(
    page: Page, hour: Served, server: StoreServer
) -> None:
    page.open(f"{hour.url}/console/history")
    page.wait_for_text("#total", "Admitted")
    server.process.kill()
    page.click("button.strong")
    page.wait_for_text("body", "store")
    wait_for(lambda: not page.run("document.querySelector('#total') !== null"), "the page without the store")
    server.start()
    page.wait_for_text("#total", "Admitted")

"""The console's pages in a real browser: with 500 tenants, on each screen, with a dead worker, without the store."""

from datetime import UTC, datetime, timedelta

import pytest

from shared.accounts.api_keys import ApiKeys
from shared.accounts.groups import Groups
from shared.accounts.key_record import digest_of
from shared.accounts.routes import Pools
from shared.jobs.group_policy import GroupPolicy
from shared.store import keys
from tests.support.browser import needs_browser
from tests.support.chromium import Page
from tests.support.console import add_tenants
from tests.support.painted import assert_painted, wait_for
from tests.support.served import Served
from tests.support.store_servers import StoreServer

pytestmark = needs_browser

SCREENS = [(1_280, False), (390, True)]
#: The pages of this file. The first paint of each was 140 to 470 ms on two busy cores.
PATHS = [
    *("/console/tenants", "/console/tenants/t000", "/console/model?name=sim", "/console/usage", "/console/audit"),
    *("/console/groups", "/console/routes", "/console/playground"),
]


@pytest.fixture(scope="module")
def busy(door: Served, server: StoreServer) -> Served:
    """A door with a worker and 500 tenants with usage."""
    door.stage.worker(wait=False)
    add_tenants(server.client, 500)
    Pools(server.client).change("sim", {"answer_price_micro": 1_000_000})
    today = datetime.now(UTC).date()
    for ago in range(1, 30):
        used = {f"t{number:03}||sim": "9 1 0 0 1000 100 2000 2000000" for number in range(500)}
        day = keys.usage((today - timedelta(days=ago)).isoformat())
        server.client.hset(day, mapping=used)  # type: ignore[arg-type]
        server.client.expire(day, 86_400)
    wait_for(lambda: door.http.get("/health/ready").status_code == 200, "a live worker")
    return door


@pytest.mark.parametrize("path", PATHS)
def test_a_page_with_500_tenants_is_painted_soon_and_costs_the_store_little(
    page: Page, busy: Served, server: StoreServer, path: str
) -> None:
    assert_painted(page, busy.url + path, server.client, SCREENS)


def test_from_the_board_a_tenant_and_a_model_are_one_click_away_and_change_by_themselves(
    page: Page, busy: Served
) -> None:
    page.open(f"{busy.url}/console")
    busy.submit("t007", max_tokens=1)
    page.wait_for_text("#panel-tenants", "t007")
    page.open(page.run("[...document.querySelectorAll('#panel-tenants a')].find(a => a.innerText === 't007').href"))
    page.wait_for_text("#panel-state", "live worker")
    busy.submit("t007", max_tokens=2_000)
    page.wait_for_text("#panel-running td[data-label=Model]", "sim")
    page.open(page.run("document.querySelector('#panel-running td[data-label=Model] a').href"))
    page.wait_for_text("#panel-figures", "Jobs of this model are claimed")
    page.wait_for_text("#panel-figures", "t007")


def test_a_tenant_is_found_among_500_by_keyboard(page: Page, busy: Served) -> None:
    page.look(390)
    page.open(f"{busy.url}/console/tenants")
    page.write("#q", "t33")
    page.wait_for_text("#list", "10 of 500 tenants")
    for _ in range(4):
        page.press("Tab", 9)
        if page.run("document.activeElement.innerText") == "t330":
            break
    page.press("Enter", 13, "\r")
    page.wait_for_text("h1", "Tenant t330")


def test_an_operator_raises_a_bound_makes_a_key_and_sees_the_cost(
    page: Page, busy: Served, server: StoreServer
) -> None:
    page.open(f"{busy.url}/console/tenants/t042")
    page.wait_for_text("#panel-state", "live worker")
    page.write("input[name=max_waiting]", "many")
    page.ask("#change-policy")
    page.click("#yes")
    page.wait_for_text("#notice", "max_waiting='many' is neither a whole number nor `default`")
    assert page.run("[document.activeElement.name, document.activeElement.ariaInvalid]") == ["max_waiting", "true"]
    page.complaints.clear()  # the browser itself reports each answer that is an error
    page.write("input[name=max_waiting]", "77")
    page.ask("#change-policy")
    assert "Waiting jobs: default → 77" in page.text("#question")
    page.click("#yes")
    page.wait_for_text("#notice", "max_waiting=77")
    page.wait_for_text("#panel-figures", "of 77")
    wait_for(lambda: page.run("document.activeElement.id") == "change-policy", "the focus on the button")
    page.write("#key-form input[name=label]", "laptop")
    page.run("document.getElementById('make-key').focus()")
    page.press("Enter", 13, "\r")
    wait_for(lambda: page.run("document.getElementById('confirm').open"), "the question")
    page.click("#yes")
    page.wait_for_text("#keys", "cannot be shown again")
    key = page.text("#new-key")
    assert ApiKeys(server.client).find(digest_of(key)) is not None
    assert page.run("document.activeElement.id") == "copy-key"
    # The cost is 2 on each of 29 days.
    assert "58" in page.text("[aria-label='Usage by day'] tbody tr")
    page.open(f"{busy.url}/console/tenants/t042")
    assert key not in page.run("document.documentElement.outerHTML")
    page.ask("#keys td.act button:last-child")
    page.click("#yes")
    page.wait_for_text("#keys", "This tenant has no key")
    assert ApiKeys(server.client).find(digest_of(key)) is None


def test_an_operator_makes_a_group_and_adds_a_route(page: Page, busy: Served, server: StoreServer) -> None:
    page.look(390)
    page.open(f"{busy.url}/console/groups")
    page.write("input[name=group]", "lab")
    page.ask("#make-group")
    page.click("#yes")
    page.wait_for_text("#groups", "lab")
    page.open(f"{busy.url}/console/groups/lab")
    page.write("input[name=weight]", "3")
    page.ask("#change-policy")
    page.click("#yes")
    page.wait_for_text("#notice", "Group lab: weight=3.0")
    assert page.width_needed() == 390
    page.open(f"{busy.url}/console/routes")
    page.write("input[name=route]", "auto")
    page.write("textarea[name=pools]", "sim,max_prompt=100\nlarge")
    page.ask("#add-route")
    page.click("#yes")
    page.wait_for_text("#routes", "large")
    assert page.width_needed() == 390
    page.ask("#routes td.act button")
    page.click("#yes")
    page.wait_for_text("#routes", "There is no route")
    assert Groups(server.client).list()[0].policy == GroupPolicy(weight=3.0)


def test_a_model_whose_only_worker_is_killed_is_amber_on_its_page_with_the_reason(page: Page, busy: Served) -> None:
    doomed = busy.stage.worker(wait=False, PENSTOCK_MODEL_NAME="doomed")
    page.look(390, dark=True)
    wait_for(lambda: "doomed" in busy.http.get("/v1/models").text, "the model's worker")
    page.open(f"{busy.url}/console/model?name=doomed")
    page.wait_for_text("#panel-figures", "Jobs of this model are claimed")
    doomed.kill()
    page.wait_for_text("#panel-figures", "No worker is live")
    page.wait_for_text("#panel-state", "doomed: no worker is live")
    assert page.run("document.querySelector('#panel-figures .mark').className") == "mark warn"
    assert page.width_needed() == 390


def test_pages_say_why_while_the_store_is_away_and_show_their_figures_when_it_is_back(
    page: Page, busy: Served, server: StoreServer
) -> None:
    page.open(f"{busy.url}/console/tenants/t001")
    page.wait_for_text("#panel-state", "live worker")
    server.process.kill()
    page.wait_for_text("#panel-state", "The store cannot be reached")
    assert "Waiting" in page.text("#panel-figures")
    for path in PATHS[::-1]:
        page.open(busy.url + path)
        page.wait_for_text("#why", "The store cannot be reached")
    server.start()
    page.wait_for_text("#list", "of 500 tenants")
    page.open(f"{busy.url}/console/tenants/t001")
    page.wait_for_text("#panel-state", "live worker")


def test_the_colours_are_chosen_and_kept_and_a_table_is_sorted_with_the_keyboard(page: Page, busy: Served) -> None:
    page.look(1280)
    page.open(f"{busy.url}/console/tenants")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.run(background)
    page.click("#colours")
    dark = page.run(background)
    assert dark != light
    page.open(f"{busy.url}/console/usage?by=day")
    assert page.run(background) == dark
    assert page.text("#colours") == "Light"
    page.click("#colours")
    assert page.run(background) == light
    assert page.run("localStorage.length") == 0
    column = "[...document.querySelectorAll('tbody tr')].map((row) => row.children[0].textContent)"
    days = page.run(column)
    assert days[0] == "all"
    for order in (sorted(days[1:]), sorted(days[1:], reverse=True)):
        page.run("document.querySelector('thead th button').focus()")
        page.press("Enter", 13, "\r")
        wait_for(lambda order=order: page.run(column) == ["all", *order], "the sorted days")
    assert page.run("document.querySelector('thead th').getAttribute('aria-sort')") == "descending"

"""The console and `/` in a real browser: live without a reload, on each screen and scheme, by mouse and by keyboard."""

from collections.abc import Iterator

import pytest

from shared.accounts.admin_actions import list_actions
from shared.accounts.admin_keys import AdminKeys
from shared.accounts.workers import Workers
from shared.store import keys
from tests.support.browser import needs_browser
from tests.support.builders import a_heartbeat
from tests.support.chromium import Browser, Page
from tests.support.forwarder import Forwarder
from tests.support.painted import wait_for
from tests.support.served import Served, sim_served

pytestmark = needs_browser

SCREENS = [(1_280, False), (1_280, True), (390, False), (390, True)]
NAMES = ["light", "dark", "phone", "phone, dark"]


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    # Two door processes: the buttons of a page of one must work at the other.
    folder = tmp_path_factory.mktemp("console")
    with sim_served(folder, PENSTOCK_SIM_DECODE_TPS="20", PENSTOCK_WEB_WORKERS="2") as served:
        yield served
        served.stage.assert_sound()


@pytest.fixture
def page(browser: Browser, door: Served) -> Iterator[Page]:
    """A tab that must complain about nothing and ask no other host for anything."""
    page = browser.page()
    page.look(1_280)
    yield page
    page.call("Page.close")
    Workers(door.stage.client).resume_all()
    for raw in door.stage.client.zrange(keys.inflight(), 0, -1):
        door.stage.store.cancel(raw.decode())
    wait_for(lambda: door.stage.inflight() == 0, "the end of all jobs")
    assert page.complaints == []
    assert page.hosts <= {f"127.0.0.1:{door.port}"}


def test_new_jobs_are_seen_without_a_reload(page, door):
    page.open(f"{door.url}/console")
    page.wait_for_text("#panel-state", "Serving")
    page.run("window.wasLoadedOnce = true")
    door.submit("newcomer", max_tokens=400)
    page.wait_for_text("#panel-tenants", "newcomer")
    page.wait_for_text("#panel-running", "newcomer")
    wait_for(lambda: page.run("document.querySelectorAll('canvas').length") == 2, "the charts")
    assert page.run("window.wasLoadedOnce") is True


def test_a_model_without_workers_is_amber_with_its_name_and_the_reason_and_the_state_is_too(page, door):
    door.stage.store.renew(a_heartbeat("w-lost", model="lost"), [])
    page.look(390)
    try:
        page.open(f"{door.url}/console")
        page.wait_for_text("#panel-models", "no worker is live")
        page.wait_for_text("#panel-state", "lost: no worker is live")
        marks = (
            "[...document.querySelectorAll('#panel-models tbody tr')].map(row => row.querySelector('.mark').className)"
        )
        assert page.run(marks)[:2] == ["mark warn", "mark good"]
        assert page.run("document.querySelector('#panel-state .mark').className") == "mark warn"
        assert page.width_needed() == 390
    finally:
        door.stage.store.farewell("w-lost", "lost")
        door.stage.client.zrem(keys.models(), "lost")


@pytest.mark.parametrize(("width", "dark"), SCREENS, ids=NAMES)
@pytest.mark.parametrize("path", ["/console", "/"])
def test_each_page_fits_its_screen(page, door, width, dark, path):
    for tenant in ("blue", "a-tenant-with-a-name-that-is-as-long-as-a-name-may-be-64-letters"[:64]):
        door.submit(tenant, max_tokens=200)
    page.look(width, dark=dark)
    page.open(door.url + path)
    if path == "/console":
        page.wait_for_text("#panel-tenants", "a-tenant")
        page.wait_for_text("#panel-running", "blue")
    assert page.width_needed() == width
    background = page.run("getComputedStyle(document.body).backgroundColor")
    if path == "/console":
        assert (background == "rgb(15, 19, 24)") is dark


def test_a_worker_is_drained_after_a_confirmation_and_resumed_by_the_keyboard(page, door):
    workers = Workers(door.stage.client)
    (worker,) = workers.names()
    page.open(f"{door.url}/console")
    page.wait_for_text("#panel-workers", "serving")
    page.ask("#panel-workers button")
    assert worker in page.text("#question")
    page.click("#confirm button[value=no]")
    assert not workers.is_marked(worker)
    page.ask("#panel-workers button")
    page.click("#yes")
    page.wait_for_text("#notice", "claims no more jobs")
    page.wait_for_text("#panel-workers", "draining")
    assert workers.is_marked(worker)
    page.wait_for_text("#panel-workers button", "Resume")
    page.run("document.querySelector('#panel-workers button').focus()")
    page.press("Enter", 13, "\r")
    wait_for(lambda: page.run("document.getElementById('confirm').open"), "the question")
    for _ in range(4):
        if page.run("document.activeElement.id") == "yes":
            break
        page.press("Tab", 9)
    page.press("Enter", 13, "\r")
    page.wait_for_text("#notice", "claims jobs again")
    page.wait_for_text("#panel-workers", "serving")


def test_a_question_is_answered_although_the_one_before_was_left_at_the_same_moment(page, door):
    page.open(f"{door.url}/console")
    page.wait_for_text("#panel-workers", "serving")
    # The dialog tells of its end later than it ends, so the second question is open when it does.
    page.run(
        "(() => { const button = document.querySelector('#panel-workers button');"
        " button.click(); document.getElementById('confirm').close('no'); button.click(); })()"
    )
    page.wait_for_text("#question", "Drain worker")
    page.click("#yes")
    page.wait_for_text("#notice", "claims no more jobs")
    page.wait_for_text("#panel-workers button", "Resume")
    page.ask("#panel-workers button")
    page.click("#yes")
    page.wait_for_text("#notice", "claims jobs again")
    page.wait_for_text("#panel-workers", "serving")


def test_an_error_is_said_although_the_button_that_asked_was_replaced_meanwhile(page, door):
    page.open(f"{door.url}/console")
    page.wait_for_text("#panel-workers", "serving")
    page.run(
        "(() => { const button = document.querySelector('#panel-workers button');"
        " button.setAttribute('hx-vals', JSON.stringify({worker: 'nobody'})); button.click();"
        " document.getElementById('yes').click(); document.getElementById('panel-workers').replaceChildren(); })()"
    )
    page.wait_for_text("#notice", "That did not work")
    page.complaints.clear()  # the browser itself reports each answer that is an error


def test_the_focus_stays_on_a_button_while_its_panel_changes(page, door):
    page.open(f"{door.url}/console")
    page.wait_for_text("#panel-workers", "serving")
    button = page.run(
        "(() => { const b = document.querySelector('#panel-workers button'); b.focus(); return b.id; })()"
    )
    page.run("window.before = document.querySelector('#panel-workers table')")
    door.submit("blue", max_tokens=100)
    wait_for(lambda: page.run("document.querySelector('#panel-workers table') !== window.before"), "another panel")
    assert page.run("document.activeElement.id") == button


def test_paused_updates_wait_and_the_newest_is_shown_afterwards(page, door):
    page.open(f"{door.url}/console")
    page.wait_for_text("#panel-state", "Serving")
    page.click("#hold")
    door.submit("patient", max_tokens=400)
    # The stream continues: its points arrive, and no panel changes.
    page.run("htmx.on('htmx:sseBeforeMessage', (e) => { window.held = (window.held ?? '') + e.detail.data; })")
    wait_for(lambda: "patient" in str(page.run("window.held")), "a panel that is held back")
    assert "patient" not in page.text("#panel-running")
    page.click("#hold")
    page.wait_for_text("#panel-running", "patient")


def test_a_tenant_is_found_while_updates_are_paused(page, door):
    page.open(f"{door.url}/console")
    page.wait_for_text("#panel-state", "Serving")
    page.click("#hold")
    page.write("#q", "none-has-this-name")
    page.wait_for_text("#found", "No tenant's name contains")


def test_while_a_search_is_shown_no_other_tenants_are(page, door):
    door.submit("elsewhere", max_tokens=1)
    page.open(f"{door.url}/console")
    page.wait_for_text("#panel-tenants", "elsewhere")
    is_shown = "document.getElementById('panel-tenants').checkVisibility()"
    page.write("#q", "none-has-this-name")
    page.wait_for_text("#found", "No tenant's name contains “none-has-this-name”.")
    assert not page.run(is_shown)
    page.write("#q", "")
    page.call("Input.dispatchKeyEvent", type="rawKeyDown", key="Backspace", windowsVirtualKeyCode=8)
    wait_for(lambda: page.run(is_shown), "all tenants")


def test_a_stream_that_ends_and_begins_again_is_no_lost_connection_and_a_door_that_is_gone_is(browser, tmp_path):
    with sim_served(tmp_path, PENSTOCK_WEB_WORKERS="1") as served, Forwarder(served.port) as between:
        page = browser.page()
        page.open(f"http://127.0.0.1:{between.port}/console")
        page.wait_for_text("#panel-state", "Serving")
        page.run(
            "window.states = ''; window.cut = window.opened = 0;"
            "htmx.on('htmx:sseError', () => { window.cut ||= performance.now(); });"
            "htmx.on('htmx:sseOpen', () => { window.opened ||= performance.now(); });"
            "new MutationObserver(() => { window.states += document.getElementById('panel-state').innerText; })"
            ".observe(document.getElementById('panel-state'), { childList: true, subtree: true })"
        )
        between.drop_connections()
        wait_for(lambda: page.run("window.opened"), "the next stream", timeout_s=60)
        served.submit("newcomer", max_tokens=400)
        page.wait_for_text("#panel-running", "newcomer")
        # A slow machine may need longer than the page waits before it says that the connection is lost.
        assert "lost" not in page.run("window.states") or page.run("window.opened - window.cut") > 5_000
        between.close()
        page.wait_for_text("#panel-state", "The connection to the door is lost")
        page.call("Page.close")


def test_a_tenant_is_found_by_its_name_and_disabled(page, door):
    door.submit("findme", max_tokens=1)
    page.open(f"{door.url}/console")
    page.write("#q", "FIND")
    # The names of all tenants may be 15 seconds old.
    wait_for(
        lambda: page.run("htmx.trigger('form.find', 'submit'), true") and "findme" in page.text("#found"),
        "the tenant",
    )
    page.ask("#found button")
    page.click("#yes")
    page.wait_for_text("#notice", "Tenant findme is disabled")
    assert door.submit("findme").status_code == 403


def test_an_operator_signs_in_once_with_the_admin_key(browser, tmp_path):
    with sim_served(tmp_path, auth="required") as guarded:
        key, _ = AdminKeys(guarded.stage.client).create("ada")
        page = browser.page()
        page.sign_in(key)
        page.open(f"{guarded.url}/console")
        page.wait_for_text("#panel-state", "Serving")
        page.wait_for_text("#panel-workers", "serving")
        page.ask("#panel-workers button")
        page.click("#yes")
        page.wait_for_text("#panel-workers", "draining")
        newest = next(list_actions(guarded.stage.client, limit=1))
        assert (newest.who, newest.what) == ("ada", "worker.drain")
        assert page.questions == 1
        assert key not in page.run("document.documentElement.outerHTML + location.href")
        page.call("Page.close")
        assert [one for one in page.complaints if "401" not in one] == []

"""The console when something is wrong: the store is away, a value is spoiled, or its own code fails."""

import pytest
import structlog

from shared.accounts.groups import Groups
from shared.accounts.tenants import Tenants
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.outcomes import Outcome
from shared.jobs.tenant_policy import TenantPolicy
from shared.log import LimitedEvent
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import a_job, admitted, an_ending, claim_one, heartbeat
from tests.support.console import Viewer, add_tenants, press
from tests.support.door import a_door, door_store, fault, refused
from tests.support.lossy import LossyProxy
from web.console import console as console_pages
from web.console import feed as console_feed
from web.console import groups, routes, tenant_changes


def test_while_the_store_does_not_answer_the_stream_says_so(settings, tmp_path):
    visitor = a_door(door_store(f"unix://{tmp_path}/none.sock"), settings)
    viewer = Viewer(visitor)
    said = viewer.read_until("Store away</span> The store cannot be reached")
    assert "The figures below are the last ones" in said
    viewer.close()


@pytest.mark.parametrize("path", ["/console", "/console/jobs/any", "/console/collections", "/rq/"])
def test_without_the_store_a_browser_gets_a_page_that_says_why(settings, tmp_path, path):
    visitor = a_door(door_store(f"unix://{tmp_path}/none.sock"), settings, dashboard="read")
    answer = visitor.get(path, headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (answer.status_code, answer.mimetype) == (503, "text/html")
    assert "The store cannot be reached." in answer.text
    assert "Check that the store runs" in answer.text
    assert "Retry-After" in answer.headers
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    # Neither the scripts of a page nor other programs are given a page.
    for headers in ({}, {"Accept": "*/*"}, {"Accept": "text/html, */*", "HX-Request": "true"}):
        assert refused(visitor.get(path, headers=headers), "store_unavailable")["store_fault"] == "unreachable"


def test_the_page_of_a_job_says_why_its_figures_stop(store, store_url, settings, tmp_path):
    heartbeat(store)
    job_id = admitted(store, a_job())
    with LossyProxy(tmp_path, store_url) as proxy:
        visitor = a_door(door_store(proxy.url), settings)
        viewer = Viewer(visitor, f"/console/jobs/{job_id}/live")
        viewer.read_until("event: facts")
    # The connection to the store is cut from here on.
    assert "The figures below are the last ones" in viewer.read_until("Store away</span> The store cannot be reached")
    viewer.close()


def test_an_error_of_the_console_itself_is_not_shown_as_one_of_the_store(store, look, monkeypatch):
    def wrong(*_: object) -> None:
        raise KeyError("a mistake")

    heartbeat(store)
    monkeypatch.setattr(console_feed, "make_board", wrong)
    monkeypatch.setattr(console_feed, "_FAILED", LimitedEvent("console.failed"))
    with structlog.testing.capture_logs() as lines:
        read = look().read_until("</span>")
    assert "Console error" in read
    assert "Store away" not in read
    assert "console.failed" in [line["event"] for line in lines]


def test_a_browser_gets_a_page_if_the_door_fails_to_show_one_of_the_console(store, settings, monkeypatch):
    def wrong() -> None:
        raise KeyError("a <mistake>")

    monkeypatch.setattr(console_pages, "current_feed", wrong)
    visitor = a_door(store, settings)
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8", "x-request-id": "<b>mine"}
    with structlog.testing.capture_logs() as lines:
        answer = visitor.get("/console", headers=browser)
    assert (answer.status_code, answer.mimetype) == (500, "text/html")
    assert "The door failed to show this page." in answer.text
    assert answer.headers["x-request-id"] in answer.text.replace("&lt;", "<").replace("&gt;", ">")
    assert "mistake" not in answer.text
    assert "<b>mine" not in answer.text
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["http.fault"]
    # Neither the scripts of a page nor other programs are given a page.
    for headers in ({}, {"Accept": "*/*"}, {"Accept": "text/html, */*", "HX-Request": "true"}):
        assert "its log contains the reason" in fault(visitor.get("/console", headers=headers), 500, "internal_error")


def fail_one(store: Store, tenant: str = "blue") -> str:
    """Let a job of the tenant fail, and return its id."""
    admitted(store, a_job(tenant))
    claimed = claim_one(store)
    store.settle(an_ending(claimed.held, Outcome.FAILED, code="engine_error"), "w1")
    return claimed.id


def test_a_spoiled_list_or_record_of_failed_jobs_hides_only_itself(store, look, redis_client):
    heartbeat(store)
    viewer = look()
    viewer.read_until("event: point")
    failed = keys.rq_failed("blue.m")
    redis_client.zadd(failed, {"spoiled": 1e15, "": 1e16})
    redis_client.set(keys.rq_job("spoiled"), "no hash")
    job_id = fail_one(store)
    assert "1 live worker" in viewer.read_until(f'href="/console/jobs/{job_id}"')
    redis_client.delete(keys.rq_job("spoiled"))
    redis_client.zrem(failed, "spoiled", "")


def test_a_list_of_failed_jobs_that_cannot_be_read_hides_only_itself(store, look, redis_client):
    heartbeat(store)
    hidden, shown = fail_one(store), fail_one(store, "red")
    failed = keys.rq_failed("blue.m")
    redis_client.rename(failed, "aside")
    redis_client.set(failed, "no set")
    # The first pass of a reader reads the list of each tenant with a failed job.
    read = look().read_until("event: point")
    assert ">Serving<" in read
    assert f'href="/console/jobs/{shown}"' in read
    assert hidden not in read
    redis_client.rename("aside", failed)


def test_a_spoiled_record_of_a_tenant_hides_only_itself(visitor, store, look, redis_client):
    heartbeat(store)
    Groups(redis_client).set("lab", GroupPolicy())
    Tenants(redis_client).set("blue", TenantPolicy(group="lab", disabled=True))
    admitted(store, a_job("blue"))
    # A snapshot mends the records of the 64 tenants that were admitted last. This one is not among them.
    add_tenants(redis_client, 64)
    redis_client.set(keys.tenant("green"), "no hash")
    redis_client.zadd(keys.tenants(), {"green": -1})
    read = look().read_until("event: point")
    assert ">disabled<" in read
    assert ">lab<" in read
    for path in ("/console/find-tenants?q=e", "/console/tenants?q=e"):
        found = visitor.get(path)
        assert found.status_code == 200
        assert ">green<" in found.text
        assert ">blue</a> <span" in found.text
    assert ">disabled<" in found.text
    redis_client.delete(keys.tenant("green"))
    redis_client.zrem(keys.tenants(), "green")


@pytest.mark.parametrize(
    ("button", "fields", "said"),
    [
        ("tenants/blue/policy", {"weight": "2"}, "Tenant blue: weight=2.0"),
        ("tenants/blue/keys", {"label": "laptop"}, "psk_"),
        ("groups", {"group": "new"}, "Group new is created"),
        ("groups/lab/policy", {"weight": "2"}, "Group lab: weight=2.0"),
        ("groups/remove", {"group": "lab"}, "Group lab is removed"),
        ("routes", {"route": "fast", "pools": "m"}, "Route fast is added"),
    ],
)
def test_a_change_is_not_reported_as_an_error_if_the_store_is_away_right_after_it(
    store, store_url, redis_client, settings, tmp_path, monkeypatch, button, fields, said
):
    Groups(redis_client).set("lab", GroupPolicy())
    with LossyProxy(tmp_path, store_url) as proxy:
        visitor = a_door(door_store(proxy.url), settings)

        def cut(*_: object) -> None:
            proxy.__exit__()

        for module in (groups, routes, tenant_changes):
            monkeypatch.setattr(module, "log_action", cut)
        answer = press(visitor, button, **fields)
    assert (answer.status_code, said in answer.text) == (200, True)
    assert "could not be read" in answer.text

"""The console over HTTP: what its panels and a job's page show, and what it costs however many look at it."""

import re
import threading
from typing import Any

from shared.accounts.groups import Groups
from shared.accounts.tenants import Tenants
from shared.accounts.workers import Workers
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.outcomes import Outcome, Refused
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import a_job, admitted, an_ending, claim_one, heartbeat
from tests.support.console import ATTACK, add_tenants, feed_of
from tests.support.processes import wait_for
from web.console import feed as console_feed
from web.console import reads
from web.console.feed import MAX_VIEWERS
from web.console.panels import UNKNOWN


def test_the_stream_shows_tenants_groups_workers_and_running_jobs(store, look, redis_client):
    Groups(redis_client).set("lab", GroupPolicy(weight=2.0))
    Tenants(redis_client).set("blue", TenantPolicy(group="lab"))
    heartbeat(store)
    waiting = [admitted(store, a_job("blue")) for _ in range(2)]
    running = claim_one(store)
    read = look().read_until("event: point")
    assert running.id in {*waiting}
    for text in (f'href="/console/jobs/{running.id}"', ">blue</a> <", ">lab<", ">w1<", "1 live worker with 4 slots"):
        assert text in read
    assert '"waiting":1,"running":1' in read


def test_refusals_and_failures_are_shown_with_why(store, look, redis_client):
    heartbeat(store)
    viewer = look()
    viewer.read_until("event: point")
    admitted(store, a_job("blue"))
    claimed = claim_one(store)
    store.settle(an_ending(claimed.held, Outcome.FAILED, code="engine_error", message="out of cells"), "w1")
    workers = Workers(redis_client)
    workers.drain_all()
    assert isinstance(store.admit(a_job("red")), Refused)
    workers.resume_all()
    read = viewer.read_until("engine_error")
    assert f'href="/console/jobs/{claimed.id}"' in read
    assert "out of cells" in read
    assert re.search("<b>red</b> 1 . <code>draining</code>", viewer.read_until("<code>draining</code>"))


def test_hostile_names_models_and_messages_are_shown_as_text(visitor, store, look, redis_client):
    heartbeat(store, f"w{ATTACK}")
    tenant = "t" * 64
    admitted(store, a_job(tenant))
    claimed = claim_one(store, f"w{ATTACK}")
    redis_client.hset(
        keys.rq_job(claimed.id), mapping={"penstock_tenant": ATTACK, "penstock_model": f"{ATTACK}\r\n\r\nevent: x"}
    )
    read = look().read_until("event: point")
    job_page = visitor.get(f"/console/jobs/{claimed.id}").text
    found = visitor.get("/console/find-tenants", query_string={"q": ATTACK}).text
    assert ATTACK not in read + job_page + found
    assert "&lt;script&gt;" in read
    assert "event: x" not in read.splitlines()
    assert tenant in read
    redis_client.hset(keys.rq_job(claimed.id), mapping={"penstock_tenant": tenant, "penstock_model": "m"})


def test_of_a_thousand_tenants_twenty_are_sent_and_the_others_are_found_by_name(visitor, store, look, redis_client):
    add_tenants(redis_client, 1_000)
    heartbeat(store)
    admitted(store, a_job("t777"))
    first = look().read_until("event: point")
    assert first.count('id="disable-') == 20
    assert "980 more tenants" in first
    assert len(first) < 60_000
    found = visitor.get("/console/find-tenants?q=t77").text
    assert found.count('<th role="rowheader"') == 10
    assert 'data-label="Waiting" class="n">1<' in found
    assert "80 more names contain" in visitor.get("/console/find-tenants?q=t0").text.replace("“", "")
    assert "No tenant" in visitor.get("/console/find-tenants?q=none").text


def test_however_many_look_the_store_is_read_once_a_second(visitor, store, monkeypatch, look):
    heartbeat(store)
    reads: list[int] = []
    passes = threading.Event()
    original = Store.snapshot

    def counted(self: Store, **given: Any) -> Any:
        if self is store:
            reads.append(1)
        if len(reads) >= 3:
            passes.set()
        return original(self, **given)

    monkeypatch.setattr(Store, "snapshot", counted)
    monkeypatch.setattr(console_feed, "_PASS_S", 0.05)
    viewers = [look() for _ in range(MAX_VIEWERS)]
    assert feed_of(visitor).viewers == MAX_VIEWERS
    assert passes.wait(20)
    numbers = [viewer.read_until("event: point").count("event: point") for viewer in viewers]
    assert numbers == [1] * MAX_VIEWERS
    # Each viewer has waited for a pass, and none has caused a read of its own. One pass may be under way.
    made = len(reads)
    latest = feed_of(visitor).next_pass(0, timeout_s=20)
    assert latest is not None
    assert made <= latest.number + 1
    refused = visitor.get("/console/live")
    assert (refused.status_code, refused.get_json()["error"]["code"]) == (503, "console_full")
    viewers[0].close()
    look().read_until("event: point")


def test_the_reader_ends_when_nobody_has_looked_for_a_while(visitor, store, redis_client, look):
    heartbeat(store)
    viewer = look()
    viewer.read_until("event: point")
    viewer.close()
    wait_for(lambda: not feed_of(visitor).panels(), "the reader's end")
    assert feed_of(visitor).points() == []
    Workers(redis_client).drain_all()
    # The first figures of the next viewer are new ones.
    read = look().read_until("event: point")
    assert ">Draining<" in read
    assert ">Serving<" not in read
    Workers(redis_client).resume_all()


def test_of_more_running_jobs_than_are_read_the_page_says_what_it_does_not_know(store, look, monkeypatch):
    heartbeat(store)
    for _ in range(3):
        admitted(store, a_job("blue"))
        claim_one(store)
    monkeypatch.setattr(reads, "MAX_RUNNING", 3)
    exact = look().read_until("event: point")
    assert 'data-label="Paused" class="n">0<' in exact
    assert "leases end first" not in exact
    monkeypatch.setattr(reads, "MAX_RUNNING", 2)
    viewer = look()
    assert "the 2 whose leases end first; 1 more" in viewer.read_until("leases end first; ")
    viewer.read_until(f'data-label="Paused" class="n">{UNKNOWN}<')


def test_a_jobs_page_shows_its_timeline_and_neither_prompt_nor_answer(visitor, store, redis_client):
    heartbeat(store)
    job_id = admitted(store, a_job(payload={"prompt": "a secret question"}, poll_grace_ms=5_000))
    polled = redis_client.zscore(keys.polls(), job_id)
    claimed = claim_one(store)
    store.settle(an_ending(claimed.held, text="a secret answer"), "w1")
    page = visitor.get(f"/console/jobs/{job_id}").text
    for stage in ("admitted", "claimed", "prefill", "decode", "ended"):
        assert f">{stage}</th>" in page
    assert "secret" not in page
    assert polled is not None
    assert visitor.get("/console/jobs/none/live").status_code == 404


def test_an_operators_look_is_no_poll(visitor, store, redis_client, look):
    heartbeat(store)
    job_id = admitted(store, a_job(poll_grace_ms=5_000))
    due_ms = redis_client.zscore(keys.polls(), job_id)
    visitor.get(f"/console/jobs/{job_id}")
    look(f"/console/jobs/{job_id}/live").read_until("event: facts")
    assert redis_client.zscore(keys.polls(), job_id) == due_ms


def test_a_jobs_stream_follows_it_to_its_end(store, look):
    heartbeat(store)
    job_id = admitted(store, a_job())
    viewer = look(f"/console/jobs/{job_id}/live")
    viewer.read_until("event: facts")
    claimed = claim_one(store)
    store.settle(an_ending(claimed.held), "w1")
    read = viewer.read_until("event: end")
    assert "succeeded" in read


def test_an_unknown_job_is_a_page_of_the_console_with_a_link_back(visitor):
    answer = visitor.get("/console/jobs/%3Cb%3E")
    assert (answer.status_code, answer.mimetype) == (404, "text/html")
    assert "There is no job &#39;&lt;b&gt;&#39;." in answer.text
    assert '<a href="/console">' in answer.text

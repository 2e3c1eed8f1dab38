"""The console's pages of models and of tenants over HTTP: what they show, and that their streams follow the store."""

import json
from typing import Any

import pytest
import redis
from flask.testing import FlaskClient

from shared.accounts.api_keys import MAX_KEYS, ApiKeys
from shared.accounts.groups import Groups
from shared.accounts.routes import Pools, Routes
from shared.accounts.tenants import Tenants
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.key_bounds import KeyBounds
from shared.jobs.route import Route, RouteStep
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import a_job, admitted, an_ending, claim_one, heartbeat
from tests.support.console import ATTACK, Look, add_tenants, press
from tests.support.door import a_door, fault
from web.console import reads as reads_of_console


def test_the_page_of_a_model_shows_its_workers_jobs_price_and_routes(
    visitor: FlaskClient, store: Store, look: Look, redis_client: redis.Redis
) -> None:
    Pools(redis_client).change("org/m", {"prompt_price_micro": 150, "day_cap_micro": 5_000_000})
    Routes(redis_client).add(Route("fast", (RouteStep("other"), RouteStep("org/m"))))
    for _ in range(2):
        heartbeat(store, model="org/m")
        admitted(store, a_job(model="org/m"))
    read = look("/console/model/live?name=org%2Fm").read_until("event: figures")
    for text in ("Jobs of this model are claimed.", "0 <small>of 4", "<dt>Waiting</dt><dd>2<", ">w1<", 'id="drain-'):
        assert text in read
    page = visitor.get("/console/model?name=org/m").text
    for text in ("<dd>0.00015<", "<dd>5<", "fast</a> (2 of 2 pools)", "Jobs of this model are claimed."):
        assert text in page
    assert 'href="/console/model?name=org%2Fm"' in look().read_until("event: point")


def test_the_page_of_a_model_that_is_not_served_says_why_and_what_to_do(
    visitor: FlaskClient, store: Store, look: Look, redis_client: redis.Redis
) -> None:
    Routes(redis_client).add(Route("fast", (RouteStep("planned"),)))
    assert "no worker has served it" in look("/console/model/live?name=planned").read_until("event: figures").lower()
    heartbeat(store, draining=True)
    read = look("/console/model/live?name=m").read_until("All its live workers drain")
    assert 'id="resume-' in read
    heartbeat(store)
    assert "Jobs of this model are claimed." in look("/console/model/live?name=m").read_until("are claimed")
    store.farewell("w1", "m")
    look("/console/model/live?name=m").read_until("No worker is live; the last heartbeat was")


def test_the_page_of_a_tenant_shows_its_bounds_budgets_keys_and_usage(
    visitor: FlaskClient, store: Store, look: Look, redis_client: redis.Redis
) -> None:
    Groups(redis_client).set("lab", GroupPolicy(tokens_per_month=1_000))
    Tenants(redis_client).set("blue", TenantPolicy(weight=2.5, max_waiting=40, tokens_per_day=500, group="lab"))
    new = ApiKeys(redis_client).create("blue", label="laptop", bounds=KeyBounds(rpm=60))
    ApiKeys(redis_client).create("red", label="not-blues")
    Pools(redis_client).change("m", {"answer_price_micro": 1_000_000})
    heartbeat(store)
    admitted(store, a_job())
    store.settle(an_ending(claim_one(store).held), "w1")
    admitted(store, a_job())
    page = visitor.get("/console/tenants/blue").text
    for text in ("Weight 2.5", "<small>of 40<", "of 500 tokens", "Group lab, month", new.record.id, "laptop", "rpm 60"):
        assert text in page
    assert "all 30 days" in page
    assert 'data-label="Cost" class="n">0.02<' in page
    assert new.key not in page
    assert new.record.digest not in page
    assert "not-blues" not in page
    read = look("/console/tenants/blue/live").read_until("event: figures")
    assert "<dt>Waiting</dt><dd>1 <" in read
    claimed = claim_one(store)
    viewer = look("/console/tenants/blue/live")
    viewer.read_until(f'href="/console/jobs/{claimed.id}"')


def test_a_tenant_without_a_record_has_a_page_and_what_is_no_name_has_none(
    visitor: FlaskClient, redis_client: redis.Redis
) -> None:
    Tenants(redis_client).set("blue", TenantPolicy())
    page = visitor.get("/console/tenants/bleu")
    assert page.status_code == 200
    assert "did you mean &#39;blue&#39;?" in page.text
    for path in (f"/console/tenants/{'t' * 65}", "/console/tenants/a.b", "/console/model?name=none", "/console/model"):
        missing = visitor.get(path)
        assert (missing.status_code, missing.content_type) == (404, "text/html; charset=utf-8")
    hostile = visitor.get("/console/model", query_string={"name": ATTACK})
    assert (hostile.status_code, ATTACK in hostile.text) == (404, False)
    assert visitor.get("/console/tenants/a.b/live").status_code == 422


def test_the_page_of_a_tenant_shows_a_bounded_number_of_keys_and_says_how_many_there_are(
    visitor: FlaskClient, redis_client: redis.Redis
) -> None:
    record = {"tenant": "blue", "label": "old", "created_ms": 1, "expires_ms": None, "act_as": None}
    digests = [f"{i:064x}" for i in range(MAX_KEYS + 2)]
    redis_client.hset(keys.keys(), mapping=dict.fromkeys(digests, json.dumps(record)))
    api_keys = ApiKeys(redis_client)
    redis_client.hset(keys.keys(), "f" * 64, json.dumps(record | {"label": "newest", "created_ms": 2}))
    page = visitor.get("/console/tenants/blue").text
    assert page.count('data-label="Label"') == MAX_KEYS
    assert "newest" in page
    assert f"The newest {MAX_KEYS} of {MAX_KEYS + 3} keys" in page
    assert "penstock keys ls --tenant blue" in page
    full = fault(press(visitor, "tenants/blue/keys"), 422, "invalid_value", "tenant")
    assert f"tenant='blue' has {MAX_KEYS + 3} keys, and at most {MAX_KEYS} are possible" in full
    api_keys.rm("old", tenant="blue")
    assert "The newest" not in visitor.get("/console/tenants/blue").text
    api_keys.rm("newest", tenant="blue")


@pytest.mark.parametrize("record", ["no record", '{"tenant": "blue", "label": "", "created_ms": 1e999}'])
def test_spoiled_records_of_a_tenant_and_of_a_key_are_named_on_its_page(
    visitor: FlaskClient, redis_client: redis.Redis, record: str
) -> None:
    Tenants(redis_client).set("blue", TenantPolicy(rpm=5, tokens_per_day=500))
    redis_client.hset(keys.tenant("blue"), mapping={"policy_rpm": "many", "budget": f"2026-11-28 0 0 {'9' * 5_000}"})
    redis_client.zadd(keys.tenants(), {"red": float("inf")})
    redis_client.hset(keys.keys(), "0" * 64, record)
    assert visitor.get("/console/tenants").status_code == 200
    page = visitor.get("/console/tenants/blue")
    assert page.status_code == 200
    assert "policy_rpm=&#39;many&#39;" in page.text
    assert "the record of key 000000000000" in page.text
    redis_client.hdel(keys.keys(), "0" * 64)
    redis_client.hdel(keys.tenant("blue"), "budget")
    redis_client.zrem(keys.tenants(), "red")


def test_of_five_hundred_tenants_a_page_lists_fifty_and_a_name_or_a_group_finds_the_others(
    visitor: FlaskClient, store: Store, redis_client: redis.Redis
) -> None:
    add_tenants(redis_client, 500)
    Groups(redis_client).set("lab", GroupPolicy())
    Tenants(redis_client).set("t123", TenantPolicy(group="lab", tokens_per_day=200, rpm=1_200))
    heartbeat(store)
    admitted(store, a_job("t123"))
    first = visitor.get("/console/tenants").text
    assert first.count('<th role="rowheader"') == 50
    assert "500 of 500 tenants, page 1 of 10" in first
    assert "page=2" in first
    last = visitor.get("/console/tenants?page=99").text
    assert ">t499<" in last
    assert "page=11" not in last
    found = visitor.get("/console/tenants?q=T12").text
    assert found.count('<th role="rowheader"') == 10
    of_group = visitor.get("/console/tenants?group=lab").text
    assert of_group.count('<th role="rowheader"') == 1
    for text in (">t123<", ">1,200<", "15 % of 200", 'data-label="Waiting" class="n">1<'):
        assert text in of_group
    none = visitor.get("/console/tenants?q=newcomer").text
    assert "0 of 500" in none
    assert 'href="/console/tenants/newcomer"' in none
    assert 'href="/console/tenants/new' not in visitor.get("/console/tenants?q=new%20comer").text


def test_an_address_that_no_page_has_leads_back_to_the_pages(
    visitor: FlaskClient, store: Store, settings: Settings
) -> None:
    for address in ("/console/models/small", "/console/nosuch"):
        answer = visitor.get(address)
        assert answer.status_code == 404
        assert f"There is no page &#39;{address}&#39; in the console." in answer.text
        assert 'href="/console/tenants"' in answer.text
    assert a_door(store, settings, auth="required").get("/console/nosuch").status_code == 401


def test_what_the_pages_of_a_tenant_and_of_usage_read_does_not_grow_with_the_tenants(
    visitor: FlaskClient, redis_client: redis.Redis
) -> None:
    add_tenants(redis_client, 500)

    def reads_of(path: str) -> int:
        before = sum(reads(redis_client))
        assert visitor.get(path).status_code == 200
        return sum(reads(redis_client)) - before

    assert reads_of("/console/tenants/t001") < 250
    assert reads_of("/console/usage") < 250


def reads(client: redis.Redis) -> list[int]:
    """Return how often the store was asked for one field and for all fields of a hash."""
    commands: Any = client.info("commandstats")
    return [commands.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("hget", "hgetall")]


def test_of_more_running_jobs_than_are_read_a_page_does_not_say_that_none_is_its_tenants(
    store: Store, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads_of_console, "MAX_RUNNING", 1)
    heartbeat(store)
    for tenant in ("blue", "red"):
        admitted(store, a_job(tenant))
    for _ in range(2):
        claim_one(store)
    pages = [look(f"/console/tenants/{tenant}/live").read_until("event: running") for tenant in ("blue", "red")]
    assert sum("None of the 1 running jobs whose leases end first is this tenant&#39;s" in page for page in pages) == 1


def test_a_group_that_was_removed_meanwhile_stays_the_tenants_until_it_is_changed(
    visitor: FlaskClient, redis_client: redis.Redis
) -> None:
    Groups(redis_client).set("lab", GroupPolicy())
    Tenants(redis_client).set("blue", TenantPolicy(group="lab"))
    redis_client.srem(keys.groups(), "lab")
    assert '<option value="lab" selected>' in visitor.get("/console/tenants/blue").text

"""The console's pages of groups and of routes: what they show, and the changes that they make."""

import pytest
import redis
from flask.testing import FlaskClient

from shared.accounts.admin_actions import list_actions
from shared.accounts.groups import Groups
from shared.accounts.routes import Routes
from shared.accounts.tenants import Tenants
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.route import Route, RouteStep
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import heartbeat
from tests.support.console import ATTACK, press
from tests.support.door import fault


def newest(client: redis.Redis) -> tuple[str, str]:
    one = next(list_actions(client, limit=1))
    return one.what, one.on


def test_a_group_is_made_changed_and_removed_when_it_has_no_tenants(
    visitor: FlaskClient, redis_client: redis.Redis
) -> None:
    assert "There is no group" in visitor.get("/console/groups").text
    made = press(visitor, "groups", group="lab")
    assert 'href="/console/groups/lab"' in made.text
    assert newest(redis_client)[1] == "group lab: the defaults"
    assert "exists" in fault(press(visitor, "groups", group="lab"), 422, "invalid_value", "group")
    assert "is not a group name" in fault(press(visitor, "groups", group="a b"), 422, "invalid_value", "group")
    given = {"weight": "3", "was-weight": "", "tokens_per_day": "1000", "was-tokens_per_day": ""}
    changed = press(visitor, "groups/lab/policy", **given)
    assert "of 1,000 tokens" in changed.text
    assert Groups(redis_client).get("lab") == GroupPolicy(weight=3.0, tokens_per_day=1_000)
    assert newest(redis_client) == ("group.set", "group lab: weight=3.0 tokens_per_day=1000")
    Tenants(redis_client).set("blue", TenantPolicy(group="lab"))
    listed = visitor.get("/console/groups").text
    for text in ('href="/console/tenants?group=lab">1<', "0 % of 1,000", 'data-label="Weight" class="n">3<'):
        assert text in listed
    assert "has 1 tenants" in fault(press(visitor, "groups/remove", group="lab"), 422, "invalid_value", "group")
    Tenants(redis_client).change("blue", {"group": None})
    assert "There is no group" in press(visitor, "groups/remove", group="lab").text
    assert newest(redis_client) == ("group.rm", "group lab")


def test_an_invalid_value_of_a_group_is_named_and_an_unknown_group_has_no_page(
    visitor: FlaskClient, redis_client: redis.Redis
) -> None:
    Groups(redis_client).set("lab", GroupPolicy())
    answer = press(visitor, "groups/lab/policy", **{"weight": "-2", "was-weight": ""})
    assert "weight=-2.0 is out of range" in fault(answer, 422, "invalid_value", "weight")
    # Only a tenant has a rate limit.
    answer = press(visitor, "groups/lab/policy", **{"rpm": "5", "was-rpm": ""})
    assert "no field rpm" in fault(answer, 422, "invalid_value", "name")
    assert "does not exist" in fault(
        press(visitor, "groups/none/policy", **{"weight": "2", "was-weight": ""}), 422, "invalid_value", "group"
    )
    for name in ("none", "default", "a.b"):
        assert visitor.get(f"/console/groups/{name}").status_code == 404
    redis_client.hset(keys.tenant(keys.group_owner("lab")), "policy_weight_milli", "heavy")
    assert "policy_weight_milli=&#39;heavy&#39;" in visitor.get("/console/groups/lab").text


def test_a_route_is_added_shown_with_its_conditions_and_removed(
    visitor: FlaskClient, redis_client: redis.Redis
) -> None:
    assert "There is no route" in visitor.get("/console/routes").text
    added = press(visitor, "routes", route="auto", pools="small,max_prompt=4000,features=none\r\n\r\n large ")
    for text in (
        'href="/console/model?name=small"',
        "max_prompt=4000, features=none",
        'href="/console/model?name=large"',
    ):
        assert text in added.text
    steps = RouteStep("small", max_prompt=4_000, features=()), RouteStep("large")
    assert Routes(redis_client).read()[0]["auto"].route == Route("auto", steps)
    assert newest(redis_client) == ("route.add", "route auto: small, large")
    redis_client.hset(keys.routes(), "spoiled", "no route")
    assert "spoiled" in visitor.get("/console/routes").text
    assert press(visitor, "routes/remove", route="spoiled").status_code == 200
    assert "There is no route" in press(visitor, "routes/remove", route="auto").text
    assert newest(redis_client) == ("route.rm", "route auto")
    fault(press(visitor, "routes/remove", route="auto"), 422, "invalid_value", "route")


@pytest.mark.parametrize(
    ("pools", "param", "message"),
    [
        ("small,max_prompt=many", "max_prompt", "max_prompt='many' is not a whole number"),
        ("small,colour=red", "condition", "condition='colour' is not one of"),
        (" \n ", "pools", "names no pool"),
        ("x" * 9_000, "pools", "more than 8000"),
    ],
)
def test_an_invalid_route_is_refused_with_the_field_and_the_value(
    visitor: FlaskClient, store: Store, redis_client: redis.Redis, pools: str, param: str, message: str
) -> None:
    heartbeat(store, model="served")
    assert message in fault(press(visitor, "routes", route="auto", pools=pools), 422, "invalid_value", param)
    taken = press(visitor, "routes", route="served", pools="small")
    assert "is the name of a model" in fault(taken, 422, "invalid_value", "route")
    assert Routes(redis_client).read()[0] == {}


def test_hostile_names_of_routes_and_pools_are_shown_as_text(visitor: FlaskClient, redis_client: redis.Redis) -> None:
    Routes(redis_client).add(Route(ATTACK, (RouteStep(f"{ATTACK}2"),)))
    page = visitor.get("/console/routes").text
    assert ATTACK not in page
    assert "&lt;script&gt;" in page

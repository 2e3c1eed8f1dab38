"""Tests that routes are validated, and that what the store keeps of one is read back or named as spoiled."""

import json
from pathlib import Path

import pytest
import redis

from shared.accounts import routes
from shared.accounts.routes import Pools, Routes
from shared.errors import ConfigError
from shared.jobs.pool_terms import PoolTerms
from shared.jobs.route import Route, RouteReason, RouteStep, parse_route
from shared.jobs.route_texts import format_step, parse_step
from shared.store import keys

FULL = RouteStep(
    "org/small:8b",
    min_prompt=5,
    max_prompt=2_000,
    max_answer=300,
    features=("tools", "schema"),
    end_within=5_050,
    max_price_micro=1_500_000,
    windows=((1_320, 360), (0, 1_440)),
    share=10,
)
ARGUMENT = (
    "org/small:8b,min_prompt=5,max_prompt=2000,max_answer=300,features=tools+schema,end_within=50.5%,max_price=1.5,"
    "window=22:00-06:00,window=00:00-24:00,share=0.1%"
)


def test_a_step_is_read_from_an_argument_and_written_as_one() -> None:
    assert parse_step(ARGUMENT) == FULL
    assert format_step(FULL) == ARGUMENT
    assert parse_step("small,features=none") == RouteStep("small", features=())
    assert format_step(RouteStep("small", features=())) == "small,features=none"


def test_a_stored_route_is_read_back() -> None:
    route = Route("smart", (FULL, RouteStep("big")))
    assert parse_route("smart", route.dump()) == route


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("", "pool=''"),
        ("a b", "pool='a b'"),
        ("small,max_prompt", "condition='max_prompt'"),
        ("small,speed=3", "condition='speed'"),
        ("small,max_prompt=many", "max_prompt='many'"),
        ("small,max_prompt=0", "max_prompt=0"),
        ("small,max_prompt=5,max_prompt=6", "max_prompt='6'"),
        ("small,min_prompt=6,max_prompt=5", "min_prompt=6"),
        ("small,features=wings", "features='wings'"),
        ("small,end_within=0.5", "end_within='0.5'"),
        ("small,end_within=101%", "end_within='101%'"),
        ("small,share=100%", "share=10000"),
        ("small,share=nan%", "share='nan%'"),
        ("small,max_price=-1", "max_price='-1'"),
        ("small,max_price=0.0000001", "max_price='0.0000001'"),
        ("small,max_price=nan", "max_price='nan'"),
        ("small,window=8-18", "window='8-18'"),
        ("small,window=08:00-24:01", "window='08:00-24:01'"),
        ("small,window=08:60-18:00", "window='08:60-18:00'"),
        ("small" + 9 * ",window=08:00-09:00", "windows="),
    ],
)
def test_what_is_wrong_with_a_step_is_said_with_its_field_and_value(argument: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_step(argument)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("name", "pools", "expected"),
    [
        ("a b", ["small"], "route='a b'"),
        ("a\u202eb", ["small"], r"route='a\u202eb'"),
        ("smart", [], "0 pools"),
        ("smart", [f"p{number}" for number in range(9)], "9 pools"),
        ("smart", ["small", "small"], "pool='small' is in the route twice"),
        ("smart", ["small", "smart"], "pool='smart' is the route itself"),
        ("smart", ["small,share=5%", "big,share=5%"], "one pool must take the other requests"),
    ],
)
def test_what_is_wrong_with_a_route_is_said(name: str, pools: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Route(name, tuple(parse_step(pool) for pool in pools))
    assert expected in str(caught.value)


STEP = {"pool": "small"}


@pytest.mark.parametrize(
    "stored",
    [
        "no json",
        "[" * 100_000,
        "[]",
        "{}",
        '{"pools":7}',
        json.dumps({"pools": []}),
        json.dumps({"pools": [7]}),
        json.dumps({"pools": [STEP], "more": 1}),
        json.dumps({"pools": [{"pool": 7}]}),
        json.dumps({"pools": [STEP | {"speed": 3}]}),
        json.dumps({"pools": [STEP | {"max_prompt": "3"}]}),
        json.dumps({"pools": [STEP | {"max_prompt": True}]}),
        json.dumps({"pools": [STEP | {"features": "tools"}]}),
        json.dumps({"pools": [STEP | {"features": [["tools"]]}]}),
        json.dumps({"pools": [STEP | {"windows": [5]}]}),
        json.dumps({"pools": [STEP | {"windows": [[1, 2, 3]]}]}),
        json.dumps({"pools": [STEP | {"windows": [[1, 1e300]]}]}),
        json.dumps({"pools": [STEP | {"share": 1.5}]}),
        json.dumps({"pools": [{"pool": f"p{number}"} for number in range(1_000)]}),
    ],
)
def test_a_spoiled_route_is_named_and_the_others_are_read(redis_client: redis.Redis, stored: str) -> None:
    Routes(redis_client).add(Route("good", (RouteStep("small"),)))
    redis_client.hset(keys.routes(), "bad", stored)
    found, problems = Routes(redis_client).read()
    assert list(found) == ["good"]
    assert len(problems) == 1
    assert "'bad'" in problems[0]
    assert len(problems[0]) < 400


def test_a_key_of_another_type_in_the_place_of_the_routes_is_named(redis_client: redis.Redis) -> None:
    redis_client.set(keys.routes(), "x")
    assert Routes(redis_client).read() == ({}, ("penstock:routes is a string and no hash",))


def test_no_route_is_added_if_the_process_ends_before_it_writes_the_record(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object) -> None:
        raise RuntimeError("the process ends")

    monkeypatch.setattr(routes, "add_record", end)
    with pytest.raises(RuntimeError):
        Routes(redis_client).add(Route("good", (RouteStep("small"),)))
    assert not redis_client.exists(keys.routes())


def test_a_route_cannot_have_the_name_of_a_model_or_of_another_route(redis_client: redis.Redis) -> None:
    redis_client.zadd(keys.models(), {"m": 5})
    with pytest.raises(ConfigError, match="route='m' is the name of a model"):
        Routes(redis_client).add(Route("m", (RouteStep("small"),)))
    Routes(redis_client).add(Route("smart", (RouteStep("small"),)))
    with pytest.raises(ConfigError, match="route='smart' exists"):
        Routes(redis_client).add(Route("smart", (RouteStep("big"),)))


def test_the_terms_of_a_pool_are_changed_field_by_field_and_listed(redis_client: redis.Redis) -> None:
    pools = Pools(redis_client)
    pools.change("cloud", {"prompt_price_micro": 3, "day_cap_micro": 0})
    assert pools.change("cloud", {"answer_price_micro": 5}) == PoolTerms(
        prompt_price_micro=3, answer_price_micro=5, day_cap_micro=0
    )
    pools.change("cellar", {"local": True})
    redis_client.zadd(keys.models(), {"other": 1})
    assert [(entry.model, entry.terms.local) for entry in pools.list()] == [
        ("cellar", True),
        ("cloud", False),
        ("other", False),
    ]
    assert pools.change("cellar", {"local": False}) == PoolTerms()
    assert redis_client.smembers(keys.pools()) == {b"cloud"}


def test_a_spoiled_cap_is_read_as_one_that_allows_nothing(redis_client: redis.Redis) -> None:
    redis_client.hset(keys.books("m"), mapping={"policy_day_cap_micro": "x", "policy_answer_price_micro": "-4"})
    assert Pools(redis_client).get("m") == PoolTerms(day_cap_micro=0)


def test_every_reason_is_explained_on_the_page_of_routes() -> None:
    page = (Path(__file__).parents[3] / "docs" / "routes.md").read_text(encoding="utf-8")
    assert [reason.value for reason in RouteReason if f"`{reason.value}`" not in page] == []

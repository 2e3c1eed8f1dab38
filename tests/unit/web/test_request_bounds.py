"""Tests the bounds on a tenant's open requests in one process, and on the bytes of their bodies."""

from dataclasses import replace

import pytest

from shared.errors import ConfigError
from shared.settings.settings import load
from web.http.api_errors import ApiError
from web.http.connection_bounds import Budget, ConnectionLimits, RequestBounds, request_bounds

MIB = 1_048_576
CONNECTIONS = ConnectionLimits(400, 50)


def bounds(**overrides: int) -> RequestBounds:
    return request_bounds(replace(load({}, None), **overrides), CONNECTIONS)


def test_auto_is_a_share_of_the_connections_and_room_for_some_of_the_longest_bodies():
    made = bounds()
    assert (made.tenant_requests.per_holder, made.address_requests.per_holder) == (100, 50)
    assert (made.bodies.total, made.bodies.per_holder) == (64 * MIB, 16 * MIB)
    long = bounds(max_body_bytes=100 * MIB)
    assert (long.bodies.total, long.bodies.per_holder) == (400 * MIB, 100 * MIB)


@pytest.mark.parametrize("name", ["max_open_body_bytes", "max_tenant_body_bytes"])
def test_bounds_into_which_the_longest_body_does_not_fit_are_refused(name):
    with pytest.raises(ConfigError, match=rf"PENSTOCK_\w+_BODY_BYTES=\d+ is less than PENSTOCK_MAX_BODY_BYTES={MIB}"):
        bounds(**{name: MIB - 1})


def test_a_tenant_at_its_bound_delays_no_other_tenant():
    made = bounds(max_tenant_requests=2)
    ends = [made.open_tenant_request("a") for _ in range(2)]
    with pytest.raises(ApiError, match="tenant 'a' has 2 open requests") as refused:
        made.open_tenant_request("a")
    assert (refused.value.status, refused.value.code) == (429, "tenant_requests_full")
    made.open_tenant_request("b")
    ends[0]()
    made.open_tenant_request("a")


def test_bodies_are_bounded_for_each_tenant_and_in_all():
    made = bounds(max_open_body_bytes=3 * MIB, max_tenant_body_bytes=2 * MIB)
    first = made.open_body("a", 2 * MIB)
    with pytest.raises(ApiError) as own:
        made.open_body("a", 1)
    made.open_body("b", MIB)
    with pytest.raises(ApiError) as shared:
        made.open_body("c", 1)
    assert (own.value.code, shared.value.code) == ("tenant_bodies_full", "bodies_full")
    first()
    made.open_body("c", 2 * MIB)


def test_loads_of_documents_are_bounded_for_each_tenant_and_in_all():
    made = bounds()
    ends = [made.open_load(tenant) for tenant in "aabbccdd"]
    for tenant in "ae":
        with pytest.raises(ApiError, match="loads 8 documents at once, and 2 of") as refused:
            made.open_load(tenant)
        assert (refused.value.status, refused.value.code) == (429, "loads_full")
    ends[0]()
    made.open_load("a")


def test_an_amount_is_given_back_once_and_leaves_no_holder_behind():
    budget = Budget(per_holder=5, total=9)
    give_back = budget.take("a", 3)
    budget.take("a", 2)()
    give_back()
    give_back()
    assert (budget.taken, dict(budget._by_holder)) == (0, {})

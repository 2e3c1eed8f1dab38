"""The bounds on connections: in all, for each address, and the reserve beyond them."""

from dataclasses import replace
from random import Random

import pytest

from shared.settings.settings import Settings, load
from web.http.connection_bounds import (
    RESERVE,
    RESERVE_PER_ADDRESS,
    ConnectionBounds,
    ConnectionLimits,
    ConnectionService,
    DoorBound,
    connection_limits,
)

DEFAULTS = load({}, None)


def settings(**overrides: int) -> Settings:
    return replace(DEFAULTS, **overrides)


@pytest.mark.parametrize(
    ("overrides", "max_files", "limits"),
    [
        ({}, 65_536, (10_000, 1_250)),
        ({}, 1_024, (384, 48)),
        ({}, 64, (1, 1)),
        ({"max_connections": 5_000}, 1_024, (384, 48)),
        ({"max_connections": 80}, 65_536, (80, 10)),
        ({"max_connections": 80, "max_address_connections": 70}, 65_536, (80, 70)),
    ],
)
def test_auto_is_a_share_of_the_possible_connections(overrides, max_files, limits):
    assert connection_limits(settings(**overrides), max_files) == ConnectionLimits(*limits)


def test_connections_beyond_the_total_get_the_reserve_and_then_no_place():
    bounds = ConnectionBounds(ConnectionLimits(3, 100))
    assert [bounds.enter(f"a{i}") for i in range(3)] == [(ConnectionService.REGULAR, None)] * 3
    beyond = [bounds.enter(f"b{i}") for i in range(RESERVE)]
    assert beyond == [(ConnectionService.RESERVED, DoorBound.CONNECTIONS)] * RESERVE
    assert bounds.enter("c") == (ConnectionService.NONE, DoorBound.CONNECTIONS)
    bounds.leave("c", ConnectionService.NONE)
    bounds.leave("a0", ConnectionService.REGULAR)
    assert bounds.enter("c") == (ConnectionService.REGULAR, None)


def test_one_address_takes_neither_all_places_nor_the_whole_reserve():
    bounds = ConnectionBounds(ConnectionLimits(100, 5))
    places = [bounds.enter("greedy") for _ in range(50)]
    assert places[:5] == [(ConnectionService.REGULAR, None)] * 5
    assert (
        places[5 : 5 + RESERVE_PER_ADDRESS] == [(ConnectionService.RESERVED, DoorBound.ADDRESS)] * RESERVE_PER_ADDRESS
    )
    assert set(places[5 + RESERVE_PER_ADDRESS :]) == {(ConnectionService.NONE, DoorBound.ADDRESS)}
    assert bounds.enter("other") == (ConnectionService.REGULAR, None)


def test_while_all_places_are_taken_one_address_gets_only_its_share_of_the_reserve():
    bounds = ConnectionBounds(ConnectionLimits(1, 100))
    bounds.enter("first")
    places = [bounds.enter("greedy")[0] for _ in range(RESERVE_PER_ADDRESS + 1)]
    assert places == [ConnectionService.RESERVED] * RESERVE_PER_ADDRESS + [ConnectionService.NONE]
    assert bounds.enter("prober") == (ConnectionService.RESERVED, DoorBound.CONNECTIONS)
    bounds.leave("greedy", ConnectionService.RESERVED)
    assert bounds.enter("greedy")[0] is ConnectionService.RESERVED


def test_a_proxy_has_only_the_bound_on_all_connections():
    bounds = ConnectionBounds(ConnectionLimits(10, 2))
    assert [bounds.enter(None)[0] for _ in range(10)] == [ConnectionService.REGULAR] * 10
    assert bounds.enter(None) == (ConnectionService.RESERVED, DoorBound.CONNECTIONS)


def test_after_any_sequence_of_connections_the_books_are_empty_and_hold_no_address():
    random = Random(9)
    bounds = ConnectionBounds(ConnectionLimits(20, 4))
    held = []
    for _ in range(5_000):
        if held and random.random() < 0.45:
            bounds.leave(*held.pop(random.randrange(len(held))))
        else:
            address = random.choice([None, *"abcdefgh"])
            place, exceeded = bounds.enter(address)
            assert (place is ConnectionService.REGULAR) == (exceeded is None)
            held.append((address, place))
        assert bounds.open == sum(place is not ConnectionService.NONE for _, place in held)
        assert sum(place is ConnectionService.REGULAR for _, place in held) <= 20
    for address, place in held:
        bounds.leave(address, place)
    assert (bounds.open, bounds._reserved, dict(bounds._by_address)) == (0, 0, {})

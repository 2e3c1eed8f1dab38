"""Tests the gate's two limits on strangers without sockets: the bytes they hold together, and their connections."""

import hypothesis.strategies as st
from hypothesis import given

from web.gate.connection_table import ConnectionTable
from web.gate.stranger_budget import StrangerBudget
from web.runtime.unfinished_bytes import SMALL_BYTES


class AHolder:
    def __init__(self) -> None:
        self.held, self.drops, self.aborted = 0, 0, False

    def drop_unfinished(self) -> None:
        self.held, self.drops = 0, self.drops + 1

    def abort(self) -> None:
        self.aborted = True


def hold(budget: StrangerBudget, holder: AHolder, count: int) -> None:
    holder.held = count
    budget.hold(holder, count)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0, 1, 4_000, 5_000, 30_000, 99_000, 200_000]))))
def test_strangers_never_hold_more_than_their_budget_and_the_sum_is_right(steps: list[tuple[int, int]]) -> None:
    budget, holders = StrangerBudget(100_000), [AHolder() for _ in range(10)]
    for number, count in steps:
        hold(budget, holders[number], count)
        assert budget.held_bytes == sum(holder.held for holder in holders) <= 100_000
    for holder in holders:
        hold(budget, holder, 0)
    assert budget.held_bytes == 0


def test_short_frames_are_dropped_only_when_there_is_no_long_one() -> None:
    budget = StrangerBudget(65_536)
    short, long, last = AHolder(), AHolder(), AHolder()
    hold(budget, short, SMALL_BYTES)
    hold(budget, long, 40_000)
    hold(budget, last, 40_000)
    assert (short.drops, long.drops, last.drops) == (0, 1, 0)
    many = [AHolder() for _ in range(20)]
    for holder in many:
        hold(budget, holder, SMALL_BYTES)
    assert (last.drops, short.drops) == (1, 1)


def test_short_frames_without_an_end_do_not_keep_out_a_long_one_that_arrives() -> None:
    budget = StrangerBudget(65_536)
    short, long = [AHolder() for _ in range(16)], AHolder()
    for holder in short:
        hold(budget, holder, SMALL_BYTES)
    for count in (8_192, 16_384, 30_000):
        hold(budget, long, count)
    assert long.drops == 0
    # Eight of them had to go for 30,000 bytes, those that were held the longest.
    assert [holder.drops for holder in short] == 8 * [1] + 8 * [0]
    with budget.parsing(60_000) as parsed:
        assert parsed
        late = AHolder()
        hold(budget, late, 30_000)
        assert (late.drops, budget.held_bytes) == (1, 60_000)


def test_complete_frames_count_until_their_key_has_been_checked() -> None:
    budget, holder = StrangerBudget(65_536), AHolder()
    hold(budget, holder, 30_000)
    with budget.parsing(60_000) as first:
        assert first
        assert (holder.drops, budget.held_bytes) == (1, 60_000)
        with budget.parsing(60_000) as second, budget.parsing(SMALL_BYTES) as short:
            assert (second, short) == (False, True)
    assert budget.held_bytes == 0


def test_the_connection_that_was_a_stranger_the_longest_makes_room_for_a_new_one() -> None:
    table = ConnectionTable(max_in_all=3, max_per_address=2)
    a, b, c, d, e = (AHolder() for _ in range(5))
    assert table.add(a, "one", stranger=True) is None
    assert table.add(b, "one", stranger=True) is None
    table.mark(a, stranger=False)
    # The bound of the address ends a stranger of the same address.
    assert table.add(c, "one", stranger=True) is None
    assert (a.aborted, b.aborted, c.aborted) == (False, True, False)
    table.mark(c, stranger=False)
    assert table.add(AHolder(), "one", stranger=True) == "PENSTOCK_GATE_MAX_CONNECTIONS_PER_ADDRESS"
    assert table.add(d, "two", stranger=True) is None
    assert table.add(e, None, stranger=True) is None
    assert d.aborted
    table.mark(e, stranger=False)
    assert table.add(AHolder(), None, stranger=True) == "PENSTOCK_GATE_MAX_CONNECTIONS"
    table.mark(a, stranger=True)
    assert table.add(AHolder(), "two", stranger=True) is None
    assert a.aborted


def test_the_table_forgets_addresses_without_connections() -> None:
    table = ConnectionTable(max_in_all=10, max_per_address=5)
    for number in range(1_000):
        connection = AHolder()
        assert table.add(connection, f"address {number}", stranger=number % 2 == 0) is None
        table.mark(connection, stranger=number % 3 == 0)
        table.remove(connection)
        table.remove(connection)
        table.mark(connection, stranger=True)
    assert (len(table._addresses), len(table._by_address), len(table._strangers)) == (0, 0, 0)

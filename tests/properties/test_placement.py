"""Properties of rendezvous hashing: which tenants move when a cell comes, goes or is changed, and the shares."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from shared.cells.directory import CellRecord, Directory
from shared.cells.placement import tenant_cells

TENANTS = [f"tenant-{number}" for number in range(300)]
WEIGHTS = st.dictionaries(st.text("abc123", min_size=1, max_size=4), st.floats(0.1, 10), min_size=2, max_size=8)


def a_directory(weights: dict[str, float], spread: int = 1) -> Directory:
    cells = {name: CellRecord(name, f"redis://{name}", weight=weight) for name, weight in weights.items()}
    return Directory(version=1, cells=cells, spread=spread)


def places(directory: Directory, tenants: list[str] = TENANTS) -> dict[str, tuple[str, ...]]:
    return {tenant: tenant_cells(directory, tenant) for tenant in tenants}


@given(WEIGHTS, st.data(), st.integers(1, 3))
def test_only_tenants_of_a_cell_that_goes_get_another_and_only_as_its_successor(weights, data, spread):
    gone = data.draw(st.sampled_from(sorted(weights)))
    with_it = places(a_directory(weights, spread))
    without = places(a_directory({name: weight for name, weight in weights.items() if name != gone}, spread))
    for tenant, cells in with_it.items():
        kept = tuple(cell for cell in cells if cell != gone)
        assert without[tenant][: len(kept)] == kept
        if gone not in cells:
            assert without[tenant] == cells


@given(WEIGHTS, st.data(), st.floats(1.1, 5))
def test_a_greater_weight_moves_tenants_only_to_its_cell(weights, data, factor):
    grown = data.draw(st.sampled_from(sorted(weights)))
    before = places(a_directory(weights))
    after = places(a_directory(weights | {grown: weights[grown] * factor}))
    assert all(after[tenant] in {cells, (grown,)} for tenant, cells in before.items())


def test_cells_are_homes_of_tenants_in_proportion_to_their_weights():
    weights = {"a": 1.0, "b": 1.0, "c": 2.0, "d": 4.0}
    homes = Counter(cells[0] for cells in places(a_directory(weights), [f"t{i}" for i in range(10_000)]).values())
    for name, weight in weights.items():
        # Five standard deviations of the largest share are 2.5 % of all tenants.
        assert abs(homes[name] / 10_000 - weight / 8) < 0.025


def test_a_new_cell_takes_its_share_of_the_tenants():
    tenants = [f"t{i}" for i in range(10_000)]
    before = places(a_directory(dict.fromkeys("abc", 1.0)), tenants)
    after = places(a_directory(dict.fromkeys("abcd", 1.0)), tenants)
    moved = [tenant for tenant in tenants if before[tenant] != after[tenant]]
    assert all(after[tenant] == ("d",) for tenant in moved)
    assert abs(len(moved) / 10_000 - 1 / 4) < 0.025

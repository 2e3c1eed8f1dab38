"""Tests of the accounting of slots and cells, and of its integrity check."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.slot_cells import SlotAccountingError, Slots


def test_a_taken_slot_and_its_cells_are_free_again_after_giving_back():
    slots = Slots(2, 100)
    slots.take(60, slot=1)
    assert (slots.free_slots, slots.held_slots, slots.free_cells) == ([0], [1], 40)
    slots.give_back(1)
    assert (slots.free_slots, slots.held_slots, slots.free_cells) == ([0, 1], [], 100)


def test_a_job_fits_only_with_a_free_slot_and_enough_cells():
    slots = Slots(2, 100)
    assert slots.fits(100)
    assert not slots.fits(101)
    slots.take(90, slot=0)
    assert not slots.fits(11)
    slots.take(10, slot=1)
    assert not slots.fits(0)


def test_kept_cells_count_as_free_but_must_be_evicted_before_another_slot_takes_them():
    slots = Slots(3, 100)
    slots.take(60, slot=0)
    slots.give_back(0, keep=50)
    assert slots.fits(100)
    assert slots.needs_eviction(51, slot=1)
    assert not slots.needs_eviction(100, slot=0), "a slot need not evict its own cells"
    slots.evict(0)
    assert not slots.needs_eviction(100, slot=1)


def test_a_slot_or_cells_that_are_not_free_cannot_be_taken():
    slots = Slots(1, 100)
    with pytest.raises(SlotAccountingError, match="cannot take slot 0 and 101 cells: 100 cells and slots"):
        slots.take(101, slot=0)
    slots.take(1, slot=0)
    with pytest.raises(SlotAccountingError, match="cannot take slot 0 and 1 cells: 99 cells and slots"):
        slots.take(1, slot=0)


def test_a_slot_is_given_back_only_once_and_keeps_at_most_the_cells_that_it_held():
    slots = Slots(1, 10)
    slots.take(5, slot=0)
    with pytest.raises(SlotAccountingError, match="cannot give back slot 0 and keep 6 cells"):
        slots.give_back(0, keep=6)
    slots.give_back(0)
    with pytest.raises(SlotAccountingError, match="cannot give back slot 0"):
        slots.give_back(0)


def test_the_integrity_check_finds_a_leak():
    slots = Slots(2, 10)
    slots.take(5, slot=0)
    with pytest.raises(SlotAccountingError, match="0 sequences are running, but held slots are 1"):
        slots.check_integrity(running=0)
    slots.free_cells += 1
    with pytest.raises(SlotAccountingError, match="6 free \\+ 0 kept \\+ 5 used, but the total is 10"):
        slots.check_integrity()


@given(st.lists(st.tuples(st.sampled_from(["take", "give back", "evict"]), st.integers(0, 60), st.integers(0, 3))))
def test_free_kept_and_used_cells_add_up_to_the_total_after_any_operations(moves):
    slots, held = Slots(4, 100), {}
    for move, cells, slot in moves:
        if move == "take" and slot not in held and not slots.needs_eviction(cells, slot):
            slots.take(cells, slot)
            held[slot] = cells
        elif move == "give back" and slot in held:
            slots.give_back(slot, keep=min(cells, held.pop(slot)))
        elif move == "evict":
            slots.evict(slot)
        slots.check_integrity(running=len(held))
    for slot in list(held):
        slots.give_back(slot)
    assert slots.fits(100)

"""Slots and cells are two budgets, and the books of both are audited."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.slots import BooksBroken, Slots


def test_a_taken_slot_and_its_cells_are_free_again_after_giving_back():
    slots = Slots(2, 100)
    slot = slots.take(60)
    assert (slots.free_slots, slots.free_cells) == (1, 40)
    slots.give_back(slot)
    assert (slots.free_slots, slots.free_cells) == (2, 100)


def test_a_job_fits_only_with_a_free_slot_and_enough_cells():
    slots = Slots(2, 100)
    assert slots.fits(100)
    assert not slots.fits(101)
    slots.take(90)
    assert not slots.fits(11)
    slots.take(10)
    assert not slots.fits(0)


def test_what_does_not_fit_cannot_be_taken():
    with pytest.raises(BooksBroken, match="took 101 cells of 100 free"):
        Slots(1, 100).take(101)


def test_a_slot_is_given_back_once():
    slots = Slots(1, 10)
    slot = slots.take(5)
    slots.give_back(slot)
    with pytest.raises(BooksBroken, match="nobody held it"):
        slots.give_back(slot)


def test_the_audit_finds_a_leak():
    slots = Slots(2, 10)
    slots.take(5)
    with pytest.raises(BooksBroken, match="0 sequences run in 1 held slots"):
        slots.check_integrity(running=0)
    slots._cells_free += 1
    with pytest.raises(BooksBroken, match="6 free \\+ 5 used are not 10"):
        slots.check_integrity()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=60))
def test_free_and_used_add_up_after_any_taking_and_giving_back(moves):
    slots, held = Slots(4, 100), []
    for take, number in moves:
        if take and slots.fits(number):
            held.append(slots.take(number))
        elif held and not take:
            slots.give_back(held.pop(number % len(held)))
        slots.check_integrity(running=len(held))
    assert len(set(held)) == len(held)

"""Tests that a model is loaded for clients that were refused because it is not."""

from workers.swapping.wishes import Wishes


def test_a_model_is_wanted_while_a_refused_client_may_come_back():
    wishes = Wishes()
    wishes.note("a", 7, 0.0)
    assert not wishes.is_wanted("a", 0.0), "these were refused before"
    wishes.note("a", 8, 1.0)
    wishes.note("a", 8, 2.0)
    assert wishes.is_wanted("a", 61.0)
    assert not wishes.is_wanted("a", 90.0)
    assert not wishes.is_wanted("b", 1.0)


def test_requests_that_were_refused_while_the_model_was_loaded_are_no_wishes():
    wishes = Wishes()
    wishes.note("a", 7, 0.0)
    wishes.forget_count("a")
    wishes.note("a", 9, 1.0)
    assert not wishes.is_wanted("a", 1.0)

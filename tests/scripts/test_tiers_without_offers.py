"""Tests of a pool's tier while no offer checks it: it lasts while work waits, and offers far apart move it too."""

import pytest

from shared.jobs.outcomes import Refused
from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.builders import MODEL, a_job, admitted
from tests.support.pressure import (
    HeldPool,
    a_long_job,
    a_quiet_pool,
    claim_job,
    make_rates_old,
    raise_tier,
    set_answer_lengths,
)


@pytest.fixture
def quiet(store: Store, settings: Settings) -> HeldPool:
    """A pool with degradation on, whose four slots are taken and which has no queued jobs."""
    return a_quiet_pool(store, settings)


@pytest.fixture
def pressed(quiet: HeldPool) -> HeldPool:
    """The same pool at tier 1, with queued work."""
    raise_tier(quiet)
    return quiet


def test_pressure_seen_before_a_pause_in_offers_does_not_raise_the_tier(quiet):
    quiet.fill(2_000)
    quiet.tier_after(500)
    quiet.pass_ms(2_001)
    assert quiet.tier_after(800) == 0


def test_a_tier_ends_after_two_seconds_without_an_offer_if_no_work_waits(pressed):
    pressed.cancel_fillers()
    pressed.pass_ms(2_001)
    set_answer_lengths(pressed, "blue", 500)
    answer = pressed.store.admit(a_long_job())
    assert isinstance(answer, Refused)
    assert (answer.reason, pressed.tier, pressed.store.snapshot().tiers) == ("deadline_unmeetable", 0, {MODEL: 0})


def test_a_tier_without_an_offer_lasts_while_work_waits_and_its_jobs_are_cut(pressed):
    job_id = admitted(pressed.store, a_long_job())
    pressed.pass_ms(5_000)
    assert pressed.store.snapshot().tiers == {MODEL: 1}
    # Four fifths of the 3 s that are left, less 10 ms for the prompt, are 119 tokens of 20 ms.
    assert claim_job(pressed, job_id).max_tokens == 119
    assert pressed.store.snapshot().tiers == {MODEL: 0}


def test_offers_far_apart_lower_the_tier_too(pressed):
    pressed.cancel_fillers()
    pressed.fill(500)
    pressed.pass_ms(3_000)
    assert pressed.tier_after(100) == 1
    pressed.pass_ms(3_000)
    assert pressed.tier_after(100) == 0


def test_an_offer_while_no_rates_are_known_ends_a_tier_of_more_than_two_seconds_ago(pressed):
    """Otherwise the jobs that are admitted without rates would count as work that has waited since the pressure."""
    pressed.pass_ms(2_001)
    make_rates_old(pressed)
    admitted(pressed.store, a_job("green"))
    pressed.pass_ms(0)
    assert pressed.store.snapshot().tiers == {MODEL: 0}

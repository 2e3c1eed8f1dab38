"""Tests that a claim reserves KV cells for the length to which an answer is cut, not for the length asked for."""

import pytest

from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.builders import MODEL, admitted
from tests.support.pressure import HeldPool, a_long_job, a_quiet_pool, raise_tier, set_answer_lengths


@pytest.fixture
def pressed(store: Store, settings: Settings) -> HeldPool:
    """A pool at tier 1 with four running jobs."""
    pool = a_quiet_pool(store, settings)
    raise_tier(pool)
    return pool


@pytest.mark.parametrize(("cells_free", "claimed"), [(800, 2), (700, 1)])
def test_a_second_job_is_claimed_into_the_cells_that_a_cut_answer_leaves_free(pressed, cells_free, claimed):
    """Each job asks for 10 + 500 cells. An answer is cut to some 240 tokens, so the first job leaves 550 of 800."""
    for tenant in ("blue", "green"):
        set_answer_lengths(pressed, tenant, 500)
        admitted(pressed.store, a_long_job(tenant))
    pressed.cancel_fillers()
    pressed.pass_ms(1_900)
    jobs = pressed.store.claim("w1", "c1", MODEL, room=2, cells_free=cells_free)
    assert len(jobs) == claimed
    assert all(job.max_tokens < 250 for job in jobs)

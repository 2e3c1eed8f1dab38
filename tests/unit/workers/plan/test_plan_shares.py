"""Tests how the memory of GPUs is shared among workers with different models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.plan.memory import DoesNotFit
from workers.plan.shares import Gpu, Need, Share, shares

GIB = 1 << 30


def test_what_is_left_of_a_gpu_is_divided_equally():
    needs = [Need("a", 10 * GIB, 100 * GIB), Need("b", 4 * GIB, 100 * GIB)]
    assert shares(needs, [Gpu(0, 24 * GIB)]) == [Share(0, 15 * GIB), Share(0, 9 * GIB)]


def test_what_one_worker_cannot_use_goes_to_the_others():
    needs = [Need("a", 10 * GIB, 100 * GIB), Need("b", 4 * GIB, 5 * GIB)]
    assert shares(needs, [Gpu(0, 24 * GIB)]) == [Share(0, 19 * GIB), Share(0, 5 * GIB)]


def test_workers_are_spread_over_the_gpus():
    needs = [Need("a", 10 * GIB, 10 * GIB), Need("b", 9 * GIB, 9 * GIB), Need("c", 2 * GIB, 2 * GIB)]
    assert [share.gpu for share in shares(needs, [Gpu(0, 16 * GIB), Gpu(3, 16 * GIB)])] == [0, 3, 3]


def test_models_that_do_not_fit_are_listed_with_what_they_need_and_what_is_free():
    with pytest.raises(DoesNotFit) as caught:
        shares([Need("a", 10 * GIB, 10 * GIB), Need("b", 9 * GIB, 9 * GIB)], [Gpu(0, 16 * GIB)])
    assert str(caught.value) == (
        "the models do not fit together: they need a 10.00 GiB, b 9.00 GiB, and free are 16.00 GiB on GPU 0"
    )


def test_two_models_that_fit_only_together_leave_the_small_gpu_to_the_third():
    needs = [Need(name, size * GIB, size * GIB) for name, size in (("a", 6), ("b", 5), ("c", 5))]
    assert [share.gpu for share in shares(needs, [Gpu(0, 10 * GIB), Gpu(1, 6 * GIB)])] == [1, 0, 0]


_NEEDS = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=8)


@given(pairs=_NEEDS, free=st.lists(st.integers(0, 300), min_size=1, max_size=4))
def test_no_gpu_is_overbooked_and_each_worker_gets_what_it_needs_and_no_more_than_it_uses(pairs, free):
    needs = [Need(str(number), least, least + extra) for number, (least, extra) in enumerate(pairs)]
    gpus = [Gpu(number, size) for number, size in enumerate(free)]
    try:
        found = shares(needs, gpus)
    except DoesNotFit:
        # The largest first, each where most is left: if one has no place, the rest of every GPU is below its need.
        assert sum(need.least_bytes for need in needs) > max(free)
        return
    for gpu in gpus:
        here = [(need, share) for need, share in zip(needs, found, strict=True) if share.gpu == gpu.number]
        given_bytes = sum(share.share_bytes for _, share in here)
        assert given_bytes <= gpu.free_bytes
        hungry = [need for need, share in here if share.share_bytes < need.most_bytes]
        assert not hungry or gpu.free_bytes - given_bytes < len(here)
    for need, share in zip(needs, found, strict=True):
        assert need.least_bytes <= share.share_bytes <= need.most_bytes

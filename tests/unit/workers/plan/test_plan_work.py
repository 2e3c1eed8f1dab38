"""Tests of the jobs that a worker is predicted to do, and of the settings that a plan names."""

from dataclasses import replace

import pytest

from shared.errors import ConfigError
from shared.settings.settings import SETTINGS, load
from workers.engine.sizing import Sizes
from workers.plan.memory import DoesNotFit, Fit
from workers.plan.work import Demand, demand_of, suitable_settings, work_of

DEFAULTS = load({}, None)


def a_fit(slots=16, cells=16_384, n_ctx=8_192, *, shared=True, cells_bytes=1):
    sizes = Sizes(slots, cells, n_ctx)
    return Fit(
        sizes,
        shared,
        weights_bytes=1,
        host_bytes=0,
        cells_bytes=cells_bytes,
        recurrent_bytes=1,
        compute_bytes=1,
        flash=True,
        gpu_bytes=1,
    )


def test_cells_or_slots_limit_the_jobs_at_once():
    roomy, tight = (work_of(a_fit(), DEFAULTS, Demand(prompt, 200), None) for prompt in (300, 3_800))
    assert (roomy.jobs_at_once, roomy.jobs_in_memory) == (16, 32)
    assert (tight.jobs_at_once, tight.jobs_in_memory) == (4, 4)


def test_a_split_cache_and_a_model_without_cells_have_room_for_a_job_in_each_slot():
    for fit in (a_fit(4, 8_192, 2_048, shared=False), a_fit(4, 64, 2_048, cells_bytes=0)):
        assert work_of(fit, DEFAULTS, Demand(1_500, 500), None).jobs_at_once == 4


def test_a_generated_token_counts_as_much_as_in_the_rates_that_workers_report():
    # A rate that is reported with the usual weight of 4 is 500 / (100 + 4 * 100) jobs.
    assert work_of(a_fit(), DEFAULTS, Demand(100, 100), 500.0).jobs_per_s == 1.0
    weighted = load({}, None, generated_weight=9)
    assert work_of(a_fit(), weighted, Demand(100, 100, users=30), 500.0).last_answer_s == 60.0


def test_a_job_that_the_worker_would_not_accept_is_refused():
    with pytest.raises(DoesNotFit, match=r"a job of 8193 tokens is longer than the longest .* 8192; give --context"):
        work_of(a_fit(), DEFAULTS, Demand(8_000, 193), None)


@pytest.mark.parametrize("users", [0, 1, 40, 1_000_000])
@pytest.mark.parametrize("rate", [None, 0.001, 5_000.0, 1e9])
def test_the_settings_of_a_plan_can_be_set_and_hold_all_users(users, rate):
    fit = a_fit()
    work = work_of(fit, DEFAULTS, Demand(300, 200, users), rate)
    found = suitable_settings(fit, DEFAULTS, work)
    load({name: str(value) for name, value in found.items()}, None)
    if users:
        assert found["PENSTOCK_MAX_INFLIGHT"] >= users
        assert found["PENSTOCK_MAX_QUEUE_SIZE"] >= users
    if users and rate:
        assert work.jobs_per_s
        waiting_ms = 1000 * (users - work.jobs_at_once) / work.jobs_per_s
        assert found["PENSTOCK_MAX_WAIT_MS"] >= min(waiting_ms, SETTINGS["max_wait_ms"].bounds[1])


def test_without_users_only_the_sizes_of_the_worker_are_named():
    names = {"PENSTOCK_N_CTX": 8_192, "PENSTOCK_KV_CELLS": 16_384}
    assert suitable_settings(a_fit(), DEFAULTS, None) == names
    of_sixteen = replace(DEFAULTS, max_batch_size=16)
    assert suitable_settings(a_fit(), of_sixteen, None) == names | {"PENSTOCK_MAX_BATCH_SIZE": 16}


def test_a_demand_has_the_tokens_of_prompt_and_answer():
    assert demand_of(None, None, None) is None
    assert demand_of(3, 4, None) == Demand(3, 4)
    for given in ((None, None, 5), (3, None, None), (None, 4, 5)):
        with pytest.raises(ConfigError, match="name both numbers of tokens"):
            demand_of(*given)

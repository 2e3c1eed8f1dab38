"""Tests of the sizes, thread counts and step targets that `auto` settings resolve to."""

import pytest

from shared.settings.settings import load
from workers.engine import sizing
from workers.engine.sizing import Sizes, engine_settings, sizes_of, threads_of


def _settings(**given):
    return load({}, None, **given)


def test_a_cpu_gets_four_slots_of_2048_cells_for_large_models_and_one_job_may_use_all_of_them():
    assert sizes_of(_settings(), model_ctx=131072, gpu=False) == Sizes(4, 8192, 8192)
    assert sizes_of(_settings(max_batch_size=2), model_ctx=131072, gpu=False) == Sizes(2, 4096, 4096)


@pytest.mark.parametrize(
    ("cell_bytes", "given", "sizes"),
    [
        (23_040, {}, Sizes(4, 4 * 8192, 8192)),
        (32_768, {}, Sizes(4, 4 * 8192, 8192)),
        (32_769, {}, Sizes(4, 4 * 2048, 8192)),
        (131_072, {}, Sizes(4, 4 * 2048, 8192)),
        (32_768, {"max_batch_size": 8}, Sizes(8, 8 * 2048, 8192)),
        (32_768, {"max_batch_size": 8, "n_ctx": 4096}, Sizes(8, 8 * 4096, 4096)),
        (16_384, {"n_ctx": 16_384}, Sizes(4, 4 * 16_384, 16_384)),
        (23_040, {"kv_cells": 8192}, Sizes(4, 8192, 8192)),
        (0, {}, Sizes(4, 4 * 8192, 8192)),
    ],
)
def test_each_slot_of_a_cpu_has_cells_for_the_longest_job_if_all_take_at_most_a_gibibyte(cell_bytes, given, sizes):
    assert sizes_of(_settings(**given), model_ctx=131072, gpu=False, cell_bytes=cell_bytes) == sizes


def test_the_longest_job_is_never_longer_than_the_models_training_context():
    assert sizes_of(_settings(), model_ctx=2048, gpu=False).n_ctx == 2048


def test_a_gpu_gets_sixty_four_slots_at_most_and_the_cells_that_fit_but_no_more_than_the_slots_can_use():
    assert sizes_of(_settings(), model_ctx=131072, gpu=True, free_cells=100_096) == Sizes(64, 100_096, 32768)
    assert sizes_of(_settings(), model_ctx=4096, gpu=True, free_cells=900_000) == Sizes(64, 64 * 4096, 4096)
    assert sizes_of(_settings(), model_ctx=131072, gpu=True, free_cells=1024) == Sizes(64, 1024, 1024)


def test_an_integrated_gpu_gets_as_many_cells_as_a_cpu_because_it_uses_the_same_memory():
    sizes = sizes_of(_settings(), model_ctx=131072, gpu=True, free_cells=900_000, integrated=True)
    assert sizes == Sizes(64, 64 * 2048, 32768)
    few = sizes_of(_settings(), model_ctx=131072, gpu=True, free_cells=1024, integrated=True)
    assert few.cells == 1024


def test_a_model_with_a_state_for_each_slot_gets_sixteen_slots_on_a_gpu():
    sizes = sizes_of(_settings(), model_ctx=4096, gpu=True, free_cells=900_000, has_state=True)
    assert sizes == Sizes(16, 65536, 4096)


def test_explicit_sizes_are_not_changed():
    given = _settings(max_batch_size=3, kv_cells=1000, n_ctx=600)
    assert sizes_of(given, model_ctx=131072, gpu=True, free_cells=5) == Sizes(3, 1000, 600)


@pytest.mark.parametrize(("cores", "workers", "threads"), [(8, 1, 7), (8, 2, 3), (2, 1, 1), (1, 1, 1), (4, 9, 1)])
def test_threads_leave_one_core_free_and_are_divided_among_the_workers(monkeypatch, cores, workers, threads):
    monkeypatch.setattr(sizing, "_usable_cores", lambda: cores)
    assert threads_of(_settings(), gpu=False, workers=workers) == threads


def test_a_gpu_gets_one_thread_unless_a_number_is_set():
    assert threads_of(_settings(), gpu=True) == 1
    assert threads_of(_settings(threads=5), gpu=True) == 5


def test_the_memory_for_paused_jobs_is_that_of_the_setting():
    assert engine_settings(_settings(), 512, gpu=False).paused_bytes == 1 << 30
    assert engine_settings(_settings(paused_bytes=0), 512, gpu=True).paused_bytes == 0


def test_answers_are_drafted_unless_the_setting_is_off():
    assert engine_settings(_settings(), 512, gpu=False).speculates
    assert not engine_settings(_settings(speculation="off"), 512, gpu=True).speculates


def test_the_step_target_depends_on_the_device_unless_it_is_set():
    assert engine_settings(_settings(), 512, gpu=True).step_target_ms == 100
    assert engine_settings(_settings(), 512, gpu=False).step_target_ms == 250
    assert engine_settings(_settings(step_target_ms=40), 512, gpu=True).step_target_ms == 40

"""The benchmark of batches sends the same requests in each run, and keeps what it has measured."""

import json

import pytest

from bench.batches import ANSWER_TOKENS, DECODE_TPS, FIGURES, LOAD, SLOTS, TENANTS, Run, a_line, plan


def test_the_plan_is_the_same_each_time_and_has_the_load_that_it_names():
    sends = plan(600)
    assert sends == plan(600)
    assert {tenant for _, tenant in sends} == set(TENANTS)
    assert len(sends) / 600 * ANSWER_TOKENS / DECODE_TPS == pytest.approx(LOAD * SLOTS, rel=0.1)


def test_lines_have_ids_that_find_them_again():
    assert [json.loads(a_line(number))["custom_id"] for number in range(3)] == ["0", "1", "2"]


def test_an_interrupted_run_knows_what_was_measured(tmp_path):
    Run(tmp_path, 10, 1).keep("alone", {"requests": 5})
    (tmp_path / FIGURES).with_suffix(".part").write_text("cut")
    assert Run(tmp_path, 10, 1).kept == {"alone": {"requests": 5}}

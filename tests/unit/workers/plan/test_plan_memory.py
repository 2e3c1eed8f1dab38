"""Tests that a plan says what a worker reports when it has loaded the model, and what fits into a GPU."""

import contextlib
from dataclasses import replace

import pytest

from shared.settings.settings import load
from tests.support.bert import write_bert
from tests.support.odd_models import write_odd_model
from workers.demo.random_gguf import write_random_model
from workers.engine.llama.backend import load_backend
from workers.engine.sizing import GPU_SPARE_BYTES
from workers.gguf_header import read_local_header
from workers.plan.layout import layout_of
from workers.plan.memory import DoesNotFit, cell_bytes, fit

#: The format, the experts, the window, the compression and the recurrent memory of layers are in one model each.
MODELS = ("llama", "f16", "qwen3moe", "gemma3", "deepseek2", "lfm2", "mamba", "bert")
#: A split cache with the default sizes, and a shared one.
WORKERS = ({}, {"max_batch_size": 8, "kv_cells": 4096, "prefill_chunk": 256})


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_random_model(folder / "llama.gguf")
    write_random_model(folder / "f16.gguf", file_type="f16", n_embd=128)
    write_bert(folder / "bert.gguf")
    for architecture in MODELS[2:-1]:
        write_odd_model(folder / "llama.gguf", folder / f"{architecture}.gguf", architecture)
    return folder


def layout(models, name):
    return layout_of([read_local_header(models / f"{name}.gguf")])


@pytest.mark.parametrize("given", WORKERS, ids=["split", "shared"])
@pytest.mark.parametrize("name", MODELS)
def test_a_plan_is_within_five_percent_of_the_report_of_a_worker(models, name, given):
    settings = load({}, None, device="cpu", threads=1, **given)
    plan = fit(layout(models, name), settings, None)
    with contextlib.closing(load_backend(settings, models / f"{name}.gguf")) as backend:
        facts = backend.facts
    reported = facts.weights_bytes + facts.kv_bytes + facts.compute_bytes
    assert plan.sum_bytes == pytest.approx(reported, rel=0.05)
    # llama.cpp's log has hundredths of a MiB.
    assert plan.weights_bytes == pytest.approx(facts.weights_bytes, abs=12_000)
    assert plan.cells_bytes + plan.recurrent_bytes == pytest.approx(facts.kv_bytes, abs=12_000)
    assert plan.sizes.n_ctx == facts.n_ctx
    if name != "bert":
        assert (plan.sizes.slots, plan.sizes.cells) == (facts.slots, facts.cells)


@pytest.mark.parametrize(("kv_type", "share"), [("f32", 2), ("f16", 1)])
def test_the_type_of_the_cells_decides_how_many_fit(models, kv_type, share):
    of_model = layout(models, "gemma3")
    settings = load({}, None, max_batch_size=64, n_ctx=2048, kv_type=kv_type)
    weights = of_model.weights_bytes - of_model.host_bytes
    plan = fit(of_model, settings, GPU_SPARE_BYTES + weights + (16 << 20))
    assert plan.sizes.cells == (16 << 20) // (512 * share)
    assert plan.sum_bytes - plan.host_bytes < GPU_SPARE_BYTES + weights + (16 << 20)


def test_a_gpu_with_much_memory_gets_cells_for_the_longest_job_in_each_slot(models):
    plan = fit(layout(models, "llama"), load({}, None, max_batch_size=8, n_ctx=1024), 80 << 30)
    assert (plan.sizes.slots, plan.sizes.cells, plan.sizes.n_ctx) == (8, 8192, 1024)


def test_cells_that_leave_too_little_for_compute_buffers_are_reduced_as_a_worker_does(models):
    # With this many slots and heads, the buffers of a step are larger than the memory that is kept free for them.
    wide = replace(layout(models, "llama"), width=65_536, feed_width=400_000, context=32_768)
    roomy = fit(wide, load({}, None, max_batch_size=64), 80 << 30)
    tight_bytes = GPU_SPARE_BYTES + roomy.weights_bytes - roomy.host_bytes + roomy.cells_bytes
    tight = fit(wide, load({}, None, max_batch_size=64), tight_bytes)
    assert tight.sizes.cells < roomy.sizes.cells
    assert tight.sum_bytes - tight.host_bytes <= tight_bytes


@pytest.mark.parametrize(
    ("gpu_bytes", "given", "expected"),
    [
        (1 << 30, {}, r"the weights take 0\.00 GiB of the GPU's 1\.00 GiB, and 1\.50 GiB are kept free"),
        (2 << 30, {"kv_cells": 100_000_000}, r"100000000 KV cells with the weights and the compute buffers take"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_sizes(models, gpu_bytes, given, expected):
    with pytest.raises(DoesNotFit, match=expected):
        fit(layout(models, "llama"), load({}, None, **given), gpu_bytes)


def test_on_a_gpu_the_embeddings_of_tokens_stay_beside_it_and_are_copied_if_they_are_the_output_too(models):
    untied = layout(models, "llama")
    tied = replace(untied, copied_bytes=untied.host_bytes)
    on_gpu = [
        plan.sum_bytes - plan.host_bytes for plan in (fit(one, load({}, None), 8 << 30) for one in (untied, tied))
    ]
    assert on_gpu[1] - on_gpu[0] == untied.host_bytes == 4 * 64 * 1024


def test_without_flash_attention_the_values_of_all_layers_are_as_wide_as_the_widest(models):
    even = layout(models, "llama")
    uneven = replace(even, layers=(even.layers[0], replace(even.layers[1], v_width=8)))
    assert cell_bytes(even, "f16", flash=True) - cell_bytes(uneven, "f16", flash=True) == 2 * (32 - 8)
    assert cell_bytes(uneven, "f16", flash=False) == cell_bytes(even, "f16", flash=False)

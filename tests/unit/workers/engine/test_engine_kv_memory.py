"""Tests of the number of KV cells: as many as fit, whatever the model's layers keep, and fewer if memory is short."""

import contextlib
import math
from dataclasses import replace

import pytest
from llama_cpp import _ggml, llama_cpp

from shared.errors import ModelError
from shared.settings.settings import load
from tests.support.driven import Driven
from tests.support.odd_models import write_odd_model
from workers.engine import sizing
from workers.engine.llama import kv_memory
from workers.engine.llama.backend import _LOG, load_backend
from workers.engine.llama.devices import Device
from workers.engine.llama.kv_memory import UNBOUNDED, bytes_of_a_cell, cells_that_fit
from workers.engine.llama.load import Libraries, ModelShape, load_model, new_context
from workers.engine.llama.log import LlamaLog
from workers.engine.llama.start import _computes_on_cpu
from workers.engine.sizing import GPU_SPARE_BYTES, Sizes

LIBS = Libraries(llama_cpp, _ggml.libggml, _LOG)
#: Bytes of a cell in 16-bit floats, by architecture. llama: two layers with a key and a value of 16 numbers for each of
#: two heads. lfm2: the same for one layer of four. gemma3: for all four. deepseek2: 48 numbers for each of four layers.
CELL_BYTES = {"llama": 256, "lfm2": 128, "gemma3": 512, "deepseek2": 384}
FREE_BYTES = 3 << 20


@pytest.fixture(scope="module", params=CELL_BYTES)
def odd_model(request, model_path, tmp_path_factory):
    """The architecture and the path of a model whose layers keep different things."""
    if request.param == "llama":
        return request.param, model_path
    path = tmp_path_factory.mktemp("odd") / f"{request.param}.gguf"
    write_odd_model(model_path, path, request.param)
    return request.param, path


def a_device(name="CPU"):
    return Device(0, name, "the host's memory, as if it were a device's", 0, 0)


@pytest.fixture
def loaded(odd_model):
    architecture, path = odd_model
    model = load_model(LIBS, path, [], 0)
    yield architecture, model
    llama_cpp.llama_model_free(model)


@pytest.mark.parametrize("kv_type", ["f16", "f32"])
def test_as_many_cells_are_created_as_fit_into_the_free_memory(loaded, monkeypatch, kv_type):
    architecture, model = loaded
    free = replace(a_device(), free_bytes=GPU_SPARE_BYTES + FREE_BYTES)
    monkeypatch.setattr(kv_memory, "describe", lambda _ggml, _handle: free)
    shape = ModelShape(Sizes(4, 0, 2048), 64, 1, kv_type, gpu=True)
    cells = cells_that_fit(LIBS, model, [a_device()], shape)
    cell_bytes = CELL_BYTES[architecture] * (2 if kv_type == "f32" else 1)
    assert cells == pytest.approx(FREE_BYTES / cell_bytes, rel=0.15)
    ctx = new_context(LIBS, model, replace(shape, sizes=Sizes(4, cells, 2048)))
    assert 0.8 * FREE_BYTES < _LOG.device_bytes("KV", "RS")["CPU"] <= 1.1 * FREE_BYTES
    llama_cpp.llama_free(ctx)


@pytest.mark.parametrize("kv_type", ["f16", "f32"])
def test_what_a_cell_takes_is_the_sum_over_all_layers(loaded, kv_type):
    architecture, model = loaded
    shape = ModelShape(Sizes(4, 0, 2048), 64, 1, kv_type, gpu=False)
    cell_bytes = CELL_BYTES[architecture] * (2 if kv_type == "f32" else 1)
    assert bytes_of_a_cell(LIBS, model, shape) == pytest.approx(cell_bytes, abs=40)


@pytest.mark.parametrize(("spare_bytes", "cache", "cells"), [(0, "split", 4 * 4096), (-1024, "shared", 4 * 2048)])
def test_memory_decides_whether_the_slots_of_a_cpu_share_their_cells(
    model_path, monkeypatch, spare_bytes, cache, cells
):
    monkeypatch.setattr(sizing, "SPLIT_BYTES", 4 * 4096 * (CELL_BYTES["llama"] + 40) + 4096 * spare_bytes)
    settings = load({}, None, device="cpu", n_ctx=4096)
    with contextlib.closing(load_backend(settings, model_path)) as backend:
        assert (backend.facts.cache, backend.facts.cells, backend.facts.n_ctx) == (cache, cells, 4096)


def test_a_device_that_uses_the_hosts_memory_leaves_room_for_the_cells_of_paused_jobs(model_path, monkeypatch):
    model = load_model(LIBS, model_path, [], 0)
    shape = ModelShape(Sizes(4, 0, 2048), 64, 1, "f16", gpu=True)
    free = replace(a_device(), free_bytes=GPU_SPARE_BYTES + 2 * FREE_BYTES)
    monkeypatch.setattr(kv_memory, "describe", lambda _ggml, _handle: free)
    shared, own = replace(a_device(), integrated=True), a_device()
    cells = [cells_that_fit(LIBS, model, [one], shape, paused_bytes=FREE_BYTES) for one in (own, shared)]
    assert cells[1] == pytest.approx(cells[0] / 2, rel=0.1)
    llama_cpp.llama_model_free(model)


def test_a_worker_with_a_part_of_a_gpu_leaves_the_rest_of_the_memory_to_others(model_path, monkeypatch):
    model = load_model(LIBS, model_path, [], 0)
    shape = ModelShape(Sizes(4, 0, 2048), 64, 1, "f16", gpu=True)
    free = replace(a_device(), free_bytes=GPU_SPARE_BYTES + 2 * FREE_BYTES)
    monkeypatch.setattr(kv_memory, "describe", lambda _ggml, _handle: free)
    # As if the weights were on this device, where llama.cpp maps them into the host's memory.
    _LOG.add_line(2, "load_tensors: CPU model buffer size = 10.00 MiB")
    part = GPU_SPARE_BYTES + (10 << 20) + FREE_BYTES
    alone, beside = (cells_that_fit(LIBS, model, [a_device()], shape, most_bytes=most) for most in (math.inf, part))
    assert beside == pytest.approx(alone / 2, rel=0.1)
    llama_cpp.llama_model_free(model)


def test_a_device_without_layers_does_not_bound_the_cells(model_path):
    model = load_model(LIBS, model_path, [], 0)
    shape = ModelShape(Sizes(4, 0, 2048), 64, 1, "f16", gpu=True)
    assert cells_that_fit(LIBS, model, [a_device("CUDA0")], shape) == UNBOUNDED
    llama_cpp.llama_model_free(model)


@pytest.fixture
def little_memory(monkeypatch):
    """Contexts of more than 3,000 cells cannot be created."""
    create = llama_cpp.llama_init_from_model
    monkeypatch.setattr(
        llama_cpp, "llama_init_from_model", lambda model, params: None if params.n_ctx > 3000 else create(model, params)
    )


def test_with_too_little_memory_a_context_with_fewer_cells_is_created(little_memory, model_path):
    with contextlib.closing(load_backend(load({}, None, device="cpu", threads=1), model_path)) as backend:
        assert 2000 < backend.cells <= 3000
        assert backend.n_ctx <= backend.cells
        cells = backend.cells
        assert backend.facts.warning == f"memory is short: {cells} KV cells were created instead of 8192"
        driven = Driven(backend)
        driven.submit("a", {"prompt": "dibo", "temperature": 0, "max_tokens": 5})
        driven.run_until_idle()
        assert driven.ended["a"].outcome == "succeeded"


@pytest.mark.parametrize("given", [{"kv_cells": 4096}, {"max_batch_size": 200, "kv_cells": "auto"}])
def test_neither_a_number_that_was_set_nor_too_few_cells_for_the_slots_are_created(model_path, monkeypatch, given):
    monkeypatch.setattr(llama_cpp, "llama_init_from_model", lambda _model, _params: None)
    with pytest.raises(ModelError, match=r"no context of \d+ cells"):
        load_backend(load({}, None, device="cpu", threads=1, **given), model_path)


def _log_of(*lines):
    log = LlamaLog()
    for line in lines:
        log.add_line(2, line)
    return log


@pytest.mark.parametrize(
    ("computes", "lines"),
    [
        (False, ["offloaded 3/3 layers to GPU", "CUDA0 model buffer size = 1.00 MiB"]),
        (False, ["offloaded 3/3 layers to GPU", "CPU_Mapped model buffer size = 0.20 MiB"]),
        (True, ["offloaded 2/3 layers to GPU", "CUDA0 model buffer size = 1.00 MiB"]),
        (
            True,
            ["offloaded 3/3 layers to GPU", "CPU_Mapped model buffer size = 0.20 MiB", "CPU model buffer size = 9 MiB"],
        ),
        (True, ["offloaded 3/3 layers to GPU", "CUDA_Host model buffer size = 9.00 MiB"]),
    ],
    ids=["whole model", "embeddings of tokens", "one layer", "experts", "experts in pinned memory"],
)
def test_a_worker_knows_whether_the_cpu_computes_a_part_of_a_model_on_a_gpu(model_path, computes, lines):
    model = load_model(LIBS, model_path, [], 0)
    assert _computes_on_cpu(replace(LIBS, log=_log_of(*lines)), model) is computes
    llama_cpp.llama_model_free(model)

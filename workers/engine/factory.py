"""Create an engine from the settings. Only this module maps an engine's name to a backend."""

from collections.abc import Callable, Sequence
from pathlib import Path

from shared.clock import Clock, RealClock
from shared.errors import ModelError
from shared.jobs.adapter_list import Adapter
from shared.jobs.cost import reported_weight
from shared.settings.setting import AUTO
from shared.settings.settings import Settings
from shared.settings.worker import WorkerSettings
from workers.engine.backend import UNLIMITED_CTX, DecodeFailed
from workers.engine.events import Event
from workers.engine.loop import Engine
from workers.engine.sim import SimBackend
from workers.engine.sizing import FEWEST_MEASURED_SLOTS, chunk_of, engine_settings, sizes_of, step_target_ms_of


def make_engine(
    settings: Settings,
    emit: Callable[[Event], None],
    *,
    on_ending: Callable[[], None] = lambda: None,
    model_path: Path | None = None,
    clock: Clock | None = None,
    index: int = 0,
    workers: int = 1,
    progress: Callable[[float], None] | None = None,
    adapters: Sequence[Adapter] = (),
) -> Engine:
    """Load and calibrate the model with its `adapters`, and return an engine that is ready to run.

    The caller is worker number `index` of the `workers` that share this machine. While the model is loaded, `progress`
    is called with the fraction that is loaded so far, 0 to 1. Raises ModelError if no model is set, or if the model
    cannot be loaded or run.
    """
    clock = clock or RealClock()
    if settings.engine == "sim":
        sim, chunk = _sim(settings, clock), chunk_of(settings, 0, gpu=False)
        return Engine(sim, engine_settings(settings, chunk, gpu=False), emit, clock, on_ending=on_ending)
    if model_path is None:
        raise ModelError("the engine llama needs a model: set PENSTOCK_MODEL to a GGUF file or a hub name")
    # These imports load llama.cpp's libraries, which is slow. The sim engine does not need the libraries.
    from workers.engine.llama.backend import LlamaBackend, load_backend  # noqa: PLC0415 - see above
    from workers.engine.llama.calibration import calibrate  # noqa: PLC0415 - see above

    backend = load_backend(settings, model_path, index=index, workers=workers, progress=progress, adapters=adapters)
    fit = None
    try:
        if isinstance(backend, LlamaBackend):
            measures_slots = settings.max_batch_size == AUTO and backend.slots > FEWEST_MEASURED_SLOTS
            longest_step_ms = step_target_ms_of(settings, gpu=True) / 2 if measures_slots else None
            measures_chunk = settings.prefill_chunk == AUTO
            backend.facts, fit = calibrate(
                backend, clock, longest_step_ms=longest_step_ms, measures_chunk=measures_chunk
            )
        else:
            backend.facts = backend.calibrated_facts(clock, reported_weight(settings.generated_weight))
    except DecodeFailed as fault:
        backend.close()
        raise ModelError(f"{model_path.name} was loaded, but the model fails to compute: {fault}") from fault
    on_gpu = backend.facts.layers_offloaded > 0
    return Engine(
        backend, engine_settings(settings, backend.facts.prefill_chunk, gpu=on_gpu), emit, clock, fit, on_ending
    )


def _sim(settings: WorkerSettings, clock: Clock) -> SimBackend:
    sizes = sizes_of(settings, model_ctx=UNLIMITED_CTX, gpu=False)
    return SimBackend(
        slots=sizes.slots,
        cells=sizes.cells,
        n_ctx=sizes.n_ctx,
        prefill_tps=settings.sim_prefill_tps,
        decode_tps=settings.sim_decode_tps,
        clock=clock,
    )

"""`python -m workers`: reads the settings, opens the store, loads the model, and runs the worker until it exits.

workers/exit_codes.py lists the exit codes.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from types import FrameType

from shared import failpoints
from shared import log as logging
from shared.clock import RealClock
from shared.errors import ConfigError, EmbeddedStoreError, ModelError, StoreUnavailable, StoreUnfit
from shared.jobs.adapter_list import adapter_models, listed_adapters
from shared.jobs.model_name import listed_models, served_names
from shared.log import get_logger
from shared.settings.secret_values import without_password
from shared.settings.settings import Settings, load
from shared.store import scripts
from shared.store.connection import open_client
from shared.store.keys import model_slug
from shared.store.preflight import check_fitness, require_answer
from shared.store.store import Store
from shared.tracing.traces import make_traces
from workers.duties.heartbeat import WorkerStatus, new_worker_name
from workers.engine.backend import UNLIMITED_CTX
from workers.engines import make_job_engine
from workers.exit_codes import ExitCode
from workers.exporter import Exporter
from workers.job_engine import JobEngine
from workers.model.model_file import model_file
from workers.model.progress_bar import loading_bar
from workers.place import WorkerPlace
from workers.pools.make_pools import PoolMaker
from workers.pools.pool_weights import PoolWeights
from workers.supervisor import Supervisor

log = get_logger()

#: While a starting worker waits for the store: how long it pauses between tries, and how often it logs that it waits.
_RETRY_S, _LOG_INTERVAL_S = 0.2, 10.0
#: The scripts that move jobs. Others are loaded when they are first called, by duties that can wait.
_SCRIPTS = ("renew", "claim", "append", "settle", "release")
#: The signals that request a stop.
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: Terminal sequence that shows the cursor again after the progress bar has hidden it.
_SHOW_CURSOR = "\x1b[?25h"


def main(arguments: Sequence[str] | None = None) -> int:
    # libgomp reads this when it is loaded. Without it, the busy-waiting threads of two engines that share few cores
    # would starve each other.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    for number in _STOP_SIGNALS:
        signal.signal(number, _exit_at_once)
    place, grace_s = _parse(arguments)
    if grace_s is not None:
        # The process that holds the other end is in the same terminal, and passes a Ctrl-C on as SIGTERM.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=_stop_at_end_of_stdin, args=(grace_s,), name="stdin", daemon=True).start()
    try:
        settings = load()
        return int(_swap(settings, place) if settings.models else _serve(settings, place))
    except (ConfigError, EmbeddedStoreError) as error:
        return _report_error(error, ExitCode.CONFIG)
    except StoreUnfit as error:
        return _report_error(error, ExitCode.STORE_UNFIT)
    except ModelError as error:
        return _report_error(error, ExitCode.MODEL)


def _exit_at_once(number: int, _frame: FrameType | None) -> None:
    """Handle a signal that arrives before the supervisor handles signals: no job is held, so nothing is drained.

    Without this handler, a worker that is the first process of a container would ignore the signal. The handler does
    not raise an exception: while the model loads, a C callback would discard it.
    """
    # Writing may fail because stderr is closed, or because the signal interrupted another write to it. Exit anyway.
    with suppress(OSError, ValueError, RuntimeError):
        if sys.stderr.isatty():
            sys.stderr.write(_SHOW_CURSOR)
        sys.stderr.write(f"penstock worker: {signal.Signals(number).name} before it served; it held no jobs\n")
        sys.stderr.flush()
    os._exit(ExitCode.DRAINED)


def _stop_at_end_of_stdin(grace_s: float) -> None:
    """Wait until the process that holds the other end of stdin is gone, and then drain for at most `grace_s`."""
    # Not through sys.stdin, whose lock a thread that is reading would hold at the interpreter's end.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    os.kill(os.getpid(), signal.SIGTERM)


def _parse(arguments: Sequence[str] | None) -> tuple[WorkerPlace, float | None]:
    """Return the worker's place, and how long it drains when its stdin is closed; None if it does not read stdin."""
    parser = argparse.ArgumentParser(
        prog="python -m workers", description="Run one worker. PENSTOCK_ settings configure it."
    )
    parser.add_argument(
        "--index", type=int, default=0, help="index of this worker among the workers of this machine, from 0"
    )
    parser.add_argument("--workers", type=int, default=1, help="number of workers that share this machine")
    parser.add_argument(
        "--drain-with-stdin", type=float, metavar="S", help="drain when stdin is closed, for at most S seconds"
    )
    options = parser.parse_args(arguments)
    if not 0 <= options.index < options.workers:
        parser.error(f"--index {options.index} is not one of --workers {options.workers}, counted from 0")
    return WorkerPlace(options.index, options.workers), options.drain_with_stdin


def _report_error(error: Exception, code: ExitCode) -> int:
    sys.stderr.write(f"penstock worker: {error}\n")
    return int(code)


def _serve(settings: Settings, place: WorkerPlace) -> ExitCode:
    worker = new_worker_name()
    logging.configure(settings.log_level, settings.log_format, room="worker", worker=worker)
    failpoints.arm(settings.fail_at)
    status, clock = WorkerStatus(), RealClock()
    if settings.worker_listen:
        Exporter(*settings.worker_host_port, status.state, status.metrics).start()
    traces = make_traces("penstock-worker", on=settings.traces == "on")
    scripts.preload(*_SCRIPTS)
    store = _open_store(settings, worker)
    names, path, adapters = served_names(settings), model_file(settings), listed_adapters(settings)
    maker = PoolMaker(settings, store, clock, traces)
    with loading_bar(names[0], alone=place.workers == 1) as report_progress:
        start_engine = partial(
            make_job_engine,
            settings,
            model_path=path,
            clock=clock,
            index=place.index,
            workers=place.workers,
            progress=report_progress,
            adapters=adapters,
        )
        pools = (
            maker.several(worker, names, start_engine, adapters) if adapters else maker.one(worker, names, start_engine)
        )
    _log_engine_facts(pools[0].job_loop.engine)
    status.heartbeat = pools[0].heartbeat
    weights = PoolWeights(store, {pool.model: pool.job_loop.share for pool in pools if pool.job_loop.share})
    more_work = [weights] if adapters else []
    code = Supervisor(settings, store, pools, clock=clock, more_work=more_work).run()
    traces.close()
    # The worker has stopped. While the interpreter shuts down, it gives signals with a handler their default action,
    # which would replace the exit code. It leaves ignored signals alone.
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    return code


def _swap(settings: Settings, place: WorkerPlace) -> ExitCode:
    """Run a worker that holds one of several models at a time."""
    # Imported only if needed, because the plan of a model imports the gguf package.
    from workers.swapping.keeper import ModelKeeper  # noqa: PLC0415 - see above

    worker = new_worker_name()
    logging.configure(settings.log_level, settings.log_format, room="worker", worker=worker)
    models = listed_models(settings)
    return ModelKeeper(settings, models, _open_store(settings, worker), place, RealClock()).run()


def _open_store(settings: Settings, worker: str) -> Store:
    """Wait until the store answers, check it, write the settings to it, and return it.

    Raises StoreUnfit and ConfigError.
    """
    url = settings.store_url
    client = open_client(url, name=f"penstock-worker-{worker}", prefix=settings.store_prefix)
    store = Store(client)
    logged_s = -_LOG_INTERVAL_S
    while True:
        try:
            require_answer(client, url)
            for warning in check_fitness(client):
                log.warning("store.doubt", warning=warning)
            store.configure(settings)
            for name in (served_names(settings)[0], *adapter_models(settings)):
                _check_name_is_free(store, name)
        except StoreUnavailable as error:
            if time.monotonic() - logged_s >= _LOG_INTERVAL_S:
                logged_s = time.monotonic()
                log.warning("store.awaited", url=without_password(url), error=str(error))
            time.sleep(_RETRY_S)
        else:
            return store


def _check_name_is_free(store: Store, name: str) -> None:
    """Raise ConfigError if a live worker serves another model whose name becomes the same slug in store keys."""
    slug = model_slug(name)
    for other in store.snapshot(tenants=0).workers:
        if other.live and other.model != name and model_slug(other.model) == slug:
            raise ConfigError(
                f"PENSTOCK_MODEL_NAME={name!r}: worker {other.name} serves {other.model!r}, and both names become "
                f"{slug!r} in store keys, so that the two models would share one queue"
            )


def _log_engine_facts(engine: JobEngine) -> None:
    """Log the engine's device, layers, memory, slots and rates, which help to explain why a worker is slow."""
    facts = engine.facts
    mib = {
        name: round(size / 2**20)
        for name, size in (
            ("weights_mib", facts.weights_bytes),
            ("kv_mib", facts.kv_bytes),
            ("compute_mib", facts.compute_bytes),
        )
    }
    log.info("worker.device", engine=facts.engine, device=facts.device, threads=facts.threads)
    log.info("worker.layers", model=facts.model, layers=facts.layers, offloaded=facts.layers_offloaded)
    log.info("worker.memory", **mib, sum_mib=sum(mib.values()))
    # An engine without a model of its own bounds no job.
    bounds = {} if facts.n_ctx >= UNLIMITED_CTX else {"cells": facts.cells, "n_ctx": facts.n_ctx}
    log.info("worker.slots", slots=facts.slots, **bounds)
    if facts.warning:
        log.warning("worker.doubt", warning=facts.warning)
    log.info("worker.rates", prefill_tps=facts.prefill_tps, step_ms=facts.step_ms, decode_tps=facts.decode_tps)


if __name__ == "__main__":
    sys.exit(main())

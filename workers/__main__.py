"""`python -m workers`: settings, store, model, supervisor; ends with a code of workers/exit_codes.py."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType

import structlog

from shared import failpoints
from shared import log as logging
from shared.clock import RealClock
from shared.errors import ConfigError, EmbeddedStoreError, ModelError, StoreUnavailable, StoreUnfit
from shared.jobs.model_name import served_names
from shared.settings.settings import Settings, load
from shared.store.connection import open_client, without_password
from shared.store.embedded import find_url
from shared.store.keys import model_slug
from shared.store.preflight import check_fitness
from shared.store.store import Store
from workers.duties.heartbeat import Heartbeat, WorkerStatus, new_worker_name
from workers.duties.job_loop import JobLoop
from workers.engine.factory import make_engine
from workers.engine.loop import Engine
from workers.exit_codes import ExitCode
from workers.exporter import Exporter
from workers.model.model_file import model_file
from workers.model.progress_bar import loading_bar
from workers.supervisor import Supervisor

log = structlog.get_logger()

#: How often a worker that starts before its store looks again, and how often it says so.
_LOOK_S, _SAY_S = 0.2, 10.0
#: The bar of the load hides it.
_SHOW_CURSOR = "\x1b[?25h"


@dataclass(frozen=True)
class Place:
    """Which worker this is of those that share this machine: each takes its own device, or its part of the cores."""

    index: int = 0
    workers: int = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one worker. The exit code."""
    # Read when libgomp is loaded: spinning threads of two engines on few cores starve one another.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, _leave)
    place = _place(arguments)
    try:
        return int(_serve(load(), place))
    except (ConfigError, EmbeddedStoreError) as error:
        return _sorry(error, ExitCode.CONFIG)
    except StoreUnfit as error:
        return _sorry(error, ExitCode.STORE_UNFIT)
    except ModelError as error:
        return _sorry(error, ExitCode.MODEL)


def _leave(number: int, _frame: FrameType | None) -> None:
    """Until the supervisor takes the signals over nothing is held, so there is nothing to drain.

    As the first process of a container this one would not be ended by a signal that it has no handler for. At once,
    and not by an exception: while the model loads it would be raised in a callback of C, which swallows it.
    """
    # Whatever becomes of the sentence: who reads it may be gone, or be interrupted in the midst of another.
    with suppress(OSError, ValueError, RuntimeError):
        if sys.stderr.isatty():
            sys.stderr.write(_SHOW_CURSOR)
        sys.stderr.write(f"penstock worker: {signal.Signals(number).name} before it served; it held nothing\n")
        sys.stderr.flush()
    os._exit(ExitCode.DRAINED)


def _place(arguments: Sequence[str] | None) -> Place:
    parser = argparse.ArgumentParser(prog="python -m workers", description="Run one worker, by PENSTOCK_ settings.")
    parser.add_argument("--index", type=int, default=0, help="this worker's place among those of this machine, from 0")
    parser.add_argument("--workers", type=int, default=1, help="how many workers share this machine")
    named = parser.parse_args(arguments)
    if not 0 <= named.index < named.workers:
        parser.error(f"--index {named.index} is not one of --workers {named.workers}, counted from 0")
    return Place(named.index, named.workers)


def _sorry(error: Exception, code: ExitCode) -> int:
    sys.stderr.write(f"penstock worker: {error}\n")
    return int(code)


def _serve(settings: Settings, place: Place) -> ExitCode:
    worker = new_worker_name()
    logging.configure(settings.log_level, settings.log_format, room="worker", worker=worker)
    failpoints.arm(settings.fail_at)
    status, clock = WorkerStatus(), RealClock()
    if settings.worker_listen:
        Exporter(*_host_port(settings.worker_listen), status.word, status.figures).start()
    store = _open_store(settings, worker)
    names, path = served_names(settings), model_file(settings)
    with loading_bar(names[0], alone=place.workers == 1) as tell:
        start_engine = partial(
            make_engine,
            settings,
            model_path=path,
            clock=clock,
            index=place.index,
            workers=place.workers,
            progress=tell,
        )
        job_loop = JobLoop(
            store, worker, names[0], start_engine, generated_weight=settings.generated_weight, clock=clock
        )
    _introduce(job_loop.engine)
    status.heartbeat = Heartbeat(
        worker,
        names,
        job_loop.engine,
        job_loop.claimed_jobs,
        job_loop.throughput,
        lambda: job_loop.claimer.idle_slot_steps,
    )
    return Supervisor(settings, store, job_loop, status.heartbeat, clock=clock).run()


def _open_store(settings: Settings, worker: str) -> Store:
    """The store, once it answers, found fit, configured and without a namesake. Raises StoreUnfit and ConfigError."""
    url = settings.redis_url or find_url(settings.state_path)
    client = open_client(url, name=f"penstock-worker-{worker}")
    store = Store(client)
    said_s = -_SAY_S
    while True:
        try:
            for warning in check_fitness(client):
                log.warning("store.doubt", warning=warning)
            store.configure(settings)
            _check_name(store, served_names(settings)[0])
        except StoreUnavailable as error:
            if time.monotonic() - said_s >= _SAY_S:
                said_s = time.monotonic()
                log.warning("store.awaited", url=without_password(url), error=str(error))
            time.sleep(_LOOK_S)
        else:
            return store


def _check_name(store: Store, name: str) -> None:
    """Raises ConfigError when a live worker serves another model whose jobs would lie in the same lists."""
    slug = model_slug(name)
    for other in store.snapshot(tenants=1).workers:
        if other.live and other.model != name and model_slug(other.model) == slug:
            raise ConfigError(
                f"PENSTOCK_MODEL_NAME={name!r}: the store could not tell this model's jobs from those of "
                f"{other.model!r}, which worker {other.name} serves; both are {slug!r} there"
            )


def _host_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def _introduce(engine: Engine) -> None:
    """What went where: read by whoever asks why a worker is slow."""
    facts = engine.backend.facts
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
    log.info("worker.slots", slots=facts.slots, cells=facts.cells, n_ctx=facts.n_ctx)
    if facts.warning:
        log.warning("worker.doubt", warning=facts.warning)
    log.info("worker.rates", prefill_tps=facts.prefill_tps, step_ms=facts.step_ms, decode_tps=facts.decode_tps)


if __name__ == "__main__":
    sys.exit(main())

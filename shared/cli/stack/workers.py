"""Turns the models that `penstock up` is given into its workers, and shares the machine's memory out among them."""

import json
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shared.cli.stack.extras import module_command, require_extra
from shared.cli.stack.gpus import visible_gpus
from shared.errors import ConfigError, PenstockError
from shared.jobs.adapter_list import SETTING as ADAPTERS
from shared.jobs.adapter_list import adapter_models, check_adapter_files
from shared.jobs.model_name import CountedModel, counted_model, hub_name, listed_models, served_names
from shared.settings.setting import expand_path
from shared.settings.settings import Settings, as_environ
from shared.settings.worker import WorkerSettings
from shared.store.keys import model_slug

_MOST_WORKERS = 1024

#: The settings in which one worker differs from the stack, by the names of their fields.
WorkerChange = dict[str, Any]


def counted_models(texts: Sequence[str]) -> list[CountedModel]:
    """Parse the values of `--model`. Raises ConfigError, whose message quotes the value."""
    found = []
    for text in texts:
        counted = counted_model(text)
        if counted is None or (counted.workers or 1) > _MOST_WORKERS:
            raise ConfigError(f"--model={text!r} is not [NAME=]MODEL[:N] with N from 1 to {_MOST_WORKERS}")
        found.append(counted)
    return found


def workers_of(
    settings: Settings, models: Sequence[CountedModel], upstream_models: Sequence[str], workers: str
) -> list[WorkerChange]:
    """Return the change of each worker, in the order of their indexes.

    `settings` are those of the stack with the first model, and `workers` is the value of `--workers`. Raises
    ConfigError for a model without a file, for two that would share a queue, and for options that contradict each
    other; PenstockError if the models do not fit into the memory.
    """
    if settings.engine == "upstream":
        if models:
            raise ConfigError(f"--model={models[0].model!r} is not for an upstream; name it with --upstream-model")
        changes: list[WorkerChange] = [{"upstream_model": name} for name in upstream_models]
    elif upstream_models:
        raise ConfigError(f"--upstream-model={upstream_models[0]!r} needs --upstream")
    else:
        changes = _changes(settings, models)
    changes = changes if len(changes) > 1 else [{}]
    if settings.adapters and len(changes) > 1:
        raise ConfigError(f"{ADAPTERS}={settings.adapters!r} is for one model; serve it by a command of its own")
    check_adapter_files(settings)
    _check_names([replace(settings, **change) for change in changes])
    for change in changes:
        _check_model_file(replace(settings, **change), "--model" if models else "PENSTOCK_MODEL")
    if settings.models and settings.engine_kind.loads_model:
        listed = {
            name: replace(settings, models="", model=each.model, model_name=name)
            for name, each in listed_models(settings).items()
        }
        _check_names(list(listed.values()))
        for each in listed.values():
            _check_model_file(each, "PENSTOCK_MODELS")
    counts = _counts(settings, models, len(changes), workers)
    if settings.models and settings.engine_kind.loads_model and counts[0] > 1:
        _check_memory_in_turn(settings, counts[0])
    found = [change for change, count in zip(changes, counts, strict=True) for _ in range(count)]
    return _with_shares(settings, found) if settings.engine_kind.loads_model and len(found) > 1 else found


def embedding_worker(settings: Settings, model: str) -> WorkerChange:
    """Return the change of the worker that embeds documents. Raises ConfigError if there is no such model file."""
    # Workers of text take the memory of their GPUs as if they were alone on them.
    change: WorkerChange = {"engine": "llama", "device": "cpu", "pooling": "auto"}
    # Also of a stack with PENSTOCK_MODELS, this worker has one model.
    change |= {"models": "", "adapters": "", "model": model, "model_name": ""}
    own = replace(settings, **change)
    require_extra("worker")
    _check_model_file(own, "--embedding-model")
    return change


def _changes(settings: Settings, models: Sequence[CountedModel]) -> list[WorkerChange]:
    """Return a change for each of several models that this machine computes, or simulates."""
    if len(models) > 1 and settings.model_name != models[0].name:
        raise ConfigError(f"PENSTOCK_MODEL_NAME={settings.model_name!r} names one model; write --model NAME=MODEL")
    changes: list[WorkerChange] = [{"model": each.model, "model_name": each.name} for each in models]
    if settings.engine == "sim":
        for change in changes:
            # This engine would serve all of them as `sim`.
            change["model_name"] = served_names(replace(settings, **change, engine="llama"))[0]
    return changes


def _check_names(workers: Sequence[Settings]) -> None:
    """Raise ConfigError if two models have the same name, or names that become the same in the store's keys."""
    seen: dict[str, str] = {}
    for name in [name for worker in workers for name in (served_names(worker)[0], *adapter_models(worker))]:
        slug = model_slug(name)
        if slug in seen:
            raise ConfigError(f"{seen[slug]!r} and {name!r} would share a queue; write --model NAME=MODEL for one")
        seen[slug] = name


def _check_model_file(settings: WorkerSettings, source: str) -> None:
    """Raise ConfigError if the model is a path at which there is no file. `source` is what names the model."""
    if not settings.engine_kind.loads_model or not settings.model or hub_name(settings.model) is not None:
        return
    path = expand_path(source, settings.model)
    if not path.is_file():
        what = "a folder" if path.is_dir() else "no file"
        raise ConfigError(f"{source}={settings.model!r} is {what}; name a GGUF file, or org/repo for one on a hub")


def _counts(settings: Settings, models: Sequence[CountedModel], changes: int, workers: str) -> list[int]:
    """Return the number of workers of each model. Raise ConfigError if `workers` is invalid."""
    named = [each.workers for each in models]
    if changes > 1 or any(named):
        if workers != "auto":
            raise ConfigError(f"--workers={workers!r} is for one model without a number; write --model MODEL:N")
        return [count or 1 for count in named] or [1] * changes
    if workers == "auto":
        return [max(1, visible_gpus()) if _uses_gpus(settings) else 1]
    if not re.fullmatch(r"[0-9]{1,4}", workers) or not 1 <= int(workers) <= _MOST_WORKERS:
        raise ConfigError(f"--workers={workers!r} is neither auto nor a number from 1 to {_MOST_WORKERS}")
    return [int(workers)]


def _uses_gpus(settings: Settings) -> bool:
    return settings.engine_kind.loads_model and settings.device == "auto" and settings.n_gpu_layers != 0


def _with_shares(settings: Settings, workers: Sequence[WorkerChange]) -> list[WorkerChange]:
    """Return the changes of workers that each have a part of a GPU, because a worker takes all that is free there.

    Raises PenstockError if they do not fit into the memory of this machine; why is written to stderr.
    """
    models = [replace(settings, **worker).model for worker in workers]
    # The demo model is not written yet, and takes next to nothing. Devices by number were chosen by the operator.
    if not all(models) or settings.device not in {"auto", "cpu"}:
        return list(workers)
    # To count the GPUs is cheap; to ask llama.cpp about their memory is not.
    planned = settings if _uses_gpus(settings) and visible_gpus() else replace(settings, device="cpu")
    command = module_command("workers.plan", "--here", "--json", "--", *(f"{model}:1" for model in models))
    environ = os.environ | as_environ(planned)
    done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise PenstockError("the workers have no place; the output above says why")
    places: list[dict[str, Any]] = json.loads(done.stdout)
    return [worker | _part(place) for worker, place in zip(workers, places, strict=True)]


def _check_memory_in_turn(settings: Settings, workers: int) -> None:
    """Raise PenstockError if workers on the CPU that hold one of several models each could take more than the memory.

    Workers on GPUs take what is free there, or what PENSTOCK_GPU_MEMORY_BYTES allows.
    """
    if settings.device not in {"auto", "cpu"} or (_uses_gpus(settings) and visible_gpus()):
        return
    models = [each.model for each in listed_models(settings).values()]
    command = module_command("workers.plan", "--here", "--json", f"--at-once={workers}", "--", *models)
    environ = os.environ | as_environ(replace(settings, device="cpu"))
    done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise PenstockError(
            f"{workers} workers of PENSTOCK_MODELS have no place for the largest models at once; the output above says "
            "what they take"
        )


def _part(place: dict[str, Any]) -> WorkerChange:
    if place["gpu_memory_bytes"] is None:
        return {}
    return {"device": place["device"], "gpu_memory_bytes": place["gpu_memory_bytes"]}

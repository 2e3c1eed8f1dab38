"""`penstock plan`: what a model takes, how many jobs fit into a memory, and how many are done per second."""

from typing import Annotated

import typer

from shared.cli.commands.services import exec_module
from shared.cli.reach import Json, StateDir, store_client
from shared.cli.stack.extras import require_extra
from shared.errors import ConfigError
from shared.jobs.adapter_list import joined_adapters
from shared.jobs.model_name import counted_model, served_names
from shared.settings.settings import Settings, load


def plan(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="A GGUF file or org/repo. Of several, each may be [NAME=]MODEL[:N]."),
    ],
    *,
    here: Annotated[bool, typer.Option("--here", help="Plan for the GPUs and the memory of this machine.")] = False,
    gpu: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Free memory of the GPU, such as 80GiB. Default: plan for a CPU.")
    ] = None,
    users: Annotated[int | None, typer.Option(min=1, help="Users who have a job inflight at the same time.")] = None,
    prompt: Annotated[int | None, typer.Option(min=1, metavar="TOKENS", help="Prompt tokens of a job.")] = None,
    answer: Annotated[int | None, typer.Option(min=1, metavar="TOKENS", help="Answer tokens of a job.")] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="A LoRA adapter of the model. Default: PENSTOCK_ADAPTERS."),
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Jobs that run at once. Default: PENSTOCK_MAX_BATCH_SIZE.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, metavar="TOKENS", help="The longest job. Default: PENSTOCK_N_CTX.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="TPS", help="Weighted tokens per second of one worker, to predict jobs.")
    ] = None,
    at_once: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Workers on the CPU that hold one of the models each, in turn (--models)."
        ),
    ] = None,
    measured: Annotated[
        bool, typer.Option("--measured", help="Use the rate that live workers of this model report to the store.")
    ] = False,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Say what a model takes and what a worker with it can do, from the header of its file.

    For several models, or for N workers with one, say how they share the memory.
    """
    require_extra("worker", ("gguf", "huggingface_hub", "numpy"))
    if measured and rate is not None:
        raise ConfigError(f"--rate={rate} and --measured exclude each other")
    if measured and (prompt is None or answer is None):
        raise ConfigError("--measured: name --prompt and --answer too, the tokens of a job")
    if measured and len(models) > 1:
        raise ConfigError("--measured is for the plan of one model")
    counted = counted_model(models[0])
    own = models[0] if counted is None else counted.model
    settings = load(model=own, state_dir=state_dir, adapters=joined_adapters(adapter or []))
    if measured:
        rate = _measured_rate(settings, state_dir)
    numbers = {"users": users, "prompt": prompt, "answer": answer, "slots": slots, "context": context, "rate": rate}
    more: dict[str, int | float | str | None] = {**numbers, "at-once": at_once, "gpu": gpu}
    options = [f"--{name}={value}" for name, value in more.items() if value is not None]
    flags = [*(["--here"] if here else []), *(["--json"] if json else [])]
    # `--` ends the options, so that a path may begin with a dash.
    exec_module(["workers.plan", *options, *flags, "--", *models], settings)


def _measured_rate(settings: Settings, state_dir: str | None) -> float:
    """Return the mean rate of the live workers of the model, in weighted tokens per second. Raises ConfigError."""
    from shared.store.store import Store

    name = served_names(settings)[0]
    views = Store(store_client(state_dir)).snapshot(tenants=0).workers
    rates = [rate for view in views if view.live and view.model == name and (rate := _rate(view.facts)) > 0]
    if not rates:
        raise ConfigError(f"--measured: no live worker reports a rate for the model {name!r}; give --rate")
    return sum(rates) / len(rates)


def _rate(facts: dict[str, str]) -> float:
    try:
        return float(facts.get("mu_wtps", ""))
    except ValueError:  # not reported, or written by another program
        return 0.0

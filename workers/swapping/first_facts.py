"""States what is known about a model before it was loaded for the first time, from the header of its file."""

from pathlib import Path

from shared.jobs.model_name import hub_name
from shared.settings.settings import Settings
from workers.gguf_header import Header, read_local_header
from workers.model.model_file import local_parts
from workers.plan.layout import layout_of
from workers.plan.memory import fit
from workers.swapping.loadable import Loadable

#: How long a worker takes to start without a model, and how fast a disk is, until the first load was measured.
_START_S, _DISK_BYTES_PER_S = 3.0, 1e9
#: llama.cpp's numbers of the ways to combine the vectors of tokens (`llama_pooling_type`).
_POOLING = {1: "mean", 2: "cls", 3: "last", 4: "rank"}


def first_figures(settings: Settings, name: str, model: str) -> Loadable:
    """Return the loadable of a model. Of one that is on a hub, the figures are guesses.

    Raises ModelError, and OSError if a file is gone by then.
    """
    if not settings.engine_kind.loads_model:
        return Loadable(name, _START_S, 1, 0, {"counts_words": "true"})
    if hub_name(model) is not None:
        return unknown_figures(name)
    headers = [read_local_header(path) for path in local_parts(model)]
    layout = layout_of(headers)
    sizes = fit(layout, settings, None).sizes
    size_bytes = sum(Path(path).stat().st_size for path in local_parts(model))
    facts: dict[str, str | int | float] = {"n_ctx": sizes.n_ctx, "pooling": _pooling_of(headers[0], layout.embeds)}
    return Loadable(name, _START_S + size_bytes / _DISK_BYTES_PER_S, sizes.slots, sizes.cells, facts)


def unknown_figures(name: str) -> Loadable:
    """Return the loadable of a model whose file was not read."""
    return Loadable(name, _START_S, 1, 0, {})


def _pooling_of(header: Header, embeds: bool) -> str:
    if not embeds:
        return ""
    architecture = header.values.get("general.architecture")
    number = header.values.get(f"{architecture}.pooling_type")
    return _POOLING.get(number, "mean") if isinstance(number, int) else "mean"

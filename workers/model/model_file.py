"""From PENSTOCK_MODEL to a file on this machine."""

from pathlib import Path

from shared.errors import ModelError
from shared.jobs.model_name import SPLIT, hub_name
from shared.settings.settings import Settings


def model_file(settings: Settings) -> Path | None:
    """The GGUF file to load, the first part of one in several; None where no model is named or needed.

    A hub name is downloaded first, which may take long. Raises ModelError.
    """
    if settings.engine == "sim" or not settings.model:
        return None
    name = hub_name(settings.model)
    if name is not None:
        # The library takes half a second to import, and paths do without.
        from workers.model.hf_download import fetch  # noqa: PLC0415 - see above

        return fetch(name)
    path = Path(settings.model).expanduser()
    if path.is_dir():
        held = ", ".join(sorted(file.name for file in path.glob("*.gguf"))[:20]) or "no GGUF file"
        raise ModelError(f"the model {path} is a folder; name a file (it holds {held})")
    return _first_part(path)


def _first_part(path: Path) -> Path:
    """The part that llama.cpp wants to be told of; it finds the others beside it. Raises ModelError."""
    part = SPLIT.fullmatch(path.name)
    if part is None:
        return path
    parts = [path.with_name(f"{part[1]}-{i:05d}-of-{part[3]}.gguf") for i in range(1, int(part[3]) + 1)]
    missing = [file.name for file in parts if not file.is_file()]
    if missing:
        lacks = ", ".join(missing[:20])
        raise ModelError(f"the model {path} is one of {len(parts)} parts, and these are missing: {lacks}")
    return parts[0]

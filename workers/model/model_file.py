"""Resolves PENSTOCK_MODEL, which is a path or a hub name, to a GGUF file on this machine."""

from pathlib import Path

from shared.errors import ModelError
from shared.jobs.model_name import hub_name, split_parts
from shared.settings.worker import WorkerSettings


def model_file(settings: WorkerSettings) -> Path | None:
    """Return the GGUF file to load, or the first part of a split model, or None if no model is named or needed.

    A model that is named by a hub name is downloaded first, which may take a long time. Raises ModelError.
    """
    if not settings.engine_kind.loads_model or not settings.model:
        return None
    name = hub_name(settings.model)
    if name is not None:
        # Imported only if needed, because importing huggingface-hub takes half a second.
        from workers.model.hf_download import fetch  # noqa: PLC0415 - see above

        return fetch(name)
    return local_parts(settings.model)[0]


def local_parts(model: str) -> list[Path]:
    """Return the files of the model at the path `model`: one, or all parts of a split model in order.

    llama.cpp loads the first part and finds the others in its folder. Raises ModelError if `model` is a folder, or if a
    part is missing.
    """
    try:
        path = Path(model).expanduser()
    except RuntimeError:
        raise ModelError(f"the model {model!r} is in the home folder of a user who does not exist") from None
    if path.is_dir():
        found = ", ".join(sorted(file.name for file in path.glob("*.gguf"))[:20]) or "no GGUF file"
        raise ModelError(f"the model {path} is a folder; name a file (it contains {found})")
    parts = split_parts(path)
    missing = [file.name for file in parts if len(parts) > 1 and not file.is_file()]
    if missing:
        names = ", ".join(missing[:20])
        raise ModelError(f"the model {path} is one of {len(parts)} parts, and these are missing: {names}")
    return parts

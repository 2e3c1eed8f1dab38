"""Selects the files of a repo that a hub name refers to: one GGUF file, or all parts of a split one; does no I/O."""

import re
from collections.abc import Iterable

from shared.errors import ModelError
from shared.jobs.model_folder import SPLIT
from shared.jobs.model_name import HubName

#: Matches image projectors, which are GGUF files in the same repo as a model but are not models.
_PROJECTOR = re.compile(r"(^|[-._/])mmproj([-._]|$)", re.IGNORECASE)
#: The most models that an error message lists.
_MAX_LISTED = 20


def choose(name: HubName, files: Iterable[str]) -> list[str]:
    """Return the files to load (all parts in order). Raises ModelError unless exactly one model matches `name`."""
    models = _models(files)
    if not models:
        raise ModelError(f"{name.repo} contains no GGUF file, and no other kind of model can be served")
    matching = [stem for stem in models if _matches(stem, models[stem], name.selector)]
    if not matching:
        raise ModelError(f"{name.repo} contains no model {name.selector!r}; it contains {_list(models, models)}")
    if len(matching) > 1:
        raise ModelError(
            f"{name.repo}{f':{name.selector}' if name.selector else ''} matches several models: "
            f"{_list(models, matching)}; name one, such as {name.repo}:{models[matching[0]][0].rpartition('/')[2]}"
        )
    return _all_parts(name.repo, models[matching[0]])


def _models(files: Iterable[str]) -> dict[str, list[str]]:
    """Return the models as {path without part number and extension: the model's files in order}."""
    models: dict[str, list[str]] = {}
    for file in sorted(files):
        if file.lower().endswith(".gguf") and not _PROJECTOR.search(file):
            part = SPLIT.fullmatch(file)
            models.setdefault(part[1] if part else file[: -len(".gguf")], []).append(file)
    return models


def _matches(stem: str, files: list[str], selector: str) -> bool:
    if not selector:
        return True
    if selector.lower().endswith(".gguf"):
        return any(selector in {file, file.rpartition("/")[2]} for file in files)
    # A selector must match a whole quantization name: Q4_K does not match Q4_K_M, and Q4_XS does not match IQ4_XS.
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(selector)}(?![A-Za-z0-9_])", stem, re.IGNORECASE) is not None


def _all_parts(repo: str, files: list[str]) -> list[str]:
    """Return the files of one model. Raises ModelError if a part is missing."""
    part = SPLIT.fullmatch(files[0])
    if part is None:
        return files
    present = {found[2] for file in files if (found := SPLIT.fullmatch(file)) is not None}
    missing = [f"{i:05d}" for i in range(1, int(part[3]) + 1) if f"{i:05d}" not in present]
    if missing:
        raise ModelError(f"{repo}: of the {int(part[3])} parts of {part[1]} these are missing: {', '.join(missing)}")
    return files


def _list(models: dict[str, list[str]], stems: Iterable[str]) -> str:
    names = [models[stem][0] for stem in stems]
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more

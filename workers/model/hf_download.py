"""A hub name to files on this machine, through huggingface-hub: found, checked against the disk, downloaded.

Whatever is in the library's cache (HF_HOME, HF_HUB_CACHE) is not downloaded again, and is served when the
hub cannot be reached. HF_ENDPOINT names another hub, HF_TOKEN opens private and gated repos.
"""

import os
import shutil
from pathlib import Path

import structlog

from shared.errors import ModelError
from shared.jobs.model_name import HubName
from workers.model.hf_files import choose

# Read when the library is imported: a server sends no figures of its use.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import huggingface_hub as hf
from huggingface_hub import constants
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError is its HTTP client's, whichever that is
    GatedRepoError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

log = structlog.get_logger()

#: How long the hub may take to say what a repo holds.
_PATIENCE_S = 10.0


def fetch(name: HubName) -> Path:
    """The model's (first) file on this machine. Raises ModelError: the name, the hub or the disk is at fault."""
    revision = name.revision or None
    try:
        repo = hf.HfApi().model_info(name.repo, revision=revision, files_metadata=True, timeout=_PATIENCE_S)
    except GatedRepoError:
        raise ModelError(f"{name.repo} is gated: accept its terms on the hub, then set HF_TOKEN") from None
    except RepositoryNotFoundError:
        raise ModelError(f"{constants.ENDPOINT} knows no repo {name.repo} (a private one needs HF_TOKEN)") from None
    except RevisionNotFoundError:
        raise ModelError(f"{name.repo} has no revision {name.revision!r}") from None
    except HFValidationError as fault:
        raise ModelError(f"{name.repo} is no name of a repo: {fault}") from None
    except (HTTPError, OSError, ValueError) as fault:  # ValueError: what answers is no hub
        return _from_cache(name, fault)
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in repo.siblings or []}
    files = choose(name, sizes)
    return _download(name, repo.sha, {file: sizes[file] for file in files})


def _download(name: HubName, commit: str | None, sizes: dict[str, int]) -> Path:
    there = {file: hf.try_to_load_from_cache(name.repo, file, revision=commit) for file in sizes}
    missing = [file for file, path in there.items() if not isinstance(path, str)]
    if missing:
        _check_disk(name, sum(sizes[file] for file in missing))
        mib = round(sum(sizes[file] for file in missing) / 2**20)
        log.info("model.download", repo=name.repo, files=len(missing), mib=mib, into=constants.HF_HUB_CACHE)
    try:
        # By the revision's own name, which the cache then knows too.
        paths = [hf.hf_hub_download(name.repo, file, revision=name.revision or None) for file in sizes]
    except Exception as fault:  # its faster ways to download raise RuntimeError, ValueError and errors of their own
        raise ModelError(f"{name.repo} could not be downloaded from {constants.ENDPOINT}: {_said(fault)}") from fault
    if missing:
        log.info("model.downloaded", repo=name.repo, files=len(missing))
    return Path(paths[0])


def _check_disk(name: HubName, needed: int) -> None:
    folder = Path(constants.HF_HUB_CACHE)
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ModelError(
            f"{name.repo} needs {needed / 2**30:.2f} GiB more, and {folder} has {free / 2**30:.2f} GiB free; "
            f"HF_HUB_CACHE names another place"
        )


def _from_cache(name: HubName, fault: Exception) -> Path:
    """What an earlier start downloaded, while the hub cannot be asked. Raises ModelError."""
    try:
        # No pattern: the folder is asked for as it is, whether or not it holds the whole repo.
        folder = Path(
            hf.snapshot_download(name.repo, revision=name.revision or None, allow_patterns=[], local_files_only=True)
        )
        files = choose(name, [str(path.relative_to(folder)) for path in folder.rglob("*.gguf")])
    except (LocalEntryNotFoundError, ModelError):
        raise ModelError(
            f"{name.repo} is not in {constants.HF_HUB_CACHE}, and {constants.ENDPOINT} cannot be asked: {_said(fault)}"
        ) from None
    log.warning("model.hub_away", repo=name.repo, why=_said(fault), instead=str(folder / files[0]))
    return folder / files[0]


def _said(fault: Exception) -> str:
    """The fault's first line: the library adds advice below it."""
    lines = str(fault).strip().splitlines()
    return f"{type(fault).__name__}: {lines[0]}" if lines else type(fault).__name__

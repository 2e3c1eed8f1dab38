"""Downloads a model's files from a hub with huggingface-hub, after checking that the disk has enough space.

Files in the library's cache (HF_HOME, HF_HUB_CACHE) are not downloaded again, and are used if the hub cannot be
reached. HF_ENDPOINT selects another hub. HF_TOKEN gives access to private and gated repos.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub as hf
from huggingface_hub import constants
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError is that of its HTTP client, which differs by version
    GatedRepoError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from shared.errors import ModelError
from shared.jobs.model_name import HubName
from shared.log import get_logger
from workers.model.hf_files import choose

log = get_logger()

#: Timeout of the request for a repo's list of files.
HUB_TIMEOUT_S = 10.0


class HubAway(ModelError):
    """The hub cannot be reached, or another server answers; the message is the first line of the cause's."""


@dataclass(frozen=True)
class Listing:
    """The files of one model on the hub: their sizes in bytes by path, all parts in order, and the repo's commit."""

    commit: str | None
    sizes: dict[str, int]


def fetch(name: HubName) -> Path:
    """Download the model if needed, and return the path of its file, or of its first part. Raises ModelError."""
    try:
        listing = list_files(name)
    except HubAway as fault:
        return cached_file(name, fault)
    return _download(name, listing)


def list_files(name: HubName) -> Listing:
    """Ask the hub for the files of a model. Raises HubAway, or ModelError if the hub has no such model."""
    revision = name.revision or None
    try:
        repo = hf.HfApi().model_info(name.repo, revision=revision, files_metadata=True, timeout=HUB_TIMEOUT_S)
    except GatedRepoError:
        raise ModelError(f"{name.repo} is gated: accept its terms on the hub, then set HF_TOKEN") from None
    except RepositoryNotFoundError:
        raise ModelError(f"{constants.ENDPOINT} has no repo {name.repo} (a private one needs HF_TOKEN)") from None
    except RevisionNotFoundError:
        raise ModelError(f"{name.repo} has no revision {name.revision!r}") from None
    except HFValidationError as fault:
        raise ModelError(f"{name.repo} is not a valid repo name: {fault}") from None
    except (HTTPError, OSError, ValueError) as fault:  # ValueError: the server is not a hub
        raise HubAway(first_line(fault)) from None
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in repo.siblings or []}
    files = choose(name, sizes)
    return Listing(repo.sha, {file: sizes[file] for file in files})


def _download(name: HubName, listing: Listing) -> Path:
    sizes = listing.sizes
    cached = {file: hf.try_to_load_from_cache(name.repo, file, revision=listing.commit) for file in sizes}
    missing = [file for file, path in cached.items() if not isinstance(path, str)]
    if missing:
        _check_disk(name, sum(sizes[file] for file in missing))
        mib = round(sum(sizes[file] for file in missing) / 2**20)
        log.info("model.download", repo=name.repo, files=len(missing), mib=mib, into=constants.HF_HUB_CACHE)
    try:
        # Download by the revision's name rather than its commit, so that the cache can also resolve that name later.
        paths = [hf.hf_hub_download(name.repo, file, revision=name.revision or None) for file in sizes]
    except Exception as fault:  # the download backends raise RuntimeError, ValueError and exceptions of their own
        raise ModelError(
            f"{name.repo} could not be downloaded from {constants.ENDPOINT}: {first_line(fault)}"
        ) from fault
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
            f"set HF_HUB_CACHE to use another folder"
        )


def cached_file(name: HubName, fault: HubAway) -> Path:
    """Return the file that an earlier start downloaded, because the hub cannot be reached. Raises ModelError."""
    try:
        # With an empty list of patterns, the library returns the cached folder even if files of the repo are missing.
        folder = Path(
            hf.snapshot_download(name.repo, revision=name.revision or None, allow_patterns=[], local_files_only=True)
        )
        files = choose(name, [str(path.relative_to(folder)) for path in folder.rglob("*.gguf")])
    except (LocalEntryNotFoundError, ModelError):
        raise ModelError(
            f"{name.repo} is not in {constants.HF_HUB_CACHE}, and {constants.ENDPOINT} cannot be reached: {fault}"
        ) from None
    log.warning("model.hub_away", repo=name.repo, why=str(fault), instead=str(folder / files[0]))
    return folder / files[0]


def first_line(fault: Exception) -> str:
    """Return the exception's type and the first line of its message; the library adds advice on further lines."""
    lines = str(fault).strip().splitlines()
    return f"{type(fault).__name__}: {lines[0]}" if lines else type(fault).__name__

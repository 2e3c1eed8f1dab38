"""The version of this Penstock, and the commit from which it was built."""

import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

#: The commit of a build; `git archive`, from which releases are built, replaces the placeholder (see .gitattributes).
_COMMIT = "$Format:%H$"
_ROOT = Path(__file__).parents[1]


@cache  # reading the package's metadata takes half a millisecond
def package_version() -> str:
    """Return the version of the installed Penstock, or "0" if it is not installed as a package."""
    try:
        return metadata.version("penstock")
    except metadata.PackageNotFoundError:
        return "0"


def version_text() -> str:
    version, commit = package_version(), _commit()
    shown = "(not installed)" if version == "0" else version
    return f"penstock {shown} (commit {commit})" if commit else f"penstock {shown}"


def _commit() -> str:
    """Return the commit of the build or of the checkout, there with `-dirty` if files differ from it; else ""."""
    if not _COMMIT.startswith("$"):
        return _COMMIT
    # An environment inside another project's checkout must not get that project's commit.
    if not (_ROOT / ".git").exists():
        return ""
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""

"""Builds a release of the checked-out commit into build/release: `python -m tools.release`.

The wheel and the sdist are built twice, in different folders, and must be equal byte by byte. The wheel is built from
the sdist, and is installed into a new environment, whose `penstock` must run and name the version and the commit.
"""

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
RELEASE = ROOT / "build" / "release"
_BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def build(commit: str, epoch: int, folder: Path) -> list[Path]:
    """Build the sdist of a commit, and the wheel of the sdist, in a new folder. Return their paths."""
    exported, unpacked, built = (folder / name for name in ("exported", "unpacked", "built"))
    for path in (exported, unpacked, built):
        path.mkdir(parents=True)
    _unpack(io.BytesIO(run(["git", "archive", "--format=tar", commit], ROOT)), exported)
    # The debug information of the compiled module would hold the path of this folder.
    environ = {"SOURCE_DATE_EPOCH": str(epoch), "CFLAGS": "-g0"}
    run([sys.executable, "-c", _BUILD, "build_sdist", str(built)], exported, environ)
    (sdist,) = built.iterdir()
    repack(sdist, epoch)
    _unpack(sdist, unpacked)
    (source,) = unpacked.iterdir()
    run([sys.executable, "-c", _BUILD, "build_wheel", str(built)], source, environ)
    return sorted(built.iterdir())


def repack(sdist: Path, epoch: int) -> None:
    """Write a .tar.gz again without the order, the times, the owners and the permissions of this machine's files."""
    with tarfile.open(sdist) as archive:
        files = {
            member.name: (member.mode & 0o100, file.read())
            for member in archive.getmembers()
            if (file := archive.extractfile(member)) is not None
        }
    with (
        sdist.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, (is_executable, content) in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(content), epoch, 0o755 if is_executable else 0o644
            archive.addfile(member, io.BytesIO(content))


def check_installed(wheel: Path, commit: str, folder: Path) -> None:
    """Install the wheel with the pinned packages of the door into a new environment, and run its `penstock`."""
    run([sys.executable, "-m", "venv", str(folder)], ROOT)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    for locked in ("build.txt", "web.txt"):
        run([*pip, "install", "--quiet", "--require-hashes", "-r", str(ROOT / "requirements" / locked)], folder)
    run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], folder)
    penstock = str(folder / "bin" / "penstock")
    shown = run([penstock, "--version"], folder).decode().strip()
    expected = f"penstock {metadata.version('penstock')} (commit {commit})"
    if shown != expected:
        raise SystemExit(f"the installed wheel says {shown!r} instead of {expected!r}")
    if not run([penstock, "--help"], folder):
        raise SystemExit("the installed wheel's `penstock --help` prints nothing")


def checksums(paths: Sequence[Path]) -> str:
    """Return the lines that `sha256sum --check` reads."""
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in paths)


def main() -> None:
    """Build the release, check it, and write it with its bill of materials and the checksums to build/release."""
    if changed := run(["git", "status", "--porcelain", "--untracked-files=no"], ROOT).decode():
        raise SystemExit(f"a release is built from a commit; these files differ from it:\n{changed.rstrip()}")
    commit, epoch = run(["git", "log", "-1", "--format=%H %ct"], ROOT).decode().split()
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as folder:
        built, again = (build(commit, int(epoch), Path(folder) / name) for name in ("built", "again"))
        if (first := checksums(built)) != (second := checksums(again)):
            raise SystemExit(f"two builds of {commit} differ:\n{first}{second.rstrip()}")
        (wheel,) = (path for path in built if path.suffix == ".whl")
        check_installed(wheel, commit, Path(folder) / "installed")
        shutil.rmtree(RELEASE, ignore_errors=True)
        RELEASE.mkdir(parents=True)
        for path in built:
            shutil.copy(path, RELEASE)
    bom = RELEASE / f"penstock-{metadata.version('penstock')}.cdx.json"
    run([sys.executable, "-m", "tools.sbom", str(bom)], ROOT)
    (RELEASE / "SHA256SUMS").write_text(checksums(sorted(RELEASE.iterdir())))
    sys.stdout.write("".join(f"{path.relative_to(ROOT)}\n" for path in sorted(RELEASE.iterdir())))


def run(command: Sequence[str], folder: Path, environ: dict[str, str] | None = None) -> bytes:
    """Run a command in a folder and return its output; if it fails, end with its error."""
    done = subprocess.run(command, cwd=folder, env=os.environ | (environ or {}), capture_output=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr.decode(errors='replace').rstrip()}")
    return done.stdout


def _unpack(archive: io.BytesIO | Path, folder: Path) -> None:
    with tarfile.open(archive) if isinstance(archive, Path) else tarfile.open(fileobj=archive) as opened:
        opened.extractall(folder, filter="data")


if __name__ == "__main__":
    main()

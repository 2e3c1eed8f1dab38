"""Compiles the tests as pytest does, so that the processes of `make test` need not each do it again.

pytest rewrites the assertions of a test file when it imports it, and keeps the result. Processes that start together
find nothing kept, and each rewrites all files, which takes ten seconds of CPU time. This program does it once.
"""

import ast
import importlib.util
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from _pytest.assertion import rewrite

ROOT = Path(__file__).parents[1]
#: The files whose assertions pytest rewrites.
_PATTERNS = ("test_*.py", "conftest.py")


def stale(folder: Path) -> Iterator[Path]:
    """Yield the test files below the folder that pytest would compile."""
    for pattern in _PATTERNS:
        for path in folder.rglob(pattern):
            if rewrite._read_pyc(path, _kept(path)) is None:  # noqa: SLF001 - pytest's form of a file
                yield path


def compile_test(path: Path) -> None:
    """Rewrite and compile one file. Raises SyntaxError if it is no Python, and OSError if it cannot be written."""
    source = path.read_bytes()
    tree = ast.parse(source, filename=str(path))
    rewrite.rewrite_asserts(tree, source, str(path))
    code = compile(tree, str(path), "exec", dont_inherit=True)
    kept = _kept(path)
    kept.parent.mkdir(exist_ok=True)
    unfinished = kept.with_name(f"{kept.name}.{os.getpid()}")
    with unfinished.open("wb") as file:
        rewrite._write_pyc_fp(file, importlib.util.source_hash(source), code)  # noqa: SLF001 - as above
    unfinished.replace(kept)


def _kept(path: Path) -> Path:
    """Return the file in which pytest keeps the compiled test file."""
    return rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)


def main() -> None:
    paths = [path for name in sys.argv[1:] for path in stale(ROOT / name)]
    # Starting processes takes longer than compiling a few files.
    if len(paths) < 50:
        for path in paths:
            compile_test(path)
        return
    with ProcessPoolExecutor() as pool:
        list(pool.map(compile_test, paths, chunksize=10))


if __name__ == "__main__":
    main()

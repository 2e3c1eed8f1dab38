"""Writes a demo model to a path, the trained one or a seeded random one: `python -m workers.demo PATH [--random]`."""

import argparse
import shutil
import sys
from pathlib import Path

from workers.demo import DEMO_MODEL_NAME, demo_model_path
from workers.demo.random_gguf import write_random_model

#: NumPy's generator takes any whole number that is not below 0; this many suffice.
MAX_SEED = 2**32 - 1


def main(arguments: list[str] | None = None) -> None:
    """Write the model and say so in one line on stdout.

    `arguments` are those of the command line unless given. Exits with 2 when they cannot be
    followed, with 1 when the file cannot be written; nothing at the path has changed then.
    """
    parser = _parser()
    asked = parser.parse_args(arguments)
    path: Path = asked.path
    if complaint := _complaint(path, force=asked.force, random=asked.random, seed=asked.seed):
        parser.error(complaint)
    # Beside the target, so that the rename is on one file system and never shows half a model.
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        if asked.random:
            write_random_model(unfinished, seed=1 if asked.seed is None else asked.seed)
        else:
            shutil.copyfile(demo_model_path(), unfinished)
        unfinished.replace(path)
    except OSError as fault:
        unfinished.unlink(missing_ok=True)
        parser.exit(1, f"{parser.prog}: {path} cannot be written: {fault.strerror}\n")
    kind = "seeded random weights" if asked.random else "trained on little stories"
    sys.stdout.write(f"{path}: {DEMO_MODEL_NAME}, {kind}, {path.stat().st_size / 1e6:.1f} MB\n")


def _complaint(path: Path, *, force: bool, random: bool, seed: int | None) -> str | None:
    """Say in a sentence why the model cannot be written as asked for, or return None."""
    trained = demo_model_path()
    complaints = (
        (seed is not None and not random, f"--seed {seed} is for a random model; add --random"),
        (seed is not None and not 0 <= seed <= MAX_SEED, f"--seed {seed} is not in 0..{MAX_SEED}"),
        (path.is_dir(), f"PATH {str(path)!r} is a folder; name a file in it"),
        (not path.parent.is_dir(), f"PATH {str(path)!r}: there is no folder {str(path.parent)!r}"),
        (path.exists() and not force, f"PATH {str(path)!r} is already there; --force replaces it"),
        (not random and not trained.is_file(), f"there is no trained model at {trained}; --random writes another one"),
    )
    return next((said for applies, said in complaints if applies), None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m workers.demo",
        description=f"Write the small model {DEMO_MODEL_NAME} as a GGUF file.",
    )
    parser.add_argument("path", metavar="PATH", type=Path, help="the file to write")
    parser.add_argument("--random", action="store_true", help="seeded random weights instead of the trained ones")
    parser.add_argument("--seed", type=int, metavar="N", help="of the random weights (default 1)")
    parser.add_argument("--force", action="store_true", help="replace the file when it is already there")
    return parser


if __name__ == "__main__":
    main()

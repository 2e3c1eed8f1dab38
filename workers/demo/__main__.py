"""`python -m workers.demo PATH [--random]`: writes the trained demo model, or one with random weights, to a path."""

import argparse
import shutil
import sys
from pathlib import Path

from workers.demo import DEMO_MODEL_NAME, demo_model_path
from workers.demo.random_gguf import write_random_model

#: Largest seed that is accepted. NumPy's generator accepts any non-negative integer, but larger seeds are not needed.
MAX_SEED = 2**32 - 1


def main(arguments: list[str] | None = None) -> None:
    """Write the model, and print one line about it on stdout.

    `arguments` defaults to those of the command line. Exits with 2 if they are invalid, and with 1 if the file cannot
    be written. In both cases, the path is left unchanged.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    path: Path = options.path
    if problem := _find_problem(path, force=options.force, random=options.random, seed=options.seed):
        parser.error(problem)
    # Write to a file in the target's folder first, and then rename it within the file system, so that PATH never holds
    # half a model.
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        if options.random:
            write_random_model(unfinished, seed=1 if options.seed is None else options.seed)
        else:
            shutil.copyfile(demo_model_path(), unfinished)
        unfinished.replace(path)
    except OSError as fault:
        unfinished.unlink(missing_ok=True)
        parser.exit(1, f"{parser.prog}: {path} cannot be written: {fault.strerror}\n")
    kind = "seeded random weights" if options.random else "trained on short stories"
    sys.stdout.write(f"{path}: {DEMO_MODEL_NAME}, {kind}, {path.stat().st_size / 1e6:.1f} MB\n")


def _find_problem(path: Path, *, force: bool, random: bool, seed: int | None) -> str | None:
    """Return the reason why the model cannot be written as requested, or None if it can be written."""
    trained = demo_model_path()
    problems = (
        (seed is not None and not random, f"--seed {seed} applies only to a random model; add --random"),
        (seed is not None and not 0 <= seed <= MAX_SEED, f"--seed {seed} is not in 0..{MAX_SEED}"),
        (path.is_dir(), f"PATH {str(path)!r} is a folder; name a file in it"),
        (not path.parent.is_dir(), f"PATH {str(path)!r}: the folder {str(path.parent)!r} does not exist"),
        (path.exists() and not force, f"PATH {str(path)!r} already exists; --force replaces it"),
        (
            not random and not trained.is_file(),
            f"there is no trained model at {trained}; add --random for a random one",
        ),
    )
    return next((problem for applies, problem in problems if applies), None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m workers.demo",
        description=f"Write the small model {DEMO_MODEL_NAME} as a GGUF file.",
    )
    parser.add_argument("path", metavar="PATH", type=Path, help="the file to write")
    parser.add_argument("--random", action="store_true", help="write seeded random weights, not the trained ones")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the random weights (default 1)")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    return parser


if __name__ == "__main__":
    main()

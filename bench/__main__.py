"""`python -m bench NAME`: runs one benchmark, or says which there are."""

import runpy
import sys
from pathlib import Path

NAMES = ("queue", "engine", "door", "overload", "fairness")


def main() -> None:
    """Run the named benchmark with the arguments after its name."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    here = Path(__file__).parent
    if name not in NAMES or not (here / f"{name}.py").exists():
        sys.exit(f"name one of {', '.join(n for n in NAMES if (here / f'{n}.py').exists())}: python -m bench queue")
    sys.argv = sys.argv[1:]
    runpy.run_module(f"bench.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

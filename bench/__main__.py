"""Runs one benchmark: `python -m bench NAME`. An unknown name lists the benchmarks."""

import runpy
import sys
from pathlib import Path

NAMES = (
    "queue",
    "compare",
    "engine",
    "door",
    "overload",
    "fairness",
    "batches",
    "candidates",
    "choosing",
    "speculation",
    "memory",
    "bad_bodies",
    "attacks",
    "durability",
    "readiness",
    "structured",
    "tool_calls",
    "upstream",
    "relay",
    "isolation",
    "prefixes",
    "gaps",
    "recall",
    "collection_sizes",
    "retrieval_step",
    "semantic_cache",
    "swapping",
    "adapters",
    "cell_capacity",
    "gpu",
)


def main() -> None:
    """Run the named benchmark with the command-line arguments that follow its name."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    here = Path(__file__).parent
    if name not in NAMES or not (here / f"{name}.py").exists():
        available = ", ".join(known for known in NAMES if (here / f"{known}.py").exists())
        sys.exit(f"unknown benchmark {name!r}: choose one of {available}, for example `python -m bench queue`")
    sys.argv = sys.argv[1:]
    runpy.run_module(f"bench.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

"""How many random examples a property is checked with: all of them, or few in `make quick`."""

import os


def examples(number: int) -> int:
    """Return this number, or a fifth of it if the environment sets FEW_EXAMPLES, as `make quick` does."""
    return max(2, number // 5) if os.environ.get("FEW_EXAMPLES") else number

"""How many random examples a property is checked with: all of them only in `make test-long`."""

import os


def examples(number: int) -> int:
    """Return this number if the environment sets ALL_EXAMPLES, else two fifths of it, or a fifth with FEW_EXAMPLES."""
    if os.environ.get("ALL_EXAMPLES"):
        return number
    return max(2, number // 5 if os.environ.get("FEW_EXAMPLES") else number * 2 // 5)

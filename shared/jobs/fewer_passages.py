"""A second choice in a job's payload: its prompt with fewer passages; pure functions.

The worker that claims the job tries it, once, if the exact count of the tokens shows that the prompt is too long.
"""

from collections.abc import Mapping
from itertools import takewhile
from typing import Any

#: The field of the payload.
FIELD = "fewer"
#: The field of the result of a job whose worker has taken the second choice: the number of its passages.
PASSAGES = "passages"


def add_fewer(payload: Mapping[str, Any], less: Mapping[str, Any], passages: int) -> dict[str, Any]:
    """Return a payload that also says how its prompt differs from that in `less`, which has `passages` passages."""
    if "messages" not in payload:
        return {**payload, FIELD: {"prompt": less["prompt"], "passages": passages}}
    pairs = zip(payload["messages"], less["messages"], strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return {**payload, FIELD: {"after": same, "messages": less["messages"][same:], "passages": passages}}


def read_fewer(payload: Mapping[str, Any]) -> tuple[dict[str, Any], int] | None:
    """Return the payload with fewer passages, and their number; None if there is no second choice, or it is spoiled."""
    found, rest = payload.get(FIELD), {name: value for name, value in payload.items() if name != FIELD}
    if not isinstance(found, dict) or not isinstance(found.get("passages"), int):
        return None
    if isinstance(found.get("prompt"), str):
        return rest | {"prompt": found["prompt"]}, found["passages"]
    before, after, messages = payload.get("messages"), found.get("after"), found.get("messages")
    if isinstance(before, list) and isinstance(after, int) and isinstance(messages, list):
        return rest | {"messages": [*before[:after], *messages]}, found["passages"]
    return None

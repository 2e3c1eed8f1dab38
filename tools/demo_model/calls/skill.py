"""One tool of the training conversations: its abilities, and how people ask for them."""

from collections.abc import Mapping
from dataclasses import dataclass

#: The result of a tool: a text, or fields of a JSON object. Slots in braces are filled with values.
Result = str | Mapping[str, str]


@dataclass(frozen=True)
class Skill:
    """One tool in several wordings.

    `parameters` maps each slot of the requests to the possible names of its parameter. Each name in `optional` is a
    slot that only some requests have. `results` pairs what the tool returns with the answer that follows.
    The last N_UNSEEN_REQUESTS requests are used only for the evaluation.
    """

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    parameters: Mapping[str, tuple[str, ...]]
    requests: tuple[str, ...]
    results: tuple[tuple[Result, str], ...]
    optional: frozenset[str] = frozenset()


#: Number of requests at the end of each skill's list that training never uses.
N_UNSEEN_REQUESTS = 2

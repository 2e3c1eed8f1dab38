"""A plan as the rows that a backend computes, and how many calls they take."""

from collections.abc import Mapping

from workers.engine.backend import Row
from workers.engine.planner import BatchPlan
from workers.engine.sequence import Sequence


def calls_of(batch: BatchPlan, running: Mapping[int, Sequence], *, split: bool) -> list[list[Row]]:
    """The step's calls, in order. Over a `split` cache answers and prompts are computed apart, the answers first.

    llama.cpp would cut a mixed batch there into parts of as many tokens for each slot, one token of the prompt with
    the answers and the rest by itself, which costs more than the two calls.
    """
    answers = [Row(slot, running[slot].n_past, 1, running[slot].last_token, samples=True) for slot in batch.decode]
    prompts = [
        Row(slot, running[slot].n_past, n, -1, samples=n == running[slot].prompt_left) for slot, n in batch.prompts
    ]
    return [rows for rows in (answers, prompts) if rows] if split else [answers + prompts]

"""Jobs whose answers repeat themselves, an engine that drafts them whenever it can, and what holds after each step."""

import contextlib

import pytest
from llama_cpp import llama_cpp

from tests.support.driven import Driven, step_times
from workers.engine.events import Text

PROMPT = "dibo kufe mala resi tanu bopa gesi dibo kufe mala resi tanu"
LENGTH = 48
#: The model has random weights. With these few tokens, its answers repeat themselves.
_FEW = {"logit_bias": dict.fromkeys(("668", "765", "842", "870"), 100.0)}
_SCHEMA = {"type": "array", "items": {"type": "string", "maxLength": 3}}
PAYLOADS = {
    "greedy": {"temperature": 0},
    "seeded": {"seed": 7, "temperature": 0.3},
    "hot": {"seed": -3, "temperature": 4.0, "top_p": 1.0, "top_k": 0},
    "penalties": {"seed": 5, "repeat_penalty": 1.2, "presence_penalty": 0.1, "temperature": 0.3},
    "greedy penalties": {"temperature": 0, "repeat_penalty": 1.05},
    "varied": {"temperature": 0, "logit_bias": {"300": 3.0, "301": -5.0}},
    "stop string": {"temperature": 0, "stop": ["zz", "qq"]},
    "grammar": {"temperature": 0, "response_format": {"type": "json_schema", "json_schema": {"schema": _SCHEMA}}},
    "logprobs": {"temperature": 0, "logprobs": 2},
    "min_tokens": {"temperature": 0, "min_tokens": 40, "stop": ["a"]},
    "ignore_eos": {"seed": 3, "temperature": 0.2, "ignore_eos": True},
}


def payload_of(kind: str, **fields) -> dict:
    """Return the payload of a job of this kind."""
    few = {} if kind == "grammar" else _FEW
    return {"prompt": PROMPT, "max_tokens": LENGTH} | few | PAYLOADS[kind] | fields


def drafting(backend, clock=None, **settings) -> Driven:
    """Return an engine for which drafts take no time, so that it drafts whenever the last tokens have occurred."""
    return Driven(backend, clock, fit=step_times(draft_ms=0.0), speculates=True, **settings)


def alone(backend, payload: dict):
    """Return the end of a job that runs alone without drafts, and the ids of its answer's tokens."""
    with contextlib.closing(Driven(backend, reuse=False)) as driven:
        driven.submit("alone", payload)
        driven.run_until_idle()
        return driven.ended["alone"], tokens_of(driven, "alone")


def tokens_of(driven: Driven, key: str) -> list[int]:
    """Return the tokens that the events of a job have carried."""
    events = [event for event in driven.events if isinstance(event, Text) and event.key == key]
    return [token for event in events for token in event.tokens]


def check_same(ended, expected) -> None:
    """Check that a job succeeded with the expected answer. Log probabilities may be rounded differently."""
    assert (ended.outcome, ended.finish_reason, ended.text) == ("succeeded", expected.finish_reason, expected.text)
    assert ended.usage.completion_tokens == expected.usage.completion_tokens
    for one, other in zip(ended.extra.get("logprobs", []), expected.extra.get("logprobs", []), strict=True):
        assert one[:2] == [other[0], pytest.approx(other[1], abs=1e-3)]


def check_no_drafts(driven: Driven) -> None:
    """Check that each slot holds the tokens that its sequence has, and no draft."""
    driven.engine._table.check()
    memory = driven.engine.backend._memory
    for slot, sequence in driven.engine._running.items():
        assert sequence.n_drafted == 0
        assert llama_cpp.llama_memory_seq_pos_max(memory, slot) == sequence.n_past - 1

"""A run's arrivals as a file: one JSON object a line, saved from a plan or from a real store, read back as a plan.

A store knows the jobs that it admitted, for as long as they can be read (PENSTOCK_RESULT_TTL_S); a refusal
leaves nothing behind, so what was refused is not in a recording of a store.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import redis

from bench.sim.arrivals import number
from bench.sim.asks import Ask
from shared.store import keys
from shared.store.decode import text

_FIELDS = ("tenant", "at_ms", "prompt", "answer", "max_tokens", "deadline_ms", "light", "leaves_after_ms")
_STORED = ("tenant", "admitted_ms", "prompt_tokens", "max_tokens", "patience_ms", "state")


def save(asks: Iterable[Ask], path: Path) -> int:
    """Write a plan; how many lines."""
    lines = [json.dumps({name: getattr(ask, name) for name in _FIELDS}) for ask in asks]
    path.write_text("\n".join(lines) + "\n")
    return len(lines)


def recorded(path: Path) -> list[Ask]:
    """Read a plan. Raises ValueError, naming the line, for what is none."""
    asks = []
    for i, line in enumerate(path.read_text().splitlines(), 1):
        try:
            asks.append(Ask(0, **json.loads(line)))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}, line {i}: {error}: {line[:200]!r}") from None
    return number(asks)


def from_store(client: redis.Redis) -> list[Ask]:
    """What a real store has admitted and can still tell, the first at 0 ms."""
    asks = list(_stored(client))
    begin_ms = min((ask.at_ms for ask in asks), default=0.0)
    for ask in asks:
        ask.at_ms -= begin_ms
    return number(asks)


def _stored(client: redis.Redis) -> Iterator[Ask]:
    prefix = len(keys.rq_job(""))
    names = [f"penstock_{name}" for name in _STORED]
    for key in client.scan_iter(keys.rq_job("*"), count=500):
        held: Any = client.hmget(key, names)
        if None in held:
            continue
        tenant, admitted_ms, prompt, max_tokens, patience_ms, state = (text(value) for value in held)
        result: Any = client.get(keys.result(text(key)[prefix:]))
        usage = (json.loads(result).get("usage") or {}) if result else {}
        # Of a job that was cut off nobody knows how long its answer would have become: as long as it was asked for.
        answer = int(usage.get("completion_tokens") or 0) if state == "succeeded" else int(max_tokens)
        yield Ask(
            0,
            tenant,
            float(admitted_ms),
            int(usage.get("prompt_tokens") or prompt),
            max(1, answer),
            int(max_tokens),
            int(patience_ms),
        )

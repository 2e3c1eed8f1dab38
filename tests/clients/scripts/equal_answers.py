"""Equal requests get equal answers: alone, and beside requests of seven other tenants."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import httpx
from check import BASE_URL, KEY, MODEL, check, main

TIMES, OTHERS = 5, 7
PROMPTS = ("Tell me a story about a fox.", "Why is the sky blue?", "Write a poem about leaves in autumn.")
REQUEST: dict[str, Any] = {"model": MODEL, "max_tokens": 32}
GREEDY, SEEDED = {"temperature": 0}, {"temperature": 0.8, "seed": 7}
http = httpx.Client(base_url=BASE_URL, headers={"Authorization": f"Bearer {KEY}"}, timeout=300)


def answer(prompt: str, tenant: str, **fields: Any) -> str:
    """Return the text that answers a prompt."""
    body = REQUEST | {"messages": [{"role": "user", "content": prompt}]} | fields
    response = http.post("/chat/completions", json=body, headers={"X-Tenant": tenant})
    assert response.is_success, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def differing(fields: dict[str, Any]) -> dict[str, int]:
    """Return the prompts whose equal requests got several answers, with the number of answers."""
    found = {prompt: len({answer(prompt, "asking", **fields) for _ in range(TIMES)}) for prompt in PROMPTS}
    return {prompt: answers for prompt, answers in found.items() if answers > 1}


def busy(run: Callable[[], Any]) -> Any:
    """Return the result of a function; until it has ended, seven other tenants ask, each one request after another."""
    ended = Event()

    def ask(tenant: str) -> int:
        asked = 0
        while not ended.is_set():
            asked += bool(answer(f"{tenant} asks: {PROMPTS[asked % 3]}", tenant, seed=asked))
        return asked

    with ThreadPoolExecutor(OTHERS) as pool:
        others = [pool.submit(ask, f"other-{number}") for number in range(OTHERS)]
        try:
            return run()
        finally:
            ended.set()
            assert all(other.result() for other in others)


@check("five equal greedy requests in turn get one answer")
def _greedy() -> None:
    assert not (found := differing(GREEDY)), found


@check("five equal requests with a seed in turn get one answer")
def _seeded() -> None:
    assert not (found := differing(SEEDED)), found


@check("five equal greedy requests get one answer beside those of seven others")
def _greedy_beside() -> None:
    assert not (found := busy(lambda: differing(GREEDY))), found


@check("five equal requests with a seed get one answer beside those of seven others")
def _seeded_beside() -> None:
    assert not (found := busy(lambda: differing(SEEDED))), found


main()

"""A tree search by the client: each level continues the best texts so far, and keeps the likeliest continuations.

Start `make up`, then run `python examples/tree_search.py` in another shell. PENSTOCK_URL selects another door, and
PENSTOCK_KEY is a key if the door requires one. Each continued text is one job with `n` candidates, which share their
prompt: the worker computes it once, and reuses of it what an earlier level has computed.
"""

import argparse
import json
import os
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

URL = os.environ.get("PENSTOCK_URL", "http://127.0.0.1:8000")
PROMPT = "Once upon a time, a little fox"


@dataclass(frozen=True)
class Node:
    """A text of the tree, and the sum of the mean log probabilities of its continuations."""

    text: str
    score: float = 0.0


def continue_text(node: Node, n: int, max_tokens: int) -> dict[str, Any]:
    """Return an ended job that has generated `n` continuations of a node's text."""
    body = {"prompt": node.text, "n": n, "pick": "all", "max_tokens": max_tokens, "seed": 1}
    key = os.environ.get("PENSTOCK_KEY")
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(f"{URL}/v1/jobs?wait_ms=60000", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=90) as response:
        job: dict[str, Any] = json.load(response)
    if job["status"] != "succeeded":
        raise SystemExit(f"job {job['id']} has the status {job['status']}: {job['error']}")
    return job


def children(node: Node, job: dict[str, Any]) -> list[Node]:
    """Return the node's continuations. An engine without a model knows no probabilities."""
    return [Node(node.text + each["text"], node.score + (each["mean_logprob"] or 0.0)) for each in job["candidates"]]


def main() -> None:
    """Search level by level, and print what the search took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=8, help="continuations of each text, 2 to 16")
    parser.add_argument("--width", type=int, default=2, help="texts that each level keeps")
    parser.add_argument("--levels", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=16, help="tokens of each continuation")
    chosen = parser.parse_args()
    kept, jobs, began_s = [Node(PROMPT)], list[dict[str, Any]](), time.monotonic()
    with ThreadPoolExecutor(max_workers=chosen.width) as pool:
        for _ in range(chosen.levels):
            found = list(pool.map(lambda node: continue_text(node, chosen.n, chosen.tokens), kept))
            jobs += found
            grown = [child for node, job in zip(kept, found, strict=True) for child in children(node, job)]
            kept = sorted(grown, key=lambda node: -node.score)[: chosen.width]
    took_s, usages = time.monotonic() - began_s, [job["usage"] for job in jobs]
    prompt, cached, generated = (
        sum(usage[name] for usage in usages) for name in ("prompt_tokens", "cached_tokens", "completion_tokens")
    )
    print(f"{len(jobs)} jobs with {chosen.n} candidates each took {took_s:.1f} s")
    print(f"{prompt} prompt tokens ({prompt - cached} computed), {generated} generated tokens")
    print(f"score {kept[0].score:.2f}: {json.dumps(kept[0].text, ensure_ascii=False)}")


if __name__ == "__main__":
    main()

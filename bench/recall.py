"""Measures how well questions about docs/ find their passages: `python -m bench.recall MODEL.gguf`, some minutes.

A real stack (`penstock up`, an embedded database, an embedding model) loads the pages of docs/, and answers 100
questions (bench/questions.jsonl), which were written by people who saw neither the code nor any result. Half of them
share no content word with their passage. A question is a hit if one of the first six passages contains the line that
answers it. `penstock model minilm MODEL.gguf` writes the model. bench/README.md explains the figures.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from bench.common import environment, print_environment, print_rows, write_results
from bench.engine_stack import free_port
from bench.live.stack import served_process

DOCS = Path(__file__).parents[1] / "docs"
QUESTIONS = Path(__file__).parent / "questions.jsonl"
K, MODES = 6, ("words", "vector", "hybrid")
#: A budget that no search needs, and those whose cost in recall is measured, in ms.
AMPLE_MS, BUDGETS_MS = 10_000, (10, 20, 40, 80)

Question = dict[str, str]


def questions() -> list[Question]:
    """Return the questions: `question`, `page`, `quote` and `kind` (`plain` or `no_shared_words`)."""
    return [json.loads(line) for line in QUESTIONS.read_text("utf-8").splitlines()]


def plain(text: str) -> str:
    """Return a text with single spaces, because chunks join and divide lines."""
    return " ".join(text.split())


def load_pages(client: httpx.Client, collection: dict[str, Any]) -> dict[str, Any]:
    """Load all pages into a new collection, and return what is known of it then."""
    client.post("/v1/collections", json=collection).raise_for_status()
    at = f"/v1/collections/{collection['name']}"
    for page in sorted(DOCS.glob("*.md")):
        headers = {"content-type": "text/markdown", "X-Deadline-Ms": "600000"}
        client.put(f"{at}/documents/docs/{page.name}", content=page.read_bytes(), headers=headers).raise_for_status()
    return dict(client.get(at).raise_for_status().json())


def ask(client: httpx.Client, name: str, mode: str, budget_ms: int) -> Iterator[tuple[Question, int, float, bool]]:
    """Ask all questions. Yield each, its passage's place (0 if missing), the ms, and whether a part was omitted."""
    for each in questions():
        body = {"query": each["question"], "k": K, "mode": mode, "budget_ms": budget_ms}
        found = client.post(f"/v1/collections/{name}/search", json=body).raise_for_status().json()
        places = [
            place
            for place, passage in enumerate(found["data"], 1)
            if passage["document_id"] == each["page"] and plain(each["quote"]) in plain(passage["text"])
        ]
        yield each, min(places, default=0), found["took_ms"], bool(found["omitted"])


def recall(client: httpx.Client, name: str, mode: str, budget_ms: int) -> dict[str, float]:
    """Return the shares of the questions whose passage was found, and how long the searches took."""
    answers = list(ask(client, name, mode, budget_ms))
    kinds = {"all": answers}
    kinds |= {kind: [each for each in answers if each[0]["kind"] == kind] for kind in ("plain", "no_shared_words")}
    figures = {kind: statistics.mean(place > 0 for _, place, _, _ in chosen) for kind, chosen in kinds.items()}
    figures["first"] = statistics.mean(place == 1 for _, place, _, _ in answers)
    figures["omitted"] = statistics.mean(omitted for *_, omitted in answers)
    return figures | {"p50_ms": statistics.median(took for _, _, took, _ in answers)}


def measure(model: Path, chunk_tokens: int, overlap_tokens: int) -> dict[str, dict[str, float]]:
    """Return a row for each mode, and one for each budget of a hybrid search."""
    port = free_port()
    arguments = ["shared.cli", "up", "--engine", "sim", "--embedding-model", str(model), "--port", str(port)]
    with (
        tempfile.TemporaryDirectory() as state,
        served_process([*arguments, "--state-dir", state], {"PENSTOCK_DATABASE_URL": "embedded"}, port),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600) as client,
    ):
        shape = {"name": "docs", "chunk_tokens": chunk_tokens, "overlap_tokens": overlap_tokens}
        loaded = load_pages(client, shape)
        print(f"# {loaded['documents']} documents, {loaded['chunks']} chunks, model {loaded['model']}", flush=True)
        rows = {f"{mode}": recall(client, "docs", mode, AMPLE_MS) for mode in MODES}
        return rows | {f"hybrid, {ms} ms": recall(client, "docs", "hybrid", ms) for ms in BUDGETS_MS}


def main() -> None:
    """Measure, print the figures and write them."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", type=Path, help="path of an embedding model (GGUF)")
    options.add_argument("--chunk-tokens", type=int, default=200)
    options.add_argument("--overlap-tokens", type=int, default=40)
    options.add_argument("--keep", action="store_true", help="write no results")
    given = options.parse_args()
    facts = environment(0) | {"k": K, "chunk_tokens": given.chunk_tokens, "overlap_tokens": given.overlap_tokens}
    print_environment(facts)
    rows = measure(given.model.resolve(), given.chunk_tokens, given.overlap_tokens)
    print_rows(rows)
    if not given.keep:
        write_results("recall", facts, rows)


if __name__ == "__main__":
    main()

"""Measures searches of made collections by size: how many of the nearest chunks they find, and how long they take.

python -m bench.collection_sizes [--sizes 1000 100000 1000000] [--tenants 1 100 1000] [--state FOLDER] [--load] [--keep]

The vectors have 384 numbers and lie near a surface of 24 dimensions, around 200 topics; the texts have words whose
frequencies follow Zipf's law without its first fifty. Documents of 200 chunks are loaded through the same calls as
those of clients, into an embedded database. The first table has a row for each size: recall@10 of the vectors against
an exact search by NumPy, without and with the index; ms of searches by vectors, words and both; what part of the best
ten a search by words finds, by a search that ranks all chunks with one of the words; and what part of a hybrid search's
passages is left within smaller budgets. The second one has 50,000 chunks of 1, 100 and 1,000 tenants, whose searches
run four at a time.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from bench.common import environment, print_environment, print_rows, write_results
from bench.sim.ledger import percentile
from shared.retrieval import words
from shared.retrieval.database import Bounds, Database
from shared.retrieval.embedded import EmbeddedDatabase
from shared.retrieval.errors import CollectionExists, DatabaseAway, OutOfTime
from shared.retrieval.records import Found, Mode, NewChunk, NewCollection, Query

SEED, DIMENSIONS, SURFACE, TOPICS, K = 27, 384, 24, 200, 10
WORDS, CHUNK_WORDS, QUERY_WORDS, TOKENS = 20_000, 120, 6, 200
DOCUMENT_CHUNKS, LOADERS, CLIENTS, QUERIES = 200, 2, 4, 200
#: The most chunks that all exact searches of a size compare together, unless these are fewer than the least number.
COMPARED, LEAST_EXACT = 10_000_000, 10
BUDGETS_MS = (10, 20, 40, 80)
#: A budget that no search needs, in seconds.
AMPLE_S = 60.0
#: The chunks of all tenants together in the second table.
SHARED_CHUNKS = 50_000

Vectors = npt.NDArray[np.float32]


class Made:
    """Chunks and queries of one distribution, the same for each number of a chunk."""

    def __init__(self) -> None:
        rng = np.random.default_rng(SEED)
        self._centres = rng.normal(size=(TOPICS, SURFACE))
        self._surface = rng.normal(size=(SURFACE, DIMENSIONS))
        # Without the most frequent words, which a collection's language leaves out.
        frequency = 1 / (50 + np.arange(WORDS))
        self._sums = np.cumsum(frequency / frequency.sum())
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
        self._words = ["".join(letters[rng.integers(26, size=rng.integers(4, 10))]) for _ in range(WORDS)]

    def vectors(self, part: int, count: int) -> Vectors:
        """Return vectors of length one, shaped (count, DIMENSIONS)."""
        rng = np.random.default_rng((SEED, part))
        places = self._centres[rng.integers(TOPICS, size=count)] + 0.6 * rng.normal(size=(count, SURFACE))
        made = places @ self._surface + 0.3 * rng.normal(size=(count, DIMENSIONS))
        made /= np.linalg.norm(made, axis=1, keepdims=True)
        return made.astype(np.float32)

    def texts(self, part: int, count: int, words: int) -> list[str]:
        """Return `count` texts of `words` words each."""
        chosen = np.searchsorted(self._sums, np.random.default_rng((SEED, part, 1)).random((count, words)))
        return [" ".join(self._words[word] for word in row) for row in np.minimum(chosen, WORDS - 1)]

    def document(self, part: int, count: int) -> list[NewChunk]:
        """Return the chunks of a document."""
        rows = zip(self.texts(part, count, CHUNK_WORDS), self.vectors(part, count).tolist(), strict=True)
        return [NewChunk(text, TOKENS, vector) for text, vector in rows]

    def queries(self) -> list[tuple[str, list[float]]]:
        """Return the text and the vector of each query, which no document has."""
        part = 2**31
        return list(zip(self.texts(part, QUERIES, QUERY_WORDS), self.vectors(part, QUERIES).tolist(), strict=True))


@dataclass
class Loaded:
    """A collection of `chunks` chunks of a tenant, which is called as the tenant."""

    database: Database
    made: Made
    tenant: str
    chunks: int

    def load(self) -> float:
        """Load the documents that are missing, and return how many chunks were loaded in a second; nan without any."""
        new, loaded = NewCollection(self.tenant, model="made", dimensions=DIMENSIONS), set[str]()
        with suppress(CollectionExists):
            self.database.create_collection(self.tenant, new)
        while page := self.database.documents(self.tenant, self.tenant, after=max(loaded, default=None), limit=1_000):
            loaded |= {each.id for each in page}
        began_s = time.monotonic()
        parts = [first for first in range(0, self.chunks, DOCUMENT_CHUNKS) if str(first) not in loaded]

        def put(first: int) -> int:
            count = min(DOCUMENT_CHUNKS, self.chunks - first)
            chunks = self.made.document(first, count)
            self.database.put_document(self.tenant, self.tenant, str(first), {}, "made", chunks)
            return count

        with ThreadPoolExecutor(LOADERS) as pool:
            count = sum(pool.map(put, parts))
        return count / (time.monotonic() - began_s) if count else float("nan")

    def nearest(self, vectors: Vectors) -> list[set[tuple[str, int]]]:
        """Return the K nearest chunks of each query, by document and ordinal, from a comparison with all."""
        best_scores = np.full((len(vectors), 0), 0.0, np.float32)
        best_numbers = np.zeros((len(vectors), 0), np.int64)
        for first in range(0, self.chunks, DOCUMENT_CHUNKS):
            there = self.made.vectors(first, min(DOCUMENT_CHUNKS, self.chunks - first))
            scores = np.hstack([best_scores, vectors @ there.T])
            numbers = np.hstack([best_numbers, np.tile(first + np.arange(len(there)), (len(vectors), 1))])
            order = np.argsort(-scores, axis=1)[:, :K]
            best_scores, best_numbers = np.take_along_axis(scores, order, 1), np.take_along_axis(numbers, order, 1)
        return [{chunk_of(int(number)) for number in row} for row in best_numbers]

    def search(self, text: str, vector: Sequence[float], mode: Mode, within_s: float = AMPLE_S) -> tuple[float, Found]:
        """Return how long a search took, in ms, and what it found. Raises OutOfTime."""
        began_s = time.monotonic()
        found = self.database.search(self.tenant, self.tenant, Query(text, vector, K, None, mode), began_s + within_s)
        return 1_000 * (time.monotonic() - began_s), found


def chunk_of(number: int) -> tuple[str, int]:
    """Return the document and the ordinal of the chunk with that number."""
    first = number - number % DOCUMENT_CHUNKS
    return str(first), number - first


def names(found: Found) -> set[tuple[str, int]]:
    """Return the documents and ordinals of passages."""
    return {(passage.document_id, passage.ordinal) for passage in found.passages}


def vector_figures(
    loaded: Loaded, name: str, queries: Sequence[tuple[str, list[float]]], exact: Sequence[set[tuple[str, int]]]
) -> dict[str, float]:
    """Return recall and ms of searches by vectors, whose nearest chunks are `exact`."""
    answers = [loaded.search(text, vector, "vector") for text, vector in queries]
    hits = [len(names(found) & best) / K for (_, found), best in zip(answers, exact, strict=False)]
    times = [took_ms for took_ms, _ in answers]
    return {
        f"{name}: recall@{K}": float(np.mean(hits)),
        f"{name}: p50 ms": percentile(times, 0.5),
        f"{name}: p99 ms": percentile(times, 0.99),
    }


def word_figures(loaded: Loaded) -> dict[str, float]:
    """Return ms of searches by words, and what they share with searches that rank all chunks with one of the words."""
    answers = [loaded.search(text, vector, "words") for text, vector in loaded.made.queries()]
    times = [took_ms for took_ms, _ in answers]
    with patch.multiple(words, _SMALL=loaded.chunks, _VISITED=loaded.chunks):
        exact = [loaded.search(text, vector, "words") for text, vector in some_queries(loaded)]
    shared = [len(names(found) & names(whole)) / K for (_, found), (_, whole) in zip(answers, exact, strict=False)]
    return {
        "words: p50 ms": percentile(times, 0.5),
        "words: p99 ms": percentile(times, 0.99),
        f"words: of the best {K}": float(np.mean(shared)),
        "all words ranked: p50 ms": percentile([took_ms for took_ms, _ in exact], 0.5),
    }


def some_queries(loaded: Loaded) -> list[tuple[str, list[float]]]:
    """Return the queries of searches that compare or rank all chunks: fewer for a large collection."""
    return loaded.made.queries()[: max(LEAST_EXACT, COMPARED // loaded.chunks)]


def budget_figures(url: str, loaded: Loaded) -> dict[str, float]:
    """Return which part of the passages of an ample hybrid search is found within small budgets."""
    queries, figures = loaded.made.queries(), {}
    whole = [names(loaded.search(text, vector, "hybrid")[1]) for text, vector in queries]
    for budget_ms in BUDGETS_MS:
        found = list[float]()
        # Each budget has a connection of its own, because searches are skipped for a while after time-outs.
        with opened(url) as loaded.database:
            loaded.search(*queries[0], "hybrid")
            for (text, vector), all_ in zip(queries, whole, strict=True):
                try:
                    some = loaded.search(text, vector, "hybrid", budget_ms / 1_000)[1]
                    found.append(len(names(some) & all_) / len(all_))
                except (OutOfTime, DatabaseAway):
                    # A search that is skipped finds nothing either.
                    found.append(0.0)
        figures[f"{budget_ms} ms"] = float(np.mean(found))
    return figures


def of_all(database: Database, made: Made, tenants: int) -> list[Loaded]:
    """Return a collection for each of `tenants` tenants, which may have to be loaded."""
    return [Loaded(database, made, f"of{tenants}-{number}", SHARED_CHUNKS // tenants) for number in range(tenants)]


def load(url: str, made: Made, sizes: Sequence[int], tenants: Sequence[int]) -> None:
    """Load the collections of these sizes, and those of these numbers of tenants, and make their indexes."""
    with opened(url, max_indexes=0) as database:
        for each in [each for count in tenants for each in of_all(database, made, count)]:
            each.load()
        for chunks in sizes:
            print(f"{chunks} chunks: {Loaded(database, made, f'size{chunks}', chunks).load():.0f} a second", flush=True)
    with opened(url) as database:
        print(f"indexes: {tidied(database):.0f} s", flush=True)


def tidied(database: Database) -> float:
    """Make the indexes that are missing, and return how long that took, in seconds."""
    began_s = time.monotonic()
    while (state := database.tidy()) is None or state.waiting:
        # Another thread makes them.
        time.sleep(0.1)
    return time.monotonic() - began_s


def of_size(url: str, made: Made, chunks: int) -> dict[str, float]:
    """Load a collection of that size, and return its row."""
    with opened(url, max_indexes=0) as plain:
        loaded = Loaded(plain, made, f"size{chunks}", chunks)
        chunks_s = loaded.load()
        figures = {} if math.isnan(chunks_s) else {"chunks/s loaded": chunks_s}
    queries = made.queries()
    exact = loaded.nearest(np.array([vector for _, vector in queries], np.float32))
    # Exact searches also of a collection that has its index already.
    with opened(f"{url}&options=-c%20enable_indexscan%3Doff", max_indexes=0) as loaded.database:
        figures |= vector_figures(loaded, "exact", some_queries(loaded), exact)
    with opened(url) as loaded.database:
        figures["index s"] = tidied(loaded.database)
        figures |= vector_figures(loaded, "index", queries, exact) | word_figures(loaded)
        times = [loaded.search(text, vector, "hybrid")[0] for text, vector in queries]
        figures |= {"hybrid: p50 ms": percentile(times, 0.5), "hybrid: p99 ms": percentile(times, 0.99)}
        return figures | budget_figures(url, loaded)


def of_tenants(url: str, made: Made, tenants: int) -> dict[str, float]:
    """Load a collection for each of `tenants` tenants, and return their row."""
    rng = np.random.default_rng(SEED)
    with opened(url) as database:
        all_ = of_all(database, made, tenants)
        for each in all_:
            each.load()
        tidied(database)
        asked = [(all_[int(rng.integers(tenants))], *query) for query in made.queries() for _ in range(CLIENTS)]
        began_s = time.monotonic()
        with ThreadPoolExecutor(CLIENTS) as pool:
            times = [took for took, _ in pool.map(lambda each: each[0].search(each[1], each[2], "hybrid"), asked)]
        took_s = time.monotonic() - began_s
    return {
        "searches/s": len(asked) / took_s,
        "p50 ms": percentile(times, 0.5),
        "p99 ms": percentile(times, 0.99),
    }


@contextmanager
def opened(url: str, **bounds: Any) -> Iterator[Database]:
    """Open the database for the length of a block."""
    database = Database(
        url, Bounds(connections=2 * CLIENTS, max_tenant_chunks=10**9, index_memory_bytes=2**32, **bounds)
    )
    try:
        yield database
    finally:
        database.close()


def main() -> None:
    """Measure, print the figures and write them."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sizes", type=int, nargs="*", default=[1_000, 100_000, 1_000_000])
    options.add_argument("--tenants", type=int, nargs="*", default=[1, 100, 1_000])
    options.add_argument("--state", type=Path, help="keep the database in this folder, and use what was loaded before")
    options.add_argument("--load", action="store_true", help="load, make the indexes, and measure nothing")
    options.add_argument("--keep", action="store_true", help="write no results")
    given = options.parse_args()
    facts = environment(SEED)
    print_environment(facts)
    made, sizes, tenants = Made(), dict[str, dict[str, float]](), dict[str, dict[str, float]]()
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedDatabase.start(given.state or Path(folder))
        try:
            if given.load:
                load(server.url, made, given.sizes, given.tenants)
                return
            for size in given.sizes:
                sizes[f"{size} chunks"] = of_size(server.url, made, size)
                print_rows({f"{size} chunks": sizes[f"{size} chunks"]})
            for count in given.tenants:
                tenants[f"{count} tenants"] = of_tenants(server.url, made, count)
                print_rows({f"{count} tenants": tenants[f"{count} tenants"]})
        finally:
            server.stop()
    if not given.keep:
        write_results("collection-sizes", facts, sizes | tenants)


if __name__ == "__main__":
    main()

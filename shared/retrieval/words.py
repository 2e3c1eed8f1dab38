"""Finds the chunks of a collection that match a query by their words, at a cost that is bounded for any size.

A chunk is ranked by how often it has the words of the query, and how rare these are. In a large collection, most chunks
may have one of them, so only those that can be among the best are ranked: chunks that match enough of the query, where
a rare word counts more than a frequent one. How frequent words are is estimated from a sample of the chunks, and the
chunks of words that the sample lacks are counted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shared.retrieval.connecting import Connection
from shared.retrieval.filters import Filter, to_sql
from shared.retrieval.records import with_short_runs
from shared.retrieval.transactions import limit

#: The most words of a query that are searched.
_MAX_WORDS = 48
#: The most chunks of a collection without a sample: all its chunks that match are ranked.
_SMALL = 2_000
#: The most chunks of a sample, and the part of a collection that it is at most. A sample is as much smaller as a query
#: has more words, down to a least size, so that this number of words is looked up in it.
_SAMPLE, _LEAST_SAMPLE, _PART, _LOOKED_UP = 1_024, 256, 8, 12_000
#: Up to how many chunks of a word are counted that the sample lacks.
_COUNTED = 100
#: How many chunks are to be ranked, and the most that are, if the words occur together more often than by chance.
_RANKED, _MOST_RANKED = 1_000, 2_000
#: The most entries of the index that are visited, and the most chunks that are compared with a filter.
_VISITED = 20_000
#: The rarest words, which alone decide whether a chunk is ranked. Their combinations double with each.
_DECIDING = 6

_SAMPLED = """
WITH wanted AS MATERIALIZED (
  SELECT ('''' || replace(replace(word, '\\', '\\\\'), '''', '''''') || '''')::tsquery AS one
  FROM unnest(tsvector_to_array(to_tsvector(%s::regconfig, %s))) AS found (word) LIMIT {words}
), sample AS MATERIALIZED (
  SELECT words, ({filter}) IS TRUE AS passes FROM penstock.chunks WHERE collection = {number}
  ORDER BY hashint8extended(document, ordinal) LIMIT {sample}
)
SELECT one::text, count(passes), count(*) FILTER (WHERE passes),
  CASE WHEN count(passes) = 0 AND {sample} > 0
    THEN (SELECT count(*) FROM penstock.word_matches({number}, one, {counted})) ELSE 0 END,
  (SELECT count(*) FROM sample), (SELECT count(*) FROM sample WHERE passes)
FROM wanted LEFT JOIN sample ON words @@ one GROUP BY one
"""

#: The chunks that are ranked match a condition, or belong to a larger sample.
_MATCHING = "penstock.word_matches({number}, %s::tsquery, {most})"
_LARGER_SAMPLE = """(
    SELECT document, ordinal, words, metadata FROM penstock.chunks WHERE collection = {number}
    ORDER BY hashint8extended(document, ordinal) LIMIT {most}
  )"""

_BEST = """
WITH matches AS MATERIALIZED (
  SELECT {number}::bigint AS collection, document, ordinal, {ranks} FROM {source} AS source WHERE {filter}
), weights AS MATERIALIZED (
  SELECT {weights} FROM (SELECT {counts} FROM matches) AS counted
), best AS MATERIALIZED (
  SELECT collection, document, ordinal, ({sum}) / ({whole}) AS score FROM matches, weights
  WHERE coalesce({found}) IS NOT NULL ORDER BY score DESC, document, ordinal LIMIT %s
)
-- 0.01 is about the mean rank in a chunk of usual length that has each word of the query once.
SELECT d.id, c.ordinal, c.text, c.tokens, b.score / (b.score + 0.01), c.metadata, d.filename
FROM best b
-- With the number itself, a plan for a collection that seems to be small would read all of its chunks.
JOIN penstock.chunks c ON c.collection = b.collection AND c.document = b.document AND c.ordinal = b.ordinal
JOIN penstock.documents d ON d.number = b.document
ORDER BY b.score DESC, b.document, b.ordinal
"""
#: 1: long chunks have more words and count a little less.
_RANK = "CASE WHEN words @@ %s::tsquery THEN ts_rank(words, %s::tsquery, 1)::float8 END AS r{n}"
_COUNT = "greatest(count(r{n}), %s::float8) AS c{n}"
_WEIGHT = "ln(1 + (greatest({chunks}, c{n}) - c{n} + 0.5) / (c{n} + 0.5)) AS w{n}"


@dataclass(frozen=True, slots=True)
class Word:
    """A word as a tsquery, in how many chunks of the sample it is, and in how many of these that pass the filter.

    `counted` says how many chunks have a word that the sample lacks, up to a bound.
    """

    query: str
    found: int = 0
    passing: int = 0
    counted: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of a collection of `chunks` chunks: its size, how many chunks pass the filter, and the words."""

    chunks: int
    size: int
    passing: int
    words: tuple[Word, ...]

    def share(self, word: Word) -> float:
        """Return the estimated share of the chunks that have a word."""
        if not word.found and word.counted < _COUNTED:
            return word.counted / self.chunks
        return max(word.counted / self.chunks, (word.found + 0.5) / (self.size + 1))

    @property
    def passing_share(self) -> float:
        return (self.passing + 0.5) / (self.size + 1)

    def having(self, word: Word) -> float:
        """Return in about how many chunks that pass the filter a word is."""
        if word.found:
            return self.chunks * word.passing / self.size
        return self.chunks * self.share(word) * self.passing / self.size


@dataclass(frozen=True, slots=True)
class Choice:
    """Which chunks are ranked.

    `condition` is a tsquery that they match; without it, they are the first `most` of the sample's order. `counts` has,
    for each word, the least number of chunks that it is taken to be in, 0 if those that are ranked can be counted.
    """

    condition: str | None
    most: int
    counts: tuple[float, ...]


def best_rows(
    connection: Connection,
    collection: tuple[int, str, int],
    text: str,
    filter_: Filter | None,
    count: int,
    until_s: float,
) -> Sequence[Sequence[Any]]:
    """Return the rows of the `count` best chunks: document, ordinal, text, tokens, score, metadata and filename.

    `collection` is its number, its language and its number of chunks. Raises OutOfTime and psycopg.Error.
    """
    number, language, chunks = collection
    condition, values = ("true", []) if filter_ is None else to_sql(filter_)
    size = sample_size(chunks, len(text.split()))
    sql = _SAMPLED.format(number=number, filter=condition, words=_MAX_WORDS, sample=size, counted=_COUNTED)
    rows = connection.execute(sql.encode(), [language, with_short_runs(text), *values]).fetchall()
    if not rows:
        return []
    _, _, _, _, sampled, passing = rows[0]
    sample = Sample(chunks, sampled, passing, tuple(Word(*row[:4]) for row in rows))
    choice = choose(sample, is_filtered=filter_ is not None)
    limit(connection, until_s)
    return connection.execute(*_statement(number, sample, choice, condition, values, count)).fetchall()


def sample_size(chunks: int, words: int) -> int:
    """Return how many chunks of a collection are the sample for a query with this number of words, 0 if it is small."""
    if chunks <= _SMALL:
        return 0
    return min(_SAMPLE, chunks // _PART, max(_LEAST_SAMPLE, _LOOKED_UP // max(1, words)))


def choose(sample: Sample, *, is_filtered: bool) -> Choice:
    """Choose the chunks that are ranked: all that match, if these are few enough, otherwise those that match most."""
    every, none = " | ".join(word.query for word in sample.words), (0.0,) * len(sample.words)
    if not sample.size:
        return Choice(every, _VISITED, none)
    few, most = float(_RANKED), _MOST_RANKED
    if is_filtered:
        few, most = (min(_VISITED, math.ceil(bound / sample.passing_share)) for bound in (_RANKED, _MOST_RANKED))
    shares = [sample.share(word) for word in sample.words]
    matching = sample.chunks * (1 - math.prod(1 - share for share in shares))
    if matching <= few and sample.chunks * sum(shares) <= _VISITED:
        return Choice(every, most, none)
    order = [n for n in sorted(range(len(shares)), key=lambda n: (shares[n], n)) if shares[n]][:_DECIDING]
    taken = _weighing_most([shares[n] for n in order], sample.chunks, few)
    counts = tuple(sample.having(word) for word in sample.words)
    if not taken:
        return Choice(None, _MOST_RANKED, counts)
    counted = {order[bit] for bit in range(len(order)) if 1 << bit in taken}
    condition = _condition([sample.words[n].query for n in order], taken)
    return Choice(condition, most, tuple(0.0 if n in counted else count for n, count in enumerate(counts)))


def _weighing_most(shares: Sequence[float], chunks: int, few: float) -> set[int]:
    """Return the sets of words (as bits) that weigh most, as long as about `few` chunks have all words of one of them.

    `shares` begins with the rarest word. Each set contains one of the rarest words, and a search visits the entries of
    these words in the index. If already the first word has too many, there is no set.
    """
    rarest = sum(1 for n in range(len(shares)) if chunks * sum(shares[: n + 1]) <= _VISITED)
    weights = [-math.log(share) for share in shares]
    sets = [
        (sum(weight for bit, weight in enumerate(weights) if words >> bit & 1), words)
        for words in range(1, 1 << len(shares))
        if words & ((1 << rarest) - 1)
    ]
    ranked, taken = 0.0, set[int]()
    for _, words in sorted(sets, key=lambda each: (-each[0], each[1])):
        ranked += chunks * math.prod(share if words >> bit & 1 else 1 - share for bit, share in enumerate(shares))
        if taken and ranked > few:
            break
        taken.add(words)
    return taken


def _condition(queries: Sequence[str], taken: set[int], first: int = 0, words: int = 0) -> str:
    """Return the tsquery that is true for chunks with a set in `taken`; "" if none has `words` but not those before.

    The index evaluates it for each entry that a search visits: words that are absent end a branch early.
    """
    if words in taken or first == len(queries):
        return ""
    present, query = words | 1 << first, queries[first]
    rest = _condition(queries, taken, first + 1, words)
    if present in taken:
        return f"{query} | {rest}" if rest else query
    also = _condition(queries, taken, first + 1, present)
    if not also:
        return rest
    both = f"{query} & ({also})" if "|" in also else f"{query} & {also}"
    return f"{both} | {rest}" if rest else both


def _statement(
    number: int, sample: Sample, choice: Choice, condition: str, values: Sequence[object], count: int
) -> tuple[bytes, list[object]]:
    """Return the statement that ranks the chosen chunks, and its values."""
    source = _LARGER_SAMPLE if choice.condition is None else _MATCHING
    words = range(len(sample.words))
    sql = _BEST.format(
        number=number,
        filter=condition,
        source=source.format(number=number, most=choice.most),
        ranks=", ".join(_RANK.format(n=n) for n in words),
        counts=", ".join(_COUNT.format(n=n) for n in words),
        weights=", ".join(_WEIGHT.format(n=n, chunks=sample.chunks) for n in words),
        sum=" + ".join(f"coalesce(r{n} * w{n}, 0)" for n in words),
        whole=" + ".join(f"w{n}" for n in words),
        found=", ".join(f"r{n}" for n in words),
    )
    ranked = [word.query for word in sample.words for _ in range(2)]
    matched = [] if choice.condition is None else [choice.condition]
    return sql.encode(), [*ranked, *matched, *values, *choice.counts, count]

"""The cache of passages: under which digest a query's passages are stored, and in which form; pure functions."""

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from shared.retrieval.errors import InvalidInput
from shared.retrieval.filters import Filter, filter_json
from shared.retrieval.records import Passage, parse_metadata
from web.api.body import digest

_SPACES = re.compile(r"\s+")
_DIGEST_CHARS = 32


@dataclass(frozen=True)
class CachedPassages:
    """The passages that were found in one version of a collection, which is named by its id."""

    collection_id: str
    version: int
    passages: tuple[Passage, ...]

    def dump(self) -> str:
        """Return the passages as the text that is stored."""
        rows = [
            [each.document_id, each.ordinal, each.text, each.tokens, each.score, each.filename, dict(each.metadata)]
            for each in self.passages
        ]
        return json.dumps([self.collection_id, self.version, rows], ensure_ascii=False, separators=(",", ":"))


def load(text: str) -> CachedPassages | None:
    """Return what `dump` has written; None if another program has spoiled it."""
    try:
        collection_id, version, rows = json.loads(text)
        passages = tuple(
            Passage(
                str(document),
                int(ordinal),
                str(content),
                int(tokens),
                float(score),
                parse_metadata(metadata),
                filename and str(filename),
            )
            for document, ordinal, content, tokens, score, filename, metadata in rows
        )
        return CachedPassages(str(collection_id), int(version), passages)
    except (ValueError, TypeError, InvalidInput):
        return None


def normalized(query: str) -> str:
    """Return a query without differences that no search should see: runs of white space, and forms of characters."""
    return _SPACES.sub(" ", unicodedata.normalize("NFC", query)).strip()


def query_digest(collection: str, query: str, wanted: Filter | None, k: int, modes: Sequence[str] = ("hybrid",)) -> str:
    """Return the digest of a query of a collection. The tenant is part of the key, and the version of the content."""
    return digest(collection, query, filter_json(wanted), str(k), *modes)[:_DIGEST_CHARS]

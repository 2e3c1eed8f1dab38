"""Tests of searches in several vector stores, and of the traces of a search in its job."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from shared.jobs.fewer_passages import PASSAGES
from shared.store.decode import job_view
from tests.support.passages import a_passage
from web.api.file_search import CitedFile, FileSearch, SearchedFiles, SearchTexts
from web.jobs.callers import Caller
from web.retrieval import query_vectors, stores
from web.retrieval.finding import FoundPassages, Source, Wanted, Why
from web.retrieval.query_vectors import QueryVectors
from web.retrieval.stores import find_in_stores, joined

SEARCH = FileSearch(("vs_1", "vs_2", "vs_3"), "tools[0]", 2, None, 0.0, shows_results=False)


class Searches:
    """Fake searches, which take all of their time, and their clock, in seconds."""

    def __init__(self, *sources: Source, makes_vectors: bool = False) -> None:
        self.now_s, self._sources, self._makes_vectors = 100.0, list(sources), makes_vectors
        self.clock = SimpleNamespace(monotonic=lambda: self.now_s)
        self.wanted: list[Wanted] = []

    def find(self, context: Any, caller: Caller, wanted: Wanted, vectors: Any) -> FoundPassages:
        del context, caller
        source = self._sources[len(self.wanted)]
        self.wanted.append(wanted)
        if self._makes_vectors:
            vectors.vector("m", "q", wanted.until_s)
        self.now_s = wanted.until_s
        why = None if source in {Source.SEARCH, Source.CACHE} else Why.BUDGET
        return FoundPassages(() if source is Source.NONE else (a_passage(len(self.wanted)),), source, why)


def searched(monkeypatch: pytest.MonkeyPatch, searches: Searches) -> FoundPassages:
    monkeypatch.setattr(stores, "find_passages", searches.find)
    monkeypatch.setattr(query_vectors, "start_query", lambda *_, private: SimpleNamespace(wait=lambda _: None))
    context: Any = searches
    caller = Caller("blue", "", None)
    vectors = QueryVectors(context, caller)
    return find_in_stores(context, caller, SEARCH, "q", 110.0, vectors, private=False)


@pytest.mark.parametrize(("makes_vectors", "ends"), [(False, [107.333, 109.467, 110]), (True, [107.333, 108.667, 110])])
def test_all_stores_share_one_budget_after_the_time_for_the_vector(monkeypatch, makes_vectors, ends):
    searches = Searches(Source.SEARCH, Source.CACHE, Source.SEARCH, makes_vectors=makes_vectors)
    found = searched(monkeypatch, searches)
    assert [wanted.until_s for wanted in searches.wanted] == pytest.approx(ends, abs=0.001)
    assert [wanted.store_at for wanted in searches.wanted] == [f"tools[0].vector_store_ids[{n}]" for n in range(3)]
    assert (found.source, found.why, found.changes) == (Source.SEARCH, None, ())


def test_what_was_left_out_of_a_store_is_told_with_its_name(monkeypatch):
    found = searched(monkeypatch, Searches(Source.SEARCH, Source.NONE, Source.WORDS))
    assert (found.source, found.why) == (Source.WORDS, Why.BUDGET)
    assert [(change.what, change.after) for change in found.changes] == [
        ("retrieval of vs_2", "none"),
        ("retrieval of vs_3", "words"),
    ]
    assert searched(monkeypatch, Searches(*[Source.NONE] * 3)).source is Source.NONE


def test_stores_take_turns_by_rank_and_a_passage_of_both_is_there_once_and_first():
    first = [replace(a_passage(n), score=0.9 - n / 10) for n in (0, 1, 2)]
    second = [replace(a_passage(n), score=0.5 - n / 100) for n in (7, 2, 8)]
    found = joined([first, second], 4)
    assert [each.document_id for each in found] == ["doc2.md", "doc0.md", "doc7.md", "doc1.md"]
    assert found[0].score == 0.7
    assert joined([first], 2) == tuple(first[:2])
    assert joined([[], []], 2) == ()


def test_documents_of_different_stores_with_the_same_id_are_different_passages():
    first, second = a_passage(0), replace(a_passage(0), text="another text")
    assert joined([[first], [second]], 4) == (first, second)


def test_a_job_whose_worker_has_left_out_passages_cites_only_the_others():
    files = tuple(CitedFile(f"file-{n}", f"{n}.md") for n in range(3))
    view = job_view(0, 0, None, {"penstock_state": "running", "penstock_form": "{}"}, "j")
    view = replace(view, form=SearchedFiles(files, "completed", shows_results=True, admitted=3).form())
    assert SearchedFiles.read(view) == SearchedFiles(files, "completed", shows_results=True, admitted=3)
    less = replace(view, extra={PASSAGES: 1})
    assert SearchedFiles.read(less) == SearchedFiles(files[:1], "completed", shows_results=True, admitted=3)


def test_what_another_program_has_spoiled_counts_as_missing():
    view = job_view(0, 0, None, {"penstock_state": "running", "penstock_form": "{}"}, "j")
    for spoiled in (None, {}, {"files": 1}, {"files": [["a"]], "status": "completed", "results": True}):
        assert SearchedFiles.read(replace(view, form={"file_search": spoiled})) is None
    for payload in (None, {}, {"file_search": 1}, {"file_search": {"queries": 1, "results": "x"}}):
        assert SearchTexts.read(payload) == SearchTexts()

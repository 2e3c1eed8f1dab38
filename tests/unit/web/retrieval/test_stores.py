"""Tests of searches in several vector stores, and of the traces of a search in its job."""

from dataclasses import replace

from shared.jobs.fewer_passages import PASSAGES
from shared.store.decode import job_view
from tests.support.passages import a_passage
from web.api.file_search import CitedFile, SearchedFiles, SearchTexts
from web.retrieval.stores import joined


def test_stores_take_turns_by_rank_and_a_passage_of_both_is_there_once_and_first():
    first = [replace(a_passage(n), score=0.9 - n / 10) for n in (0, 1, 2)]
    second = [replace(a_passage(n), score=0.5 - n / 100) for n in (7, 2, 8)]
    found = joined([first, second], 4)
    assert [each.document_id for each in found] == ["doc2.md", "doc0.md", "doc7.md", "doc1.md"]
    assert found[0].score == 0.7
    assert joined([first], 2) == tuple(first[:2])
    assert joined([[], []], 2) == ()


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

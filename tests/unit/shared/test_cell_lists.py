"""Tests that the lists of several cells become one: jobs in pages, and the audit logs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.accounts.admin_actions import AdminAction
from shared.cells import job_lists
from shared.cells.actions import merge_actions
from shared.cells.job_lists import list_jobs_of_cells
from shared.jobs.job_filter import InvalidFilter, JobFilter
from shared.jobs.states import JobState
from shared.store.job_list import JobLine, JobLines

LINE = JobLine(
    id="",
    tenant="blue",
    model="m",
    state=JobState.QUEUED,
    key_label="",
    code="",
    finish_reason="",
    admitted_ms=0,
    started_ms=None,
    ended_ms=None,
    attempts=0,
    worker="",
    cancel_requested=False,
    is_paused=False,
    prompt_tokens=1,
    max_tokens=1,
    answer_tokens=0,
)
ADDED = AdminAction(100_000, "ann", "key.add", "key 1", "here")

#: Times of admission of each cell's jobs, newest first, and how many jobs a page of the cell has at most.
cell = st.tuples(
    st.lists(st.integers(0, 30), max_size=8).map(lambda times: sorted(times, reverse=True)), st.integers(1, 4)
)


@given(cells=st.lists(cell, min_size=1, max_size=4), limit=st.integers(1, 5))
def test_the_pages_of_all_cells_have_each_job_once_and_newest_first(cells, limit):
    jobs = {
        f"c{number}": [replace(LINE, id=f"c{number}x{i}", admitted_ms=ms) for i, ms in enumerate(times)]
        for number, (times, _) in enumerate(cells)
    }
    most = {f"c{number}": most for number, (_, most) in enumerate(cells)}

    def list_jobs(client: str, _wanted: JobFilter, *, limit: int, cursor: str | None) -> JobLines:
        """Return a page of a cell, which can end early, as that of the store does."""
        lines = jobs[client]
        start = 0 if cursor is None else next(i for i, line in enumerate(lines) if line.cursor == cursor) + 1
        page = lines[start : start + min(limit, most[client])]
        has_more = start + len(page) < len(lines)
        return JobLines(page, page[-1].cursor if has_more else None, len(page))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_lists, "list_jobs", list_jobs)
        listed, cursor = [], None
        for _ in range(100):
            page = list_jobs_of_cells(
                {name: name for name in jobs}, dict.fromkeys(jobs, JobFilter()), limit=limit, cursor=cursor
            )
            assert len(page.jobs) <= limit
            listed += page.jobs
            cursor = page.cursor
            if cursor is None:
                break
    assert cursor is None
    assert sorted(line.id for _, line in listed) == sorted(line.id for lines in jobs.values() for line in lines)
    times = [line.admitted_ms for _, line in listed]
    assert times == sorted(times, reverse=True)
    assert all(line in jobs[name] for name, line in listed)


def test_a_cell_that_is_away_keeps_its_place_and_an_unknown_one_is_refused(monkeypatch):
    monkeypatch.setattr(job_lists, "list_jobs", lambda *_args, **_named: JobLines([], None, 0))
    page = list_jobs_of_cells({"a": None}, {"a": JobFilter()}, limit=5, cursor="a=,b=7-x", away=["b"])
    assert (page.jobs, page.cursor) == ([], "b=7-x")
    for cursor in ("b=7-x", "a", "", "a=1-x,", "a=1-x,c="):
        with pytest.raises(InvalidFilter, match="is not the cursor of a page of these cells"):
            list_jobs_of_cells({"a": None}, {"a": JobFilter()}, limit=5, cursor=cursor)


def at(ms: int, **fields: str) -> AdminAction:
    return replace(ADDED, at_ms=100_000 + ms, **fields)


def test_equal_records_of_different_cells_are_one_action_if_their_clocks_differ_little():
    merged = merge_actions({"b": [at(20), at(5)], "a": [at(3_000), at(10), at(7, on="key 2")]}, limit=9)
    assert [(one.at_ms - 100_000, one.on, cells) for one, cells in merged] == [
        (3_000, "key 1", ["a", "b"]),
        (10, "key 1", ["a", "b"]),
        (7, "key 2", ["a"]),
    ]
    apart = merge_actions({"a": [at(20_000)], "b": [at(0)]}, limit=9)
    assert [cells for _, cells in apart] == [["a"], ["b"]]
    assert len(merge_actions({"a": [at(2), at(1)], "b": [at(0)]}, limit=1)) == 1

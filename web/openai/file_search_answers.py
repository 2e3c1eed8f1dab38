"""The item `file_search_call` of a response, and the annotations of the text that cites its passages; pure functions.

A text cites a passage by its number in the prompt, such as `[2]` or `[1, 3]`; in JSON, such numbers are data. An answer
that names no number was made with all passages of its prompt, so each of their files is cited once, at its end.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from web.api.file_search import CitedFile, SearchedFiles, SearchTexts

#: The prefix of the item's id.
SEARCH_PREFIX = "fs_"
_MARK = re.compile(r"\[([0-9]{1,3}(?:[,;] ?[0-9]{1,3}){0,9})\]")
_NUMBER = re.compile(r"[0-9]+")
#: No mark is longer, in characters.
_LONGEST_MARK = 64
#: The most annotations of an answer.
MAX_ANNOTATIONS = 200


def search_json(job_id: str, searched: SearchedFiles, texts: SearchTexts, *, began: bool = False) -> dict[str, Any]:
    """Return the item of a search that has ended, or of one that has just begun."""
    shows = searched.shows_results and not began and texts.results is not None
    return {
        "id": SEARCH_PREFIX + job_id,
        "type": "file_search_call",
        "status": "in_progress" if began else searched.status,
        "queries": [] if began else list(texts.queries),
        "results": list(texts.results or ())[: len(searched.files)] if shows else None,
    }


class Annotator:
    """Finds the annotations of a text that arrives in pieces, the messages of one answer one after the other."""

    def __init__(
        self, files: Sequence[CitedFile], *, most_at_once: int | None = None, reads_marks: bool = True
    ) -> None:
        self._files, self._reads_marks = files, reads_marks
        #: The most annotations at one place.
        self.most_at_once = len(files) if most_at_once is None else most_at_once
        #: The annotations of the message that is open, and how many the answer has.
        self.annotations: list[dict[str, Any]] = []
        self._count = 0
        #: How many characters the message has, its last ones, and how many of those belong to earlier marks.
        self._length, self._tail, self._seen = 0, "", 0

    def limit(self, n_files: int) -> None:
        """Cite no more than the first of the files: the worker has left out the passages of the others."""
        self._files = self._files[:n_files]

    def begin(self) -> None:
        """Begin another message."""
        self.annotations, self._length, self._tail, self._seen = [], 0, "", 0

    def feed(self, text: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Yield a further piece of the message in parts, each with the annotations at its end.

        It is divided only where there are annotations, whose number is bounded.
        """
        known, self._tail = len(self._tail), self._tail + text
        sent = known
        for mark in _MARK.finditer(self._tail, self._seen) if self._reads_marks else ():
            if mark.end() <= known:
                continue
            self._seen = mark.end()
            if annotations := self._annotate(_NUMBER.findall(mark[1]), self._length + mark.end() - sent):
                part, self._length, sent = self._tail[sent : mark.end()], self._length + mark.end() - sent, mark.end()
                yield part, annotations
        if sent < len(self._tail):
            self._length += len(self._tail) - sent
            yield self._tail[sent:], []
        cut = max(0, len(self._tail) - _LONGEST_MARK)
        self._tail, self._seen = self._tail[cut:], max(0, self._seen - cut)

    def finish(self) -> list[dict[str, Any]]:
        """Return the annotations at the end of the answer: one for each file, if the answer has named no passage."""
        if self._count or not self._length:
            return []
        return self._annotate([str(number) for number in range(1, len(self._files) + 1)], self._length)

    def _annotate(self, numbers: Sequence[str], index: int) -> list[dict[str, Any]]:
        """Return an annotation at a place of the message for each file of the passages with these numbers."""
        files = dict.fromkeys(self._files[int(number) - 1] for number in numbers if 0 < int(number) <= len(self._files))
        room = max(0, MAX_ANNOTATIONS - self._count)
        added = [
            {"type": "file_citation", "file_id": each.id, "filename": each.name, "index": index}
            for each in list(files)[:room]
        ]
        self._count += len(added)
        self.annotations += added
        return added


def annotations_of(annotator: Annotator, text: str, *, is_last: bool) -> list[dict[str, Any]]:
    """Return the annotations of a whole message, which is the last part of its answer or not."""
    annotator.begin()
    for _ in annotator.feed(text):
        pass
    if is_last:
        annotator.finish()
    return annotator.annotations

"""A long text is divided by a process of its own, into the same chunks as here, and is refused at its limits."""

import sys
import time
from typing import Any

import pytest

from shared.jobs.prompt_weights import CHAT_COUNTS, TEXT_COUNTS, PromptWeights
from web.retrieval import dividing
from web.retrieval.dividing import INLINE_BYTES, divided
from web.retrieval.division import Division, TooManyChunks, titled_chunks
from web.retrieval.formats.documents import UnreadableDocument

PLENTY_S = 200.0
TEXT = "".join(f"# Title {n}\n\nGrüße aus Köln, Nummer {n}. Ein Satz.\n\n" for n in range(300))
WEIGHTS = PromptWeights((0.5,) * TEXT_COUNTS, (1.0,) * CHAT_COUNTS)


def soon() -> float:
    return time.monotonic() + PLENTY_S


@pytest.mark.parametrize(
    "counting", [{}, {"words": True, "whole": True}, {"weights": str(WEIGHTS), "whole": True}], ids=str
)
def test_a_process_makes_the_same_chunks_as_the_door(counting: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    division = Division(32, 8, 4_096, **counting)
    here = titled_chunks(TEXT, division)
    assert len(TEXT) > INLINE_BYTES
    monkeypatch.setattr(dividing, "titled_chunks", None)
    assert divided(TEXT, division, soon()) == here
    assert here[0][1] == max(1, round(division.counter()(here[0][0])))


def test_a_short_text_is_divided_without_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dividing, "read_apart", None)
    assert divided("# A\n\nOne.", Division(32, 8, 10), soon()) == [("# A\n\nOne.", 3)]


@pytest.mark.parametrize("text", [TEXT, TEXT[:4_000]], ids=["by a process", "here"])
def test_a_text_with_too_many_chunks_is_refused(text: str) -> None:
    with pytest.raises(TooManyChunks):
        divided(text, Division(16, 4, 10), soon())


def test_a_process_that_fails_or_is_late_is_named() -> None:
    with pytest.raises(UnreadableDocument, match="ended with 3"):
        divided(TEXT, Division(32, 8, 10), soon(), command=[sys.executable, "-c", "import os; os._exit(3)"])
    with pytest.raises(UnreadableDocument, match="takes more than"):
        divided(TEXT, Division(32, 8, 10), time.monotonic() + 0.2, command=[sys.executable, "-c", "while True: pass"])

"""Checks answers of the sim engine, however often they were paused, moved to another worker or put back."""

from typing import Any

#: All prompts of a run have this many words. Word number i of an answer, from 0, is `w<prompt words + i>`.
PROMPT = "tell me a story"
_FIRST = len(PROMPT.split())


def flaw_of(text: str) -> str:
    """Return what is wrong with the text of an answer or of its beginning; "" if nothing is."""
    words = text.count(" ")
    if text == "".join(f"w{_FIRST + i} " for i in range(words)):
        return ""
    return f"an answer with a gap or a repeat: {text!r}"


def usage_flaw_of(job: dict[str, Any]) -> str:
    """Return what is wrong with the usage of a job that succeeded; "" if nothing is."""
    words, counted = (job["text"] or "").count(" "), job["usage"].get("completion_tokens")
    return "" if words == counted else f"{counted} tokens in the usage of an answer of {words}"

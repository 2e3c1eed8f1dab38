"""Check the fields that ask Anthropic's servers to edit or keep a conversation; pure functions.

Here, a request has its whole conversation, and nothing is removed from it. So only what asks for no more is accepted.
"""

from typing import Any

from web.anthropic.fields import read_fields
from web.http.api_errors import ApiError, invalid, quoted
from web.openai.accepted_fields import shown, unsupported

_THINKING = "clear_thinking_20251015"
#: The values of `keep` with which no reasoning is removed.
_KEEPS_ALL: tuple[Any, ...] = ("all", {"type": "all"})


def check_context_management(value: Any) -> None:
    """Raise ApiError unless the edits of a conversation leave it as it is."""
    edits = read_fields(value, frozenset({"edits"}), "context_management").get("edits", [])
    if not isinstance(edits, list):
        raise invalid("context_management.edits", edits, "a list of edits")
    for i, edit in enumerate(edits):
        where = f"context_management.edits[{i}]"
        kind = edit.get("type") if isinstance(edit, dict) else None
        if kind != _THINKING:
            raise unsupported(f"{where}.type", f"type={shown(kind)!r}; nothing is removed from a conversation")
        kept = read_fields(edit, frozenset({"keep", "type"}), where).get("keep")
        if kept not in _KEEPS_ALL:
            raise unsupported(f"{where}.keep", f"keep={quoted(kept)}; only 'all' is accepted, which removes nothing")


def check_thread(value: Any) -> None:
    """Raise ApiError unless a thread begins with this request: no thread is kept, so none can be continued.

    Anthropic's packages recognize a lost thread by the error's code, and send the whole conversation.
    """
    fields = read_fields(value, frozenset({"previous_message_id", "type"}), "thread")
    if fields.get("type") == "continue":
        previous = quoted(fields.get("previous_message_id"))
        message = (
            f"thread.previous_message_id={previous} was not found: no conversation is kept, so send all its messages"
        )
        details = {"error_code": "thread_not_found"}
        raise ApiError("thread_not_found", message, param="thread.previous_message_id", details=details)
    if fields.get("type") != "create":
        raise invalid("thread.type", fields.get("type"), "'create' or 'continue'")

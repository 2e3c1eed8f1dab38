"""Where the user's own words are in a prompt with passages, so that a conversation can continue without the passages.

The payload of a request that is kept has the place in the field `question`: the index of the message, and the first
and last character of the words in it, or the index alone if the whole message was added. Pure functions.
"""

from collections.abc import Mapping
from typing import Any

#: The field of the payload.
FIELD = "question"


def place_of_words(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the field for a chat that got passages: its payload before and after. It is empty without messages."""
    old, new = before.get("messages"), after.get("messages")
    if not isinstance(old, list) or not isinstance(new, list):
        return {}
    if len(new) > len(old):
        return {FIELD: [len(old)]}
    at = next((at for at, (one, two) in enumerate(zip(old, new, strict=True)) if one != two), None)
    words = None if at is None else old[at].get("content")
    if at is None or not isinstance(words, str):
        return {}
    start = str(new[at]["content"]).find(words)
    return {FIELD: [at, start, start + len(words)]} if start >= 0 else {}


def own_messages(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a kept request as its client sent them. A place that was spoiled is ignored."""
    messages: list[dict[str, Any]] = list(request["messages"])
    place = request.get(FIELD)
    if not isinstance(place, list) or not place or not all(isinstance(each, int) for each in place):
        return messages
    at = place[0]
    if not 0 <= at < len(messages):
        return messages
    if len(place) == 1:
        return [*messages[:at], *messages[at + 1 :]]
    content = messages[at].get("content")
    if len(place) == 3 and isinstance(content, str):
        messages[at] = messages[at] | {"content": content[place[1] : place[2]]}
    return messages

"""Tests of AnswerStream: each format gets the same pieces of text, once, whatever happens to the attempts."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from shared.jobs.job import JobView, Usage
from shared.jobs.states import JobState
from shared.store.decode import job_view
from web.anthropic.message_answers import MessageEvents
from web.api.stream_format import StreamFormat
from web.http.api_errors import ApiError
from web.jobs.event_stream import JobEnded, JobRequeued, JobStarted, NothingNew, StreamItem, TextDelta
from web.openai.chat_answers import ChatStream, answer_format
from web.openai.response_events import ResponseEvents
from web.request.owned_calls import AnswerStream, CannotContinue, EndNotSeen

VIEW = job_view(0, 0, None, {"penstock_state": "running", "penstock_model": "m", "penstock_form": "{}"}, "j")
ENDED = replace(VIEW, state=JobState.SUCCEEDED, text="one two", usage=Usage(1, 0, 2), finish_reason="stop", ended_ms=9)

FORMATS: dict[str, Callable[[], StreamFormat]] = {
    "chat": lambda: ChatStream(answer_format(VIEW, "chat")),
    "completion": lambda: ChatStream(answer_format(VIEW, "completion")),
    "message": lambda: MessageEvents(VIEW, "r"),
    "response": lambda: ResponseEvents(VIEW),
}
every_format = pytest.mark.parametrize("name", FORMATS)


def stream(name: str, *, is_forwarded: bool = False) -> AnswerStream:
    return AnswerStream(FORMATS[name](), "j", lambda: is_forwarded)


def texts(frames: list[str]) -> list[str]:
    """Return the pieces of text in the frames."""
    found = []
    for line in "".join(frames).split("\n"):
        data = json.loads(line.removeprefix("data: ")) if line.startswith("data: {") else {}
        choice = (data.get("choices") or [{}])[0]
        delta = choice.get("delta", data.get("delta"))
        text = delta if isinstance(delta, str) else (delta or {}).get("content") or (delta or {}).get("text")
        found += [piece for piece in (text or choice.get("text"),) if piece]
    return found


@every_format
def test_a_text_that_another_attempt_generates_again_is_sent_once(name: str) -> None:
    first = [JobStarted("1", 1), TextDelta("2", "one", 1), NothingNew()]
    again = [JobRequeued("3"), JobStarted("4", 2), TextDelta("5", "on", 1), TextDelta("6", "e t", 2)]
    answer = stream(name)
    frames = list(answer.frames(iter([*first, *again, JobEnded("7", ENDED)])))
    assert texts(frames) == ["one", " t", "wo"]
    assert answer.ended
    assert frames.count("") == 1


@every_format
def test_a_resumed_attempt_continues_after_the_text_that_was_sent(name: str) -> None:
    items: list[StreamItem] = [TextDelta("2", "one", 1), JobStarted("4", 2, resumed=True), TextDelta("5", " two", 2)]
    assert texts(list(stream(name).frames(iter([*items, JobEnded("7", ENDED)])))) == ["one", " two"]


@every_format
def test_another_text_than_was_sent_stops_the_stream(name: str) -> None:
    answer = stream(name)
    items = iter([TextDelta("2", "one", 1), JobStarted("4", 2), TextDelta("5", "two", 1)])
    with pytest.raises(CannotContinue) as caught:
        list(answer.frames(items))
    assert caught.value.code == "job_failed"
    assert not answer.ended


@every_format
def test_a_lost_upstream_stops_a_stream_that_has_shown_text(name: str) -> None:
    shown, lost = TextDelta("2", "one", 1), JobRequeued("3")
    with pytest.raises(CannotContinue) as caught:
        list(stream(name, is_forwarded=True).frames(iter([shown, lost])))
    assert caught.value.code == "upstream_lost"
    unseen: Iterator[StreamItem] = iter([lost, JobEnded("7", ENDED)])
    assert texts(list(stream(name, is_forwarded=True).frames(unseen))) == ["one two"]


@every_format
def test_items_that_stop_before_the_end_are_not_taken_for_the_end(name: str) -> None:
    answer = stream(name)
    with pytest.raises(EndNotSeen):
        list(answer.frames(iter([TextDelta("2", "one", 1)])))
    assert not answer.ended


@every_format
def test_a_failure_is_an_event_of_a_response_and_an_error_elsewhere(name: str) -> None:
    failed: JobView = replace(ENDED, state=JobState.FAILED, text="one", finish_reason="", code="engine_error")
    answer = stream(name)
    items: Iterator[StreamItem] = iter([TextDelta("2", "one", 1), JobEnded("7", failed)])
    if name == "response":
        assert list(answer.frames(items))[-1].startswith("event: response.failed\n")
    else:
        with pytest.raises(ApiError) as caught:
            list(answer.frames(items))
        assert (caught.value.code, type(caught.value)) == ("job_failed", ApiError)
    assert answer.ended

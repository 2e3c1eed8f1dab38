"""Tests of the events of a response that reasons or calls tools: the same for any pieces, and resumable anywhere."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from shared.answer_parts import ARGUMENTS, CALL, END, REASONING, ordered_parts, read_parts
from web.api.file_search import CitedFile
from web.openai.file_search_answers import Annotator, annotations_of
from web.openai.response_events import OutputEvents

names = st.sampled_from(["f", "get_weather"])
texts = st.text("a{[12,]}\n", max_size=10)
answers = st.builds(
    lambda thought, content, calls: (
        thought + content + "".join(CALL + name + ARGUMENTS + text + END for name, text in calls)
    ),
    st.one_of(st.just(""), texts.map(lambda text: REASONING + text + END)),
    texts,
    st.lists(st.tuples(names, texts), max_size=3),
)
cuts = st.lists(st.integers(0, 60), max_size=10)
file = st.builds(lambda number: CitedFile(f"file-{number}", f"{number}.md"), st.integers(1, 3))
found = st.none() | st.lists(file, max_size=3)


def divided(text, at):
    borders = [0, *sorted(min(i, len(text)) for i in at), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(borders)]


def events_of(pieces, files, after=-1):
    """Return the events that a client gets that has received those up to the number `after`.

    `files` are those of a search whose item is before the others, or None without a search.
    """
    made = OutputEvents("job", 5, after, annotator=None if files is None else Annotator(files))
    events = [event for piece in pieces for event in made.add(piece)]
    events += made.end("completed", has_output=True)
    assert made.last_number > max(event.number for event in events)
    return [event for event in events if event.number > after]


def grown(events):
    """Return the text of each item of the output as its deltas add up to it."""
    items = {}
    for event in events:
        if event.kind.endswith(".delta"):
            place = event.body["output_index"]
            items[place] = items.get(place, "") + event.body["delta"]
    return items


@given(answers, cuts, found)
def test_items_open_grow_and_close_in_order_and_numbers_increase(text, at, files):
    events = events_of(divided(text, at), files)
    first = 0 if files is None else 1
    parts = read_parts(text)
    numbers = [event.number for event in events]
    assert numbers == sorted(set(numbers))
    done = [event.body["item"] for event in events if event.kind == "output_item.done"]
    expected = [("function_call", call.arguments) for call in parts.calls]
    if parts.content or not (expected or parts.reasoning):
        expected = [("message", parts.content), *expected]
    if parts.reasoning:
        expected = [("reasoning", parts.reasoning), *expected]
    found = [(item["type"], item["arguments"] if "arguments" in item else item["content"][0]["text"]) for item in done]
    assert found == expected
    assert grown(events) == {place: text for place, (_, text) in enumerate(expected, first) if text}
    added = [event.body["output_index"] for event in events if event.kind == "output_item.added"]
    assert added == list(range(first, first + len(expected)))


@given(answers, cuts, st.lists(file, min_size=1, max_size=3, unique=True))
def test_annotations_come_after_their_text_and_are_those_of_the_whole_answer(text, at, files):
    events = events_of(divided(text, at), files)
    whole = Annotator(files)
    parts = ordered_parts(text)
    expected = [
        annotations_of(whole, part.text, is_last=i == len(parts) - 1)
        for i, part in enumerate(parts)
        if part.kind == "content"
    ]
    done = [event.body["item"] for event in events if event.kind == "output_item.done"]
    items = [item["content"][0]["annotations"] for item in done if item["type"] == "message"]
    assert items == (expected or items)
    sent, length = [], 0
    for event in events:
        if event.kind == "output_item.added" and event.body["item"]["type"] == "message":
            length = 0
        elif event.kind == "output_text.delta":
            length += len(event.body["delta"])
        elif event.kind == "output_text.annotation.added":
            assert event.body["annotation"]["index"] == length
            sent.append(event.body["annotation"])
    assert sent == [each for one in items for each in one]


@given(answers, cuts, cuts, found, st.data())
def test_a_client_that_resumes_gets_the_rest_even_if_the_text_arrives_in_other_pieces(text, at, again, files, data):
    first = events_of(divided(text, at), files)
    seen = data.draw(st.integers(0, len(first) - 1))
    rest = events_of(divided(text, again), files, after=first[seen].number)
    together = grown(first[: seen + 1])
    for place, more in grown(rest).items():
        together[place] = together.get(place, "") + more
    assert together == grown(first)
    closed = [event for event in first if event.kind.endswith(("done", "added"))]
    assert [event for event in first[: seen + 1] if event in closed] + [
        event for event in rest if event.kind.endswith(("done", "added"))
    ] == closed

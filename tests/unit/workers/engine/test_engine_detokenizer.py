"""Tests of the detokenizer: it returns only whole characters and no stop strings, however tokens divide them."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from workers.engine.detokenizer import Detokenizer

_ALPHABET = "abä水🙂 \n"


def _cut(raw: bytes, at: list[int]) -> list[bytes]:
    """Cut the bytes into pieces at these positions."""
    borders = [0, *sorted(min(i, len(raw)) for i in at), len(raw)]
    return [raw[a:b] for a, b in itertools.pairwise(borders)]


def test_a_character_split_over_two_tokens_is_returned_once_it_is_complete():
    stream = Detokenizer()
    assert stream.feed(b"gr\xc3") == "gr"
    assert stream.feed(b"\xbc\xc3") == "ü"
    assert stream.feed(b"\x9f") == "ß"
    assert stream.finish() == ""
    assert stream.text == "grüß"


def test_an_incomplete_character_at_the_end_is_left_out():
    stream = Detokenizer()
    assert stream.feed("a🙂".encode()[:-1]) == "a"
    assert stream.finish() == ""
    assert stream.text == "a"


def test_a_possible_beginning_of_a_stop_string_is_held_back_until_it_is_ruled_out():
    stream = Detokenizer(("END",))
    assert stream.feed(b"the E") == "the "
    assert stream.feed(b"N") == ""
    assert stream.feed(b"emy") == "ENemy"
    assert not stream.stopped


def test_a_stop_string_across_three_tokens_ends_the_text_before_it():
    stream = Detokenizer(("\n\n", "STOP"))
    returned = [stream.feed(piece) for piece in (b"one S", b"T", b"OP two")]
    assert returned == ["one ", "", ""]
    assert (stream.stopped, stream.stopped_by) == (True, "STOP")
    assert (stream.finish(), stream.text) == ("", "one ")


def test_text_that_was_held_back_is_returned_at_the_end():
    stream = Detokenizer(("END",))
    stream.feed(b"the EN")
    assert stream.finish() == "EN"
    assert stream.text == "the EN"


def test_the_text_ends_before_the_earlier_of_two_stop_strings_in_one_token():
    stream = Detokenizer(("late", "early"))
    assert stream.feed(b"so early, so late") == "so "
    assert stream.stopped_by == "early"


def test_the_leading_space_of_the_tokenizer_is_removed_once():
    stream = Detokenizer(strip_space=True)
    assert [stream.feed(b""), stream.feed(b" a"), stream.feed(b" b")] == ["", "a", " b"]


@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=8))
def test_bytes_fed_in_any_pieces_give_the_same_text_as_all_bytes_at_once(raw, at):
    stream = Detokenizer()
    returned = "".join(stream.feed(piece) for piece in _cut(raw, at)) + stream.finish()
    assert returned == stream.text == raw.decode("utf-8", errors="ignore")


@given(
    st.text(_ALPHABET, max_size=30),
    st.lists(st.integers(0, 90), max_size=20),
    st.lists(st.text(_ALPHABET, min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_the_text_ends_before_the_first_stop_string_that_is_complete(text, at, stops):
    stream = Detokenizer(tuple(stops))
    returned = ""
    for piece in _cut(text.encode(), at):
        returned += stream.feed(piece)
        if stream.stopped:
            break
    returned += stream.finish()
    assert returned == stream.text
    assert text.startswith(returned)
    assert not any(stop in returned for stop in stops)
    assert stream.stopped == any(stop in text for stop in stops)
    if stream.stopped:
        assert text[len(returned) :].startswith(stream.stopped_by)
    else:
        assert returned == text

"""The gate's frames: however the stream is split, the same come out, and none is held beyond the limit."""

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from web.gate.frames import KEPT_BYTES, FrameReader, TooLong

LIMIT = 12

#: Streams in which lines end often, some empty, some at the limit, some far beyond it.
pieces = st.one_of(st.just(b"\n"), st.binary(max_size=4), st.binary(min_size=LIMIT - 1, max_size=3 * LIMIT))
streams = st.lists(pieces, max_size=30).map(b"".join)


def read(*chunks: bytes, limit: int = LIMIT) -> tuple[list[bytes | TooLong], bool]:
    """All frames of these chunks, and whether one has begun and not ended."""
    reader = FrameReader(limit)
    frames = [frame for chunk in chunks for frame in reader.feed(chunk)]
    return frames, reader.partial


def split(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[begin:end] for begin, end in itertools.pairwise(places)]


@given(streams, st.lists(st.integers(0, 10_000), max_size=20))
def test_the_frames_do_not_depend_on_how_the_stream_was_split(stream, cuts):
    whole, partial = read(stream)
    assert read(*split(stream, cuts)) == (whole, partial)
    assert read(*(bytes([byte]) for byte in stream)) == (whole, partial)


@given(streams)
def test_the_frames_are_the_lines_of_the_stream(stream):
    *lines, rest = stream.split(b"\n")
    too_long_rest = [rest] if len(rest) > LIMIT else []
    expected = [line if len(line) <= LIMIT else TooLong(line[:LIMIT]) for line in [*lines, *too_long_rest]]
    assert read(stream) == (expected, 0 < len(rest) <= LIMIT)


@given(streams, st.lists(st.integers(0, 10_000), max_size=20))
def test_no_more_than_the_limit_is_held(stream, cuts):
    reader = FrameReader(LIMIT)
    for chunk in split(stream, cuts):
        for _ in reader.feed(chunk):
            pass
        assert len(reader._held) <= LIMIT


def test_a_frame_of_exactly_the_limit_is_one_and_a_byte_more_is_too_long():
    assert read(b"x" * LIMIT + b"\n") == ([b"x" * LIMIT], False)
    assert read(b"x" * (LIMIT + 1) + b"\n") == ([TooLong(b"x" * LIMIT)], False)


def test_a_frame_too_long_is_told_before_it_has_ended_and_only_once():
    reader = FrameReader(LIMIT)
    assert list(reader.feed(b"x" * (LIMIT + 1))) == [TooLong(b"x" * LIMIT)]
    assert list(reader.feed(b"x" * 1_000)) == []
    assert not reader.partial
    assert list(reader.feed(b"x\nnext\n")) == [b"next"]


def test_an_endless_frame_takes_no_memory():
    reader = FrameReader(1 << 16)
    chunk = b"x" * (1 << 16)
    tracemalloc.start()
    told = sum(len(list(reader.feed(chunk))) for _ in range(1_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert told == 1
    assert peak < 1 << 20


@pytest.mark.parametrize("beginning", [b"half", b"h" * 2_000])
def test_a_frame_that_is_given_up_is_passed_over_to_its_end(beginning):
    reader = FrameReader(1 << 20)
    assert list(reader.feed(b"one\n" + beginning)) == [b"one"]
    assert reader.give_up() == beginning[:KEPT_BYTES]
    assert list(reader.feed(b" and its rest\ntwo\n")) == [b"two"]


def test_giving_up_between_frames_gives_up_nothing():
    reader = FrameReader(LIMIT)
    assert list(reader.feed(b"one\n")) == [b"one"]
    assert reader.give_up() == b""
    assert list(reader.feed(b"two\n")) == [b"two"]

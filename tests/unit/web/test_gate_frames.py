"""Tests that the gate finds the same frames however the stream is split, and buffers no more than its limit."""

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from web.gate.frames import KEPT_BYTES, FrameReader, OversizedFrame

LIMIT = 12

#: Streams of many lines: some are empty, some are near the limit, and some are far beyond it.
pieces = st.one_of(st.just(b"\n"), st.binary(max_size=4), st.binary(min_size=LIMIT - 1, max_size=3 * LIMIT))
streams = st.lists(pieces, max_size=30).map(b"".join)


def read(*chunks: bytes, limit: int = LIMIT) -> tuple[list[bytes | OversizedFrame], bool]:
    """Return all frames in these chunks, and whether the last frame is incomplete."""
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
    expected = [line if len(line) <= LIMIT else OversizedFrame(line[:LIMIT]) for line in [*lines, *too_long_rest]]
    assert read(stream) == (expected, 0 < len(rest) <= LIMIT)


@given(streams, st.lists(st.integers(0, 10_000), max_size=20))
def test_no_more_bytes_than_the_limit_are_buffered(stream, cuts):
    reader = FrameReader(LIMIT)
    for chunk in split(stream, cuts):
        for _ in reader.feed(chunk):
            pass
        assert reader.held_bytes <= LIMIT


def test_a_frame_of_exactly_the_limit_is_accepted_and_one_byte_more_is_oversized():
    assert read(b"x" * LIMIT + b"\n") == ([b"x" * LIMIT], False)
    assert read(b"x" * (LIMIT + 1) + b"\n") == ([OversizedFrame(b"x" * LIMIT)], False)


def test_an_oversized_frame_is_reported_once_and_before_it_ends():
    reader = FrameReader(LIMIT)
    assert list(reader.feed(b"x" * (LIMIT + 1))) == [OversizedFrame(b"x" * LIMIT)]
    assert list(reader.feed(b"x" * 1_000)) == []
    assert not reader.partial
    assert list(reader.feed(b"x\nnext\n")) == [b"next"]


def test_the_memory_for_an_endless_frame_is_bounded():
    reader = FrameReader(1 << 16)
    chunk = b"x" * (1 << 16)
    tracemalloc.start()
    reported = sum(len(list(reader.feed(chunk))) for _ in range(1_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reported == 1
    assert peak < 1 << 20


@pytest.mark.parametrize("beginning", [b"half", b"h" * 2_000])
def test_the_rest_of_a_discarded_frame_is_skipped(beginning):
    reader = FrameReader(1 << 20)
    assert list(reader.feed(b"one\n" + beginning)) == [b"one"]
    assert reader.discard_partial() == beginning[:KEPT_BYTES]
    assert list(reader.feed(b" and its rest\ntwo\n")) == [b"two"]


def test_discarding_between_two_frames_discards_nothing():
    reader = FrameReader(LIMIT)
    assert list(reader.feed(b"one\n")) == [b"one"]
    assert reader.discard_partial() == b""
    assert list(reader.feed(b"two\n")) == [b"two"]

"""Tests of the reader of GGUF headers: what it keeps, and what it says about cut, damaged and hostile files."""

import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.demo.random_gguf import write_random_model
from workers.gguf_header import MAX_HEADER_BYTES, HeaderFault, Skipped, layers_in, read_local_header

#: The numbers that stand for types in a GGUF file.
UINT32, FLOAT32, STRING, ARRAY = 4, 6, 8, 9


def text(value):
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def counts(n_tensors, n_values, *, version=3, magic=b"GGUF"):
    return struct.pack("<4sIQQ", magic, version, n_tensors, n_values)


def number(key, value):
    return text(key) + struct.pack("<II", UINT32, value)


def a_tensor(name="t", shape=(4,), kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


@pytest.fixture
def file_of(tmp_path):
    """A function that writes a file with these bytes, and returns its path."""

    def write(*parts):
        path = tmp_path / "odd.gguf"
        path.write_bytes(b"".join(parts))
        return path

    return write


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.gguf"
    write_random_model(path)
    return path


def test_short_values_are_kept_and_the_vocabulary_is_only_counted(model):
    header = read_local_header(model)
    assert header.values["general.architecture"] == "llama"
    assert header.values["llama.block_count"] == 2
    assert header.values["tokenizer.ggml.tokens"] == header.values["tokenizer.ggml.scores"] == Skipped(1024)
    (embedding,) = (tensor for tensor in header.tensors if tensor.name == "token_embd.weight")
    assert (embedding.shape, embedding.elements) == ((64, 1024), 65_536)
    last = max(header.tensors, key=lambda tensor: tensor.offset_bytes)
    assert header.data_start_bytes + last.offset_bytes + 4 * last.elements == model.stat().st_size


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([b""], "odd.gguf is cut or damaged: its 0 bytes end within the magic number"),
        ([b"<html>please log in</html>"], "is not a GGUF file: it begins with b'<htm'"),
        ([counts(0, 0, version=1)], "has GGUF version 1; versions 2 and 3 can be read"),
        ([counts(0, 0, version=3 << 24)], "the file is big-endian"),
        ([counts(0, 1 << 40)], "claims to have 1099511627776 metadata values"),
        ([counts(1 << 40, 0)], "claims to have 1099511627776 tensors"),
        ([counts(0, 1)], "its 24 bytes end within the length of the name of metadata value 0"),
        ([counts(0, 1), struct.pack("<Q", 1 << 60), b"x" * 64], "has 1152921504606846976 bytes, and 65535 are allowed"),
        ([counts(0, 1), text(b"\xff")], "the name of metadata value 0 is not UTF-8"),
        ([counts(0, 1), text("a"), struct.pack("<I", 99)], "the value of 'a' has the unknown type 99"),
        ([counts(0, 2), number("a", 1), number("a", 2)], "has the metadata key 'a' twice"),
        ([counts(0, 1), text("a"), struct.pack("<IQ", STRING, 1 << 62)], "end within the value of 'a'"),
        ([counts(0, 1), text("a"), struct.pack("<IIQ", ARRAY, UINT32, 1 << 61)], "end within the value of 'a'"),
        ([counts(0, 1), text("a"), struct.pack("<IIQ", ARRAY, ARRAY, 1)], "an array of the type 9"),
        ([counts(0, 1), number("general.alignment", 0)], "general.alignment=0"),
        ([counts(1, 0), a_tensor(shape=())], "tensor 't' has 0 dimensions"),
        ([counts(1, 0), a_tensor(shape=(1,) * 5)], "tensor 't' has 5 dimensions"),
        (
            [counts(1, 0), a_tensor(shape=(1 << 62, 1 << 62))],
            "has the shape [4611686018427387904, 4611686018427387904]",
        ),
        ([counts(2, 0), a_tensor(), a_tensor()], "has 1 tensors whose names occur twice"),
        ([counts(1, 0), a_tensor()[:-1]], "end within the shape of tensor 't'"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_sentence(file_of, parts, expected):
    with pytest.raises(HeaderFault) as caught:
        read_local_header(file_of(*parts))
    assert expected in str(caught.value)
    assert str(caught.value).startswith("odd.gguf ")
    assert "\n" not in str(caught.value)


def test_a_header_that_claims_gigabytes_takes_no_memory(tmp_path):
    path = tmp_path / "large.gguf"
    with path.open("wb") as file:
        file.write(counts(0, 2) + text("a") + struct.pack("<IQ", STRING, MAX_HEADER_BYTES))
        file.truncate(4 << 30)  # a file with a hole, which takes no space on the disk
    tracemalloc.start()
    with pytest.raises(HeaderFault, match="its header has more than"):
        read_local_header(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1 << 20


@settings(max_examples=50)
@given(data=st.data())
def test_any_cut_of_a_header_is_recognized(model, tmp_path_factory, data):
    header = read_local_header(model)
    end = data.draw(st.integers(0, header.data_start_bytes - 33))
    path = tmp_path_factory.mktemp("cut") / "odd.gguf"
    path.write_bytes(model.read_bytes()[:end])
    with pytest.raises(HeaderFault, match="cut or damaged"):
        read_local_header(path)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_number_of_layers_that_is_not_finite_says_nothing(file_of, value):
    assert layers_in(file_of(counts(0, 1), text("llama.block_count"), struct.pack("<If", FLOAT32, value))) is None


def test_the_number_of_layers_is_found_in_a_file_that_is_cut_behind_it(file_of):
    assert layers_in(file_of(counts(9, 9), number("llama.block_count", 7))) == 7
    assert layers_in(file_of(counts(9, 9), number("llama.context_length", 7))) is None

"""Tests of the fingerprint, which tells a worker whether token ids are those of its own model."""

import shutil

import pytest

from workers.demo.random_gguf import write_random_model
from workers.engine.llama.fingerprint import fingerprint_of


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "one.gguf"
    write_random_model(path, n_embd=64, n_layer=2, n_head=4, n_head_kv=2, n_ff=128, n_ctx_train=512)
    return path


def test_a_copy_of_a_model_has_the_same_fingerprint_under_any_name(model, tmp_path):
    copy = shutil.copy(model, tmp_path / "other.gguf")
    assert fingerprint_of(copy) == fingerprint_of(model)
    assert len(fingerprint_of(model)) == 16


@pytest.mark.parametrize("at", [30, -40])
def test_a_changed_header_or_weight_changes_the_fingerprint(model, tmp_path, at):
    changed = bytearray(model.read_bytes())
    changed[at] ^= 1
    (tmp_path / "changed.gguf").write_bytes(changed)
    assert fingerprint_of(tmp_path / "changed.gguf") != fingerprint_of(model)


def test_a_large_file_is_told_from_one_with_other_weights_without_reading_all_of_it(tmp_path):
    """The files have the same size and the same beginning; the holes take no space on the disk."""
    prints = set()
    for name, weights in (("one", b"\1"), ("two", b"\2")):
        path = tmp_path / name
        with path.open("wb") as file:
            file.truncate(1 << 32)
            file.seek(3 << 30)
            file.write(weights * (1 << 25))
        prints.add(fingerprint_of(path))
    assert len(prints) == 2

"""Tests which files of a folder are models, for folders as people have them."""

import os
import struct

import pytest

from shared.errors import ConfigError
from shared.jobs.model_folder import FolderModel, LeftOut, models_in
from shared.jobs.model_name import listed_models
from shared.settings.settings import load


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def write_gguf(path, tensors=1, **values):
    """Write the header of a GGUF file whose values are texts; `_` in names stands for `.`."""
    pairs = b"".join(text(key.replace("_", ".")) + struct.pack("<I", 8) + text(value) for key, value in values.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, len(values)) + pairs)


def names(folder):
    return [each.name for each in models_in(folder) if isinstance(each, FolderModel)]


def left_out(folder):
    return {each.path.name: each.why for each in models_in(folder) if isinstance(each, LeftOut)}


def test_files_that_belong_to_a_model_are_left_out_by_their_headers(tmp_path):
    write_gguf(tmp_path / "chat.gguf", general_architecture="llama", general_type="model")
    write_gguf(tmp_path / "chat-mmproj-f16.gguf", general_architecture="clip")
    write_gguf(tmp_path / "style.gguf", general_architecture="llama", general_type="adapter")
    write_gguf(tmp_path / "ggml-vocab-x.gguf", tensors=0, general_architecture="llama")
    write_gguf(tmp_path / "imatrix.gguf", general_type="imatrix")
    assert names(tmp_path) == ["chat"]
    assert left_out(tmp_path) == {
        "chat-mmproj-f16.gguf": "it is a projector, not a model",
        "style.gguf": "it is an adapter, not a model",
        "ggml-vocab-x.gguf": "it is a vocabulary, not a model",
        "imatrix.gguf": "it is an importance matrix, not a model",
    }


def test_the_first_part_of_a_split_model_needs_no_tensors_and_upper_case_is_an_extension_too(tmp_path):
    write_gguf(tmp_path / "big-00001-of-00002.gguf", tensors=0, general_architecture="llama")
    write_gguf(tmp_path / "big-00002-of-00002.gguf")
    write_gguf(tmp_path / "Loud.GGUF")
    assert names(tmp_path) == ["Loud", "big"]


def test_models_are_found_in_nested_folders_and_by_links_into_a_cache(tmp_path):
    cache = tmp_path / "models--org--repo"
    write_gguf(cache / "blobs" / "0123abcd", general_architecture="llama")
    (cache / "snapshots" / "rev").mkdir(parents=True)
    (cache / "snapshots" / "rev" / "linked.gguf").symlink_to("../../blobs/0123abcd")
    write_gguf(tmp_path / "publisher" / "model" / "nested.gguf")
    assert names(tmp_path) == ["linked", "nested"]


def test_a_loop_of_links_a_link_to_nothing_and_hidden_files_are_passed_over(tmp_path):
    write_gguf(tmp_path / "a.gguf")
    write_gguf(tmp_path / ".a.gguf.Xy12")
    write_gguf(tmp_path / ".cache" / "b.gguf")
    (tmp_path / "again").symlink_to(tmp_path)
    (tmp_path / "gone.gguf").symlink_to(tmp_path / "nowhere")
    (tmp_path / "itself.gguf").symlink_to(tmp_path / "itself.gguf")
    assert names(tmp_path) == ["a"]


def test_of_two_names_that_would_be_one_in_the_store_the_first_is_served(tmp_path):
    for name in ("a b.gguf", "a@b.gguf", "x/same.gguf", "y/same.gguf"):
        write_gguf(tmp_path / name)
    assert names(tmp_path) == ["a b", "same"]
    assert "would be one; list the models as NAME=MODEL,..." in left_out(tmp_path)["a@b.gguf"]


def test_names_that_a_model_cannot_have_are_left_out(tmp_path):
    write_gguf(tmp_path / "good name.gguf")
    for name in (b"not-utf8-\xff.gguf", b"two,names.gguf", b"new\nline.gguf", b" space.gguf", 230 * b"x" + b".gguf"):
        (tmp_path / os.fsdecode(name)).write_bytes(b"")
    assert names(tmp_path) == ["good name"]
    assert len(left_out(tmp_path)) == 5


def test_a_folder_whose_name_looks_like_a_list_is_a_folder(tmp_path):
    write_gguf(tmp_path / "a=b,c" / "x.gguf")
    assert list(listed_models(load({"PENSTOCK_MODELS": str(tmp_path / "a=b,c")}, None))) == ["x"]


def test_files_of_a_relative_folder_are_no_names_of_a_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_gguf(tmp_path / "models" / "a@1.gguf")
    [model] = listed_models(load({"PENSTOCK_MODELS": "models"}, None)).values()
    assert model.model == str(tmp_path / "models" / "a@1.gguf")


def test_a_file_that_cannot_be_read_is_left_out_with_the_reason(tmp_path, monkeypatch):
    write_gguf(tmp_path / "a.gguf")
    write_gguf(tmp_path / "secret.gguf")
    (tmp_path / "secret.gguf").chmod(0)
    if os.access(tmp_path / "secret.gguf", os.R_OK):
        pytest.skip("this user can read all files")
    assert names(tmp_path) == ["a"]
    assert left_out(tmp_path) == {"secret.gguf": "it cannot be read: Permission denied"}


def test_a_folder_with_nothing_to_serve_says_why(tmp_path):
    write_gguf(tmp_path / "mmproj.gguf")
    with pytest.raises(ConfigError, match=r"mmproj\.gguf is left out: it is a projector, not a model"):
        listed_models(load({"PENSTOCK_MODELS": str(tmp_path)}, None))


def test_a_header_that_is_cut_or_lies_is_no_fault_here(tmp_path):
    (tmp_path / "cut.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 2**63) + text("general.type")[:9])
    (tmp_path / "lie.gguf").write_bytes(
        b"GGUF" + struct.pack("<IQQ", 3, 1, 9) + text("x") + struct.pack("<IIQ", 9, 4, 2**60)
    )
    assert names(tmp_path) == ["cut", "lie"]

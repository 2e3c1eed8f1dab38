"""Tests that a folder of models is followed: new, replaced, deleted and half-copied files."""

import pytest

from shared.settings.settings import load
from workers.demo.random_gguf import write_random_model
from workers.gguf_header import HeaderUnread
from workers.swapping import catalog
from workers.swapping.catalog import Catalog


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model.gguf"
    write_random_model(path)
    return path.read_bytes()


class Folder:
    def __init__(self, path, model):
        self.path, self.now_s = path, 0.0
        (path / "first.gguf").write_bytes(model)
        settings = load({"PENSTOCK_ENGINE": "llama", "PENSTOCK_DEVICE": "cpu", "PENSTOCK_MODELS": str(path)}, None)
        self.catalog = Catalog(settings, {"first": str(path / "first.gguf")})
        assert self.look() == (["first"], [])

    def look(self):
        """Return the names of new models and of those that are gone, of the next look."""
        self.now_s += 1_000
        changes = self.catalog.look(self.now_s)
        return [each.model for each in changes.new], changes.gone


@pytest.fixture
def folder(tmp_path, model):
    return Folder(tmp_path, model)


def test_a_new_file_counts_once_it_is_complete_and_has_not_changed_between_two_looks(folder, model):
    new = folder.path / "new.gguf"
    new.write_bytes(model[: len(model) // 2])
    assert [folder.look() for _ in range(3)] == [([], [])] * 3, "it is cut"
    new.write_bytes(model)
    assert [folder.look() for _ in range(3)] == [([], []), (["new"], []), ([], [])]
    assert folder.catalog.models["new"] == str(new)


def test_a_file_that_cannot_be_used_is_read_again_only_once_it_has_changed(folder, model, monkeypatch):
    (folder.path / "new.gguf").write_bytes(model[: len(model) // 2])
    read = []

    def first_figures(settings, name, path):
        read.append(name)
        return figures(settings, name, path)

    figures = catalog.first_figures
    monkeypatch.setattr(catalog, "first_figures", first_figures)
    for _ in range(4):
        folder.look()
    assert read == ["new"]


def test_a_split_model_counts_once_all_its_parts_are_there(folder, model):
    (folder.path / "big-00001-of-00002.gguf").write_bytes(model)
    assert [folder.look() for _ in range(3)] == [([], [])] * 3


def test_a_deleted_file_is_gone_and_a_replaced_one_counts_anew(folder, model):
    path = folder.path / "first.gguf"
    path.write_bytes(model + b"\0")
    assert folder.look() == ([], ["first"])
    assert folder.look() == (["first"], [])
    path.unlink()
    assert folder.look() == ([], ["first"])
    assert folder.catalog.models == {}


def test_a_folder_that_is_away_for_a_while_keeps_its_models(folder):
    away = folder.path.with_name("away")
    folder.path.rename(away)
    assert folder.look() == ([], [])
    away.rename(folder.path)
    assert folder.look() == ([], [])
    assert list(folder.catalog.models) == ["first"]


def test_the_folder_is_looked_at_every_two_seconds(folder, model):
    (folder.path / "new.gguf").write_bytes(model)
    assert folder.catalog.look(folder.now_s + 1).new == []
    folder.now_s += 1
    folder.look()
    assert folder.look() == (["new"], [])


@pytest.mark.parametrize("fault", [OSError(5, "Input/output error"), HeaderUnread("the model cannot be read")])
def test_a_file_whose_disk_fails_for_a_moment_is_taken_later_and_the_others_stay(folder, model, monkeypatch, fault):
    (folder.path / "new.gguf").write_bytes(model)
    figures, faults = catalog.first_figures, [fault, fault]

    def first_figures(settings, name, path):
        if faults:
            raise faults.pop()
        return figures(settings, name, path)

    monkeypatch.setattr(catalog, "first_figures", first_figures)
    assert [folder.look() for _ in range(4)] == [([], [])] * 3 + [(["new"], [])]
    assert list(folder.catalog.models) == ["first", "new"]

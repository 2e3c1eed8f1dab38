"""Tests of headers that are read from a hub: what is requested, and what is said if the hub does not help."""

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from shared.clock import ManualClock
from shared.errors import ModelError
from shared.jobs.model_name import HubName
from tests.support.gguf_copy import copy_gguf
from tests.support.hub import FakeModelHub
from workers.demo.random_gguf import write_random_model
from workers.gguf_header import HeaderFault, read_local_header
from workers.model import hf_header
from workers.model.hf_header import hub_headers
from workers.plan.__main__ import main

LARGE, SMALL = HubName("org/two", "F32"), HubName("org/two", "Q8_0")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of 8 MB, a small one, and one in several files."""
    folder = tmp_path_factory.mktemp("files")
    write_random_model(folder / "m-F32.gguf", n_embd=128, n_vocab=8192)
    write_random_model(folder / "m-Q8_0.gguf")
    copy_gguf(folder / "m-Q8_0.gguf", folder / "part.gguf", tensors_a_file=8)
    return folder


@pytest.fixture
def hub(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeModelHub]:
    with FakeModelHub() as hub:
        hub.repos = {
            "org/two": {name: files / name for name in ("m-F32.gguf", "m-Q8_0.gguf")},
            "org/split": {path.name: path for path in files.glob("part-*.gguf")},
        }
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield hub
        huggingface_hub.close_session()


def test_a_header_from_a_hub_is_that_of_the_file_without_its_weights(hub: FakeModelHub, files: Path) -> None:
    assert hub_headers(LARGE) == [read_local_header(files / "m-F32.gguf")]
    assert hub.sent_bytes == 1 << 20
    assert (files / "m-F32.gguf").stat().st_size > 8 << 20


def test_a_header_may_be_longer_than_a_block(hub: FakeModelHub, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_header, "_FIRST_BYTES", 1_001)
    monkeypatch.setattr(hf_header, "_BLOCK_BYTES", 3_003)
    (header,) = hub_headers(SMALL)
    assert header == read_local_header(files / "m-Q8_0.gguf")
    assert len(hub.downloads()) > 3
    # Blocks that are skipped whole are not requested.
    assert hub.sent_bytes < header.data_start_bytes + 3_003


def test_all_parts_of_a_model_are_read(hub: FakeModelHub, files: Path) -> None:
    assert hub_headers(HubName("org/split")) == [read_local_header(path) for path in sorted(files.glob("part-*.gguf"))]


def test_a_plan_for_a_model_on_a_hub_is_that_for_the_file(
    hub: FakeModelHub, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["org/two:Q8_0", "--json"]) == main([str(files / "m-Q8_0.gguf"), "--json"]) == 0
    first, _, second = capsys.readouterr().out.partition("\n}\n")
    assert f"{first}\n}}\n" == second


def test_a_server_that_sends_whole_files_is_refused_before_they_arrive(hub: FakeModelHub) -> None:
    hub.ranges = False
    with pytest.raises(ModelError, match=r"header of m-F32\.gguf could not be read from .* \(HTTP range requests\)"):
        hub_headers(LARGE)


def test_a_file_that_the_hub_lists_but_does_not_have_is_named(hub: FakeModelHub, tmp_path: Path) -> None:
    hub.repos["org/cut"] = {"cut.gguf": tmp_path / "cut.gguf"}
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\0\0\0")
    with pytest.raises(HeaderFault, match=r"cut\.gguf is cut or damaged: its 8 bytes end within the number of tensors"):
        hub_headers(HubName("org/cut"))
    with pytest.raises(ModelError, match="has no repo org/none"):
        hub_headers(HubName("org/none"))


def test_a_server_that_is_slow_on_purpose_is_given_up(hub: FakeModelHub, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr(clock, "monotonic", iter(range(0, 10_000, 100)).__next__)
    with pytest.raises(ModelError, match="it took more than 120 s"):
        hub_headers(LARGE, clock)


def test_without_a_hub_and_a_local_copy_the_reason_is_said(hub: FakeModelHub) -> None:
    hub.close()
    with pytest.raises(ModelError, match=r"org/two is not in .*cache, and http://127.0.0.1:\d+ cannot be reached"):
        hub_headers(LARGE)

"""Models named by their hub name, from a hub on loopback, and models in several files are loaded and served."""

from pathlib import Path

import pytest

from tests.support.gguf_copy import copy_gguf
from tests.support.hub import FakeModelHub
from tests.support.processes import Stage
from workers.demo.random_gguf import write_random_model
from workers.exit_codes import ExitCode

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    write_random_model(path)
    return path


@pytest.fixture
def hub(gguf, tmp_path):
    """A hub with one repo in two quantizations, and repos that cannot be used, one for each reason."""
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF of another kind")
    with FakeModelHub() as hub:
        hub.repos = {
            "org/tiny": {"README.md": Path(__file__), "tiny-F32.gguf": gguf, "tiny-Q8_0.gguf": other},
            "org/huge": {"huge.gguf": other},
            "org/plain": {"model.safetensors": other},
            "org/gated": {"g.gguf": other},
            "org/chunked": {"c.gguf": other},
            "org/page": {"p.gguf": other},
        }
        hub.reported_sizes = {"huge.gguf": 1 << 60}
        hub.gated, hub.chunked = {"org/gated"}, {"org/chunked"}
        hub.behind_login_page = {"org/page"}
        yield hub


pytestmark = pytest.mark.ways("direct", reason="these tests use no door")


@pytest.fixture
def stage(tmp_path, hub):
    with Stage(tmp_path, HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "hf"), PENSTOCK_ENGINE="llama") as stage:
        yield stage


def run_job(stage, model):
    job = stage.admit(model=model, payload={"prompt": "once upon a time", "temperature": 0}, max_tokens=8)
    (view,) = stage.ended(job, timeout_s=60)
    assert view.state.value == "succeeded", view
    return view.text


def last_log_line(worker):
    assert worker.exit_code(timeout_s=60) == ExitCode.MODEL
    return worker.log.read_text().splitlines()[-1]


def test_a_model_is_downloaded_from_the_hub_once_and_then_served_without_the_hub(stage, hub):
    first = stage.worker(PENSTOCK_MODEL="org/tiny:F32@main")
    text = run_job(stage, "org/tiny")
    assert hub.downloads() == ["tiny-F32.gguf"]
    assert first.log_lines("model.download")
    first.kill()
    second = stage.worker(PENSTOCK_MODEL="org/tiny:F32@main")
    assert run_job(stage, "org/tiny") == text
    assert hub.downloads() == ["tiny-F32.gguf"]
    assert not second.log_lines("model.downloaded")
    second.kill()
    hub.close()
    third = stage.worker(PENSTOCK_MODEL="org/tiny:F32@main")
    assert third.log_lines("model.hub_away")
    assert run_job(stage, "org/tiny") == text


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("org/nothing", "has no repo org/nothing"),
        ("org/gated", "org/gated is gated: accept its terms"),
        ("org/tiny:F32@v9", "org/tiny has no revision 'v9'"),
        (
            "org/tiny",
            "org/tiny matches several models: tiny-F32.gguf, tiny-Q8_0.gguf; name one, such as org/tiny:tiny-F32.gguf",
        ),
        ("org/tiny:Q5_K", "org/tiny contains no model 'Q5_K'; it contains tiny-F32.gguf, tiny-Q8_0.gguf"),
        ("org/plain", "org/plain contains no GGUF file"),
        ("org/huge", "org/huge needs 1073741824.00 GiB more"),
        ("org/chunked", "org/chunked could not be downloaded from http://127.0.0.1"),
        ("org/page", "cannot be reached: JSONDecodeError"),
        ("org/tiny:Q8_0", "could not be loaded"),
    ],
)
def test_a_model_that_the_hub_cannot_provide_ends_the_start_with_one_sentence(stage, hub, model, expected):
    line = last_log_line(stage.worker(wait=False, PENSTOCK_MODEL=model))
    assert expected in line
    assert hub.downloads() == (["tiny-Q8_0.gguf"] if model == "org/tiny:Q8_0" else [])


def test_an_unreachable_hub_ends_the_start_if_there_is_no_local_copy(stage, hub):
    hub.close()
    assert "org/tiny is not in" in last_log_line(stage.worker(wait=False, PENSTOCK_MODEL="org/tiny:F32"))
    offline = stage.worker(wait=False, PENSTOCK_MODEL="org/tiny:F32", HF_HUB_OFFLINE="1")
    assert "cannot be reached: OfflineModeIsEnabled" in last_log_line(offline)


def test_a_model_in_several_files_is_loaded_by_the_name_of_any_of_them(stage, gguf, tmp_path, hub):
    copy_gguf(gguf, tmp_path / "part.gguf", tensors_a_file=8)
    parts = sorted(tmp_path.glob("part-*.gguf"))
    assert len(parts) > 1
    stage.worker(PENSTOCK_MODEL=str(parts[1]))
    text = run_job(stage, "part")
    hub.repos["org/split"] = {part.name: part for part in parts}
    stage.worker(PENSTOCK_MODEL="org/split")
    assert sorted(hub.downloads()) == [part.name for part in parts]
    assert run_job(stage, "org/split") == text
    parts[-1].unlink()
    line = last_log_line(stage.worker(wait=False, PENSTOCK_MODEL=str(parts[0])))
    assert f"these are missing: {parts[-1].name}" in line

"""An installed wheel serves from any folder, and a command whose extra is missing names the extra."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.up import Installation, Up
from tests.support.upstream_server import UpstreamServer
from tests.support.wheel import Installed, build_wheel, install


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def complete(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(wheel, tmp_path_factory.mktemp("complete") / "env", "web", "worker")


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(wheel, tmp_path_factory.mktemp("bare") / "env")


@pytest.fixture(scope="module")
def without_llama(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(wheel, tmp_path_factory.mktemp("without-llama") / "env", "web", "upstream")


@pytest.fixture
def foreign_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with another project's packages, modules and gunicorn configuration, under names that we import."""
    folder = tmp_path / "project"
    for name in ("web", "workers", "shared"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise AssertionError('the {name} of another project')\n")
    for name in ("redis", "flask", "gunicorn.conf", "numpy"):
        (folder / f"{name}.py").write_text(f"raise AssertionError('the {name} of another project')\n")
    return folder


def test_up_serves_a_job_from_a_folder_that_holds_packages_of_the_same_names(
    complete: Installed, foreign_folder: Path, tmp_path: Path
) -> None:
    options = ("--port", "0", "--gate-port", "0")
    place = Installation([complete.command], complete.environ(), foreign_folder)
    with Up(tmp_path / "state", *options, PENSTOCK_ENGINE="llama", place=place) as up:
        up.serving()
        body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
        status, job = up.ask("POST", "/v1/jobs?wait_ms=30000", body)
        assert (status, job["status"]) == (200, "succeeded"), job
        assert job["text"].strip()
        assert up.ask("GET", "/openapi.json")[0] == 200
        up.interrupt()
        assert up.exit_code() == 0


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("up", "web"),
        ("up --engine sim", "web"),
        ("web", "web"),
        ("gate", "web"),
        ("worker", "worker"),
        ("worker --engine sim", "worker"),
        ("worker --engine upstream", "upstream"),
        ("model demo story.gguf", "worker"),
        ("model minilm minilm.gguf", "worker"),
    ],
)
def test_a_command_whose_extra_is_missing_names_it_and_starts_nothing(
    bare: Installed, tmp_path: Path, command: str, extra: str
) -> None:
    upstream = {"PENSTOCK_UPSTREAM_URL": "http://127.0.0.1:9/v1", "PENSTOCK_UPSTREAM_MODEL": "m"}
    done = run(bare, tmp_path, *command.split(), **(upstream if extra == "upstream" else {}))
    assert done.returncode == 2, done
    assert f"the extra {extra!r} is not installed" in done.stderr
    assert f"pip install 'penstock[{extra}]'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_up_passes_jobs_to_an_upstream_without_llama_cpp(without_llama: Installed, tmp_path: Path) -> None:
    place = Installation([without_llama.command], without_llama.environ(), tmp_path)
    with UpstreamServer() as server:
        options = ("--port", "0", "--upstream", server.url, "--upstream-model", "m")
        with Up(tmp_path / "state", *options, place=place, PENSTOCK_ENGINE="llama") as up:
            up.serving()
            status, job = up.ask("POST", "/v1/jobs?wait_ms=60000", {"prompt": "Once upon a time", "max_tokens": 8})
            assert (status, job["status"], job["model"]) == (200, "succeeded", "m"), job
            assert job["text"].strip()
            assert run(without_llama, tmp_path, "doctor").returncode == 0


@pytest.mark.parametrize("command", ["up", "worker", "worker --engine llama", "demo", "plan model.gguf"])
def test_without_llama_cpp_a_command_for_a_local_model_names_the_extra(
    without_llama: Installed, tmp_path: Path, command: str
) -> None:
    done = run(without_llama, tmp_path, *command.split())
    assert done.returncode == 2, done
    assert "pip install 'penstock[worker]'" in done.stderr
    assert ("PENSTOCK_ENGINE=upstream" in done.stderr) == command.startswith(("up", "worker"))


def run(installed: Installed, folder: Path, *command: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environ = installed.environ() | {"PENSTOCK_STATE_DIR": str(folder / "state")} | settings
    return subprocess.run(
        [installed.command, *command], env=environ, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_commands_that_need_no_extra_work_without_extras(bare: Installed, tmp_path: Path) -> None:
    for command in (["--help"], ["config"], ["--version"]):
        done = run(bare, tmp_path, *command)
        assert done.returncode == 0, done
        assert done.stdout

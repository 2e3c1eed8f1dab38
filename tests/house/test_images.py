"""Tests the stages of the Dockerfiles, as far as that is possible without building them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = ("web/Dockerfile", "workers/Dockerfile")


@dataclass
class Stage:
    """One stage of a Dockerfile: the instructions after its FROM."""

    image: str
    name: str
    lines: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [rest for word, rest in self.lines if word == instruction]


def instructions(file: str) -> Iterator[tuple[str, str]]:
    text = "\n".join(line for line in (ROOT / file).read_text().splitlines() if not line.lstrip().startswith("#"))
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


def stages(file: str) -> list[Stage]:
    found: list[Stage] = []
    for word, rest in instructions(file):
        if word == "FROM":
            image, _, name = rest.partition(" AS ")
            found.append(Stage(image, name))
        elif found:
            found[-1].lines.append((word, rest))
    return found


def arguments(file: str) -> dict[str, str]:
    """Return the arguments of a build and their defaults."""
    return dict(rest.partition("=")[::2] for word, rest in instructions(file) if word == "ARG")


@pytest.mark.parametrize("file", FILES)
def test_an_image_takes_its_files_from_the_stage_that_builds_and_has_no_tools_of_the_build(file):
    build, run = stages(file)
    assert (build.name, run.name) == ("build", "")
    copied = run.all("COPY")
    assert copied
    assert all(line.startswith("--from=build /opt/") for line in copied)
    assert not re.search(r"pip install|g\+\+|cmake|-devel|--build-arg", " ".join(run.all("RUN")))


@pytest.mark.parametrize("file", FILES)
def test_every_package_is_installed_by_its_hash(file):
    build, _ = stages(file)
    installs = [part for line in build.all("RUN") for part in re.findall(r"pip install [^;&]*", line)]
    assert len(installs) >= 4
    for install in installs:
        assert (
            "--require-hashes -r requirements/" in install
            or install.split()[2:]
            == [
                "--no-deps",
                "--no-build-isolation",
                ".",
            ]
            or re.fullmatch(r"pip install --require-hashes --no-deps -r requirements/engine.txt", install.strip())
        )


@pytest.mark.parametrize("file", FILES)
def test_a_program_runs_as_a_numbered_user_whose_number_the_chart_knows(file):
    _, run = stages(file)
    assert run.all("USER") == ["10001"]
    assert run.all("CMD")[0].startswith('["penstock", ')


@pytest.mark.parametrize("file", FILES)
def test_every_argument_of_a_build_is_used_after_it_is_declared(file):
    for name in arguments(file):
        assert re.search(rf"^ARG {name}\b.*\$\{{?{name}\b", (ROOT / file).read_text(), re.DOTALL | re.MULTILINE), name


def test_kernels_are_compiled_for_the_gpus_of_data_centers_and_not_at_their_first_use():
    architectures = arguments("workers/Dockerfile")["CUDA_ARCHITECTURES"].split(";")
    assert {"80-real", "86-real", "89-real", "90-real"} <= set(architectures)
    # A GPU that is newer than all of them can still compile the kernels itself.
    assert [name for name in architectures if name.endswith("-virtual")] == ["90-virtual"]
    (build,) = (line for line in stages("workers/Dockerfile")[0].all("RUN") if "GGML_CUDA" in line)
    assert "-DCMAKE_CUDA_ARCHITECTURES=$CUDA_ARCHITECTURES" in build


def test_copies_of_libraries_become_links_before_they_are_copied_into_the_image():
    build, _ = stages("workers/Dockerfile")
    runs = build.all("RUN")
    (engine,) = (at for at, line in enumerate(runs) if "requirements/engine.txt" in line)
    (linked,) = (at for at, line in enumerate(runs) if "link_libraries.py" in line)
    assert linked > engine


def test_compose_builds_the_image_for_gpus_with_the_arguments_of_the_printed_command():
    (command,) = re.findall(
        r"docker build .* -t penstock-worker-cuda (.*?) \.\n", (ROOT / FILES[1]).read_text().replace(" \\\n# ", "")
    )
    printed = dict(re.findall(r"--build-arg (\w+)=(\S+)", command))
    compose = (ROOT / "compose.yaml").read_text()
    assert set(printed) == {"GPU", "BUILD_IMAGE", "RUN_IMAGE"}
    for name, value in printed.items():
        assert f"{name}: {value}\n" in compose

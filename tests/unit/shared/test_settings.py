"""Tests which settings the environment, the file and the command line may set, and how an error is reported."""

from dataclasses import fields

import pytest

from shared.errors import ConfigError
from shared.settings.setting import AUTO
from shared.settings.settings import SYSTEM_WIDE, Settings, as_environ, load, load_with_origin
from shared.settings.table import ROWS
from web.runtime.admin_key import load_admin_key


def read(**environ: str) -> Settings:
    return load(environ=environ, dotenv=None)


def test_the_rows_of_the_table_and_the_fields_of_the_settings_have_the_same_order():
    assert [row.field for row in ROWS] == [field.name for field in fields(Settings)]


def test_no_setting_has_a_name_that_kubernetes_could_generate():
    assert not [row.name for row in ROWS if row.name.endswith("_PORT")]


def test_every_default_as_it_is_shown_parses_to_the_default():
    for row in ROWS:
        assert row.parse(row.shown_default) == row.default


def test_an_unknown_setting_is_quoted_with_its_value():
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


def test_a_path_in_the_home_of_an_unknown_user_is_quoted_with_its_setting():
    with pytest.raises(ConfigError, match="PENSTOCK_STATE_DIR='~nosuchuser/state'"):
        _ = read(PENSTOCK_STATE_DIR="~nosuchuser/state").state_path
    with pytest.raises(ConfigError, match="PENSTOCK_ADMIN_KEY_FILE='~nosuchuser/key'"):
        load_admin_key(read(PENSTOCK_ADMIN_KEY_FILE="~nosuchuser/key"))


def test_a_settings_file_that_is_not_text_is_named_in_the_error(tmp_path):
    (tmp_path / ".env").write_bytes(b"PENSTOCK_MODEL=\xff\n")
    with pytest.raises(ConfigError, match=str(tmp_path / ".env")):
        load(environ={}, dotenv=tmp_path / ".env")


def test_variables_that_kubernetes_sets_for_a_service_called_penstock_are_ignored():
    read(PENSTOCK_SERVICE_HOST="10.0.0.1", PENSTOCK_PORT_8000_TCP_ADDR="10.0.0.1", PENSTOCK_PORT="tcp://10.0.0.1:8000")


def test_auto_is_accepted_by_a_setting_that_allows_it():
    assert read(PENSTOCK_MAX_INFLIGHT="auto").max_inflight == AUTO


def test_the_environment_for_a_child_process_gives_the_same_settings():
    settings = read(PENSTOCK_MAX_INFLIGHT="7", PENSTOCK_THREADS="auto", PENSTOCK_SIM_DECODE_TPS="12.5", REDIS_URL="")
    assert load(environ=as_environ(settings), dotenv=None) == settings


def test_a_child_process_has_its_parent_s_settings_even_if_the_file_differs(tmp_path):
    file = tmp_path / ".env"
    file.write_text("PENSTOCK_ENGINE=sim\nPENSTOCK_MODEL=other.gguf\n")
    settings = load({}, file, engine="llama", model="")
    assert load(as_environ(settings), file) == settings


def test_the_command_line_overrides_the_environment_which_overrides_the_file(tmp_path):
    file = tmp_path / ".env"
    file.write_text("PENSTOCK_LEASE_MS=1000\nPENSTOCK_MAX_ATTEMPTS=4\nPENSTOCK_MODEL=file\n")
    settings, origin = load_with_origin(
        {"PENSTOCK_MAX_ATTEMPTS": "5", "PENSTOCK_MODEL": "environment"}, file, model="given", engine=None
    )
    assert (settings.lease_ms, settings.max_attempts, settings.model) == (1000, 5, "given")
    assert origin["lease_ms"] == str(file)
    assert (origin["max_attempts"], origin["model"], origin["engine"]) == ("environment", "command line", "default")


def test_the_error_for_an_unknown_setting_in_a_file_names_the_file(tmp_path):
    file = tmp_path / ".env"
    file.write_text("PENSTOCK_LEASE=1\n")
    with pytest.raises(ConfigError, match=str(file)):
        load({}, file)


def test_an_open_door_is_refused_unless_it_listens_on_loopback():
    assert read(PENSTOCK_AUTH="open", PENSTOCK_LISTEN="[::1]:8000").listen_host_port == ("::1", 8000)
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0:8000"):
        read(PENSTOCK_AUTH="open", PENSTOCK_LISTEN="0.0.0.0:8000")


def test_a_maximum_deadline_below_the_default_deadline_is_refused():
    with pytest.raises(ConfigError, match="PENSTOCK_MAX_DEADLINE_MS=1000"):
        read(PENSTOCK_MAX_DEADLINE_MS="1000")


def test_every_system_wide_name_is_a_setting():
    assert set(SYSTEM_WIDE) <= {field.name for field in fields(Settings)}

"""Tests which settings the environment, the file and the command line may set, and how an error is reported."""

from dataclasses import fields

import pytest

from shared.errors import ConfigError
from shared.settings.setting import AUTO
from shared.settings.settings import SETTINGS, Settings, as_environ, load, load_with_origin
from web.runtime.start import load_admin_key


def read(**environ: str) -> Settings:
    return load(environ=environ, dotenv=None)


def test_each_setting_is_in_one_group():
    assert sum(len(fields(group)) for group in Settings.__bases__) == len(SETTINGS)


def test_no_setting_has_a_name_that_kubernetes_could_generate():
    assert not [setting.name for setting in SETTINGS.values() if setting.name.endswith("_PORT")]


def test_every_default_as_it_is_shown_parses_to_the_default():
    for setting in SETTINGS.values():
        assert setting.parse(setting.shown(setting.default)) == setting.default


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


def test_waiting_for_replicas_needs_a_store_that_can_have_some():
    assert read(PENSTOCK_ACK_REPLICAS="2", REDIS_URL="redis://db:6379").ack_replicas == 2
    with pytest.raises(ConfigError, match="PENSTOCK_ACK_REPLICAS=2 needs REDIS_URL"):
        read(PENSTOCK_ACK_REPLICAS="2")


def test_a_secret_is_read_from_the_file_that_its_variable_names(tmp_path):
    file = tmp_path / "url"
    file.write_text("redis://me:secret@store:6379/0\n")
    assert read(REDIS_URL_FILE=str(file)).redis_url == "redis://me:secret@store:6379/0"
    dotenv = tmp_path / ".env"
    dotenv.write_text(f"REDIS_URL_FILE={file}\n")
    assert load({}, dotenv).redis_url == "redis://me:secret@store:6379/0"
    assert load({"REDIS_URL": "redis://other"}, dotenv).redis_url == "redis://other"


@pytest.mark.parametrize("name", ["PENSTOCK_MODEL_NAME", "PENSTOCK_UPSTREAM_MODEL"])
def test_a_name_of_a_model_with_characters_that_are_not_shown_is_refused(name):
    with pytest.raises(ConfigError, match=rf"{name}='a\\u202eb' has a character that is not printable"):
        read(**{name: "a\u202eb"})


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("ftp://hooks.example/T0/token", ""),
        ("https://user:token@hooks.example/", ""),
        ("https://hooks.example:token/", ""),
        ("https:///token", ""),
        ("https://hooks.example/tok en", ""),
        ("https://hooks.example/", "whsec_token"),
    ],
)
def test_an_address_or_a_secret_for_alerts_that_cannot_be_used_is_refused_and_not_quoted(url, secret):
    with pytest.raises(ConfigError, match=r"PENSTOCK_ALERT_(URL|SECRET)=") as refused:
        read(PENSTOCK_ALERT_URL=url, PENSTOCK_ALERT_FORMAT="standard", PENSTOCK_ALERT_SECRET=secret)
    assert "tok" not in str(refused.value)


def test_every_secret_setting_may_be_read_from_a_file(tmp_path):
    file = tmp_path / "secret"
    urls = {"redis_url": "redis://store", "database_url": "postgresql://database/penstock"}
    urls["alert_url"] = "https://hooks.example/T0/B0/token"
    for field, setting in SETTINGS.items():
        if setting.secret:
            file.write_text(f"{urls.get(field, 'psk_one')}\n")
            assert getattr(read(**{setting.file_name: str(file)}), field) == file.read_text().strip()


def test_a_secret_that_is_set_twice_is_refused_without_showing_it(tmp_path):
    file = tmp_path / "key"
    file.write_text("psk_two")
    with pytest.raises(ConfigError, match="PENSTOCK_API_KEY and PENSTOCK_API_KEY_FILE=") as raised:
        read(PENSTOCK_API_KEY="psk_one", PENSTOCK_API_KEY_FILE=str(file))
    assert "psk_" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"\n", b"psk_one\npsk_two\n", b"\xff\xfe", b"k" * 20_000, None])
def test_a_file_that_does_not_hold_one_secret_is_named_and_not_quoted(tmp_path, content):
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"PENSTOCK_API_KEY_FILE='{file}'") as raised:
        read(PENSTOCK_API_KEY_FILE=str(file))
    assert "psk_" not in str(raised.value)


def test_a_child_process_ignores_the_file_from_which_its_parent_read_a_secret(tmp_path):
    file = tmp_path / "key"
    file.write_text("psk_one")
    environ = {"PENSTOCK_API_KEY_FILE": str(file)}
    settings = load(environ, dotenv=None)
    file.unlink()
    assert load(environ | as_environ(settings), dotenv=None) == settings


def test_an_error_quotes_no_secret():
    for environ in (
        {"REDIS_URL": "http://me:s3cret@store"},
        {"REDIS_URL": "s3cret"},
        {"PENSTOCK_APIKEY": "s3cret"},
        {"PENSTOCK_REDIS_PASSWORD": "s3cret"},
    ):
        with pytest.raises(ConfigError) as raised:
            load(environ, dotenv=None)
        assert "s3cret" not in str(raised.value)

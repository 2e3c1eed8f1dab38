"""Tests which hosts and origins the settings allow, and that an impossible name stops the start."""

from dataclasses import replace

import pytest

from shared.errors import ConfigError
from shared.settings.settings import Settings
from web.http.allowed_names import allowed_hosts, allowed_origins
from web.runtime.start import read_settings


def test_allowed_hosts_are_names_and_addresses_without_port_or_brackets(settings: Settings) -> None:
    named = replace(settings, allowed_hosts="API.example, 10.1.2.3,[fd00::1], ::1,penstock_web.ns.svc")
    assert allowed_hosts(named) == {"api.example", "10.1.2.3", "fd00::1", "::1", "penstock_web.ns.svc"}
    assert allowed_hosts(replace(settings, allowed_hosts=" * ")) == {"*"}
    assert allowed_hosts(settings) == {"localhost", "127.0.0.1", "::1"}


@pytest.mark.parametrize(
    "host", ["api.example:8443", "https://api.example", "*.example", "api.example/", "[::1]:80", "a b"]
)
def test_a_host_that_no_request_can_name_is_quoted_in_the_error(settings: Settings, host: str) -> None:
    with pytest.raises(ConfigError, match="PENSTOCK_ALLOWED_HOSTS=") as raised:
        allowed_hosts(replace(settings, allowed_hosts=f"api.example,{host}"))
    assert repr(host) in str(raised.value)


def test_allowed_origins_are_a_scheme_and_a_host_or_an_asterisk(settings: Settings) -> None:
    named = "https://app.example, http://localhost:3000,http://[::1]:8080,tauri://localhost,*"
    assert allowed_origins(replace(settings, cors_origins=named)) == {
        "https://app.example",
        "http://localhost:3000",
        "http://[::1]:8080",
        "tauri://localhost",
        "*",
    }
    assert allowed_origins(settings) == frozenset()


@pytest.mark.parametrize(
    "origin", ["app.example", "https://app.example/", "https://App.example", "https://*.example", "https://a.example/x"]
)
def test_an_origin_that_no_page_can_have_is_quoted_in_the_error(settings: Settings, origin: str) -> None:
    with pytest.raises(ConfigError, match="PENSTOCK_CORS_ORIGINS=") as raised:
        allowed_origins(replace(settings, cors_origins=f"https://app.example,{origin}"))
    assert repr(origin) in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value"), [("PENSTOCK_ALLOWED_HOSTS", "api.example:80"), ("PENSTOCK_CORS_ORIGINS", "app.example")]
)
def test_an_impossible_host_or_origin_stops_the_start_with_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as exited:
        read_settings()
    assert exited.value.code == 2
    assert f"penstock: {name}={value!r}" in capsys.readouterr().err

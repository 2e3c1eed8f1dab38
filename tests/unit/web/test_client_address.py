"""Tests whose address a request counts for: the peer's, or the client's that a trusted proxy reports."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ConfigError
from web.http.client_address import TrustedProxies, parse_trusted_proxies
from web.runtime.start import read_settings

#: One proxy at 10.0.0.1, a network of proxies in IPv6, and no Unix socket.
PROXIES = parse_trusted_proxies("10.0.0.1, 10.9.0.0/16, 2001:db8:1::/48")


def test_without_trusted_proxies_the_peer_is_the_client_whatever_it_claims() -> None:
    nobody = parse_trusted_proxies("")
    assert nobody == TrustedProxies()
    assert nobody.client_address("192.0.2.7", ["198.51.100.1"]) == "192.0.2.7"
    assert PROXIES.client_address("192.0.2.7", ["198.51.100.1, 10.0.0.1"]) == "192.0.2.7"


@pytest.mark.parametrize(
    ("lines", "client"),
    [
        (["198.51.100.1"], "198.51.100.1"),
        (["6.6.6.6, 198.51.100.1"], "198.51.100.1"),
        (["6.6.6.6, 198.51.100.1, 10.9.3.4"], "198.51.100.1"),
        (["6.6.6.6", "198.51.100.1", "10.9.3.4,10.9.3.5"], "198.51.100.1"),
        (["10.9.3.4, 10.9.3.5"], "10.9.3.4"),
        ([], "10.0.0.1"),
        (["", " , ,", "198.51.100.1 , ,"], "198.51.100.1"),
        (["198.51.100.1:50123"], "198.51.100.1"),
        (["[2001:db8:7::1]:443"], "2001:db8:7::1"),
        (["[2001:DB8:7::1]"], "2001:db8:7::1"),
        (["fe80::1%eth0"], "fe80::1"),
        (["::ffff:198.51.100.1"], "198.51.100.1"),
        (["198.51.100.1, ::ffff:10.9.3.4"], "198.51.100.1"),
        (["6.6.6.6, unknown"], "10.0.0.1"),
        (["6.6.6.6, _hidden, 10.9.3.4"], "10.9.3.4"),
        (["6.6.6.6, 198.51.100.1:port"], "10.0.0.1"),
        (["6.6.6.6, [::1]x"], "10.0.0.1"),
        (["6.6.6.6, unix:"], "10.0.0.1"),
    ],
)
def test_behind_a_trusted_proxy_the_client_is_the_last_untrusted_entry(lines: list[str], client: str) -> None:
    assert PROXIES.client_address("10.0.0.1", lines) == client


def test_a_listener_for_both_protocols_reports_ipv4_peers_as_ipv4() -> None:
    assert PROXIES.client_address("::ffff:192.0.2.7") == "192.0.2.7"
    assert PROXIES.client_address("::ffff:10.0.0.1", ["198.51.100.1"]) == "198.51.100.1"


def test_a_unix_socket_is_trusted_only_if_the_list_contains_unix() -> None:
    assert PROXIES.client_address("", ["198.51.100.1"]) == "unix"
    assert PROXIES.limiting_key("unix") == "unix"
    local = parse_trusted_proxies("unix")
    assert local.client_address("", ["6.6.6.6, 198.51.100.1"]) == "198.51.100.1"
    assert local.client_address("", []) == "unix"
    assert local.limiting_key("unix") is None


def test_an_ipv6_customer_is_limited_as_one_and_a_trusted_proxy_never() -> None:
    assert PROXIES.limiting_key("198.51.100.1") == "198.51.100.1"
    assert PROXIES.limiting_key("2001:db8:7:1::1") == "2001:db8:7:1::/64"
    assert PROXIES.limiting_key("2001:db8:7:1:ffff::9") == "2001:db8:7:1::/64"
    assert PROXIES.limiting_key("2001:db8:7:2::1") == "2001:db8:7:2::/64"
    assert PROXIES.limiting_key("10.9.255.255") is None
    assert PROXIES.limiting_key("2001:db8:1:5::1") is None


def test_of_ten_thousand_trusted_entries_only_the_last_ones_are_examined() -> None:
    entries = ["198.51.100.1", *["10.9.3.4"] * 10_000]
    assert PROXIES.client_address("10.0.0.1", [",".join(entries)]) == "10.9.3.4"
    assert PROXIES.client_address("10.0.0.1", ["198.51.100.1", "," * 10_000]) == "10.0.0.1"


@given(
    peer=st.sampled_from(["10.0.0.1", "192.0.2.7", "", "::1", "nonsense"]),
    lines=st.lists(st.text(alphabet="0123456789abcdef:.[], %x\x00é", max_size=60), max_size=5),
)
def test_no_header_makes_the_address_anything_but_an_address(peer: str, lines: list[str]) -> None:
    address = PROXIES.client_address(peer, lines)
    assert address == "unix" or str(ipaddress.ip_address(address)) == address
    PROXIES.limiting_key(address)


@pytest.mark.parametrize("entry", ["*", "10.0.0.1/8", "proxy.example", "10.0.0", "::ffff:10.0.0.1", "10.0.0.1:80", "/"])
def test_an_entry_that_is_no_proxy_stops_the_start_and_is_quoted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], entry: str
) -> None:
    value = f"10.1.2.3,{entry}"
    with pytest.raises(ConfigError, match="PENSTOCK_TRUSTED_PROXIES="):
        parse_trusted_proxies(value)
    monkeypatch.setenv("PENSTOCK_TRUSTED_PROXIES", value)
    with pytest.raises(SystemExit) as exited:
        read_settings()
    assert exited.value.code == 2
    shown = capsys.readouterr().err
    assert f"penstock: PENSTOCK_TRUSTED_PROXIES={value!r}" in shown
    assert repr(entry) in shown

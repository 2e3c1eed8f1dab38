"""Tests of the URLs that clients may name for webhooks, and of the addresses to which these may lead."""

import pytest

from shared.errors import ConfigError
from shared.settings.settings import load
from shared.settings.webhook_hosts import parse_hosts
from web.http.callback_url import MAX_URL_BYTES, check_allowed, is_public, parse_url

LISTED = parse_hosts("hooks.internal, [fd00::7],10.1.2.3,Port.internal:8080,[fd00::8]:90, fd00:0:0::9")


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "host_header"),
    [
        ("https://example.com", "example.com", 443, "/", "example.com"),
        ("https://Example.COM:443/a?b=c", "example.com", 443, "/a?b=c", "example.com"),
        ("HTTPS://example.com/a%20b", "example.com", 443, "/a%20b", "example.com"),
        ("http://hooks.internal:8080/x", "hooks.internal", 8080, "/x", "hooks.internal:8080"),
        ("http://hooks.internal/x@y", "hooks.internal", 80, "/x@y", "hooks.internal"),
        ("http://[fd00::7]:9000/", "fd00::7", 9000, "/", "[fd00::7]:9000"),
        ("http://[FD00:0::7]/", "fd00::7", 80, "/", "[fd00::7]"),
        ("http://[fd00::9]/", "fd00::9", 80, "/", "[fd00::9]"),
        ("http://[fd00::8]:90/", "fd00::8", 90, "/", "[fd00::8]:90"),
        ("http://port.internal:8080/", "port.internal", 8080, "/", "port.internal:8080"),
        ("https://" + "a" * 63 + ".example/", "a" * 63 + ".example", 443, "/", "a" * 63 + ".example"),
        ("https://a_b.c--d.example/", "a_b.c--d.example", 443, "/", "a_b.c--d.example"),
        ("https://8.8.8.8/", "8.8.8.8", 443, "/", "8.8.8.8"),
        ("https://xn--bcher-kva.example/", "xn--bcher-kva.example", 443, "/", "xn--bcher-kva.example"),
    ],
)
def test_an_allowed_url_is_divided_into_what_is_connected_to_and_what_is_sent(url, host, port, path, host_header):
    target = parse_url(url)
    check_allowed(target, LISTED)
    assert (target.host, target.port, target.path, target.host_header) == (host, port, path, host_header)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "begins with ''"),
        ("example.com/hook", "begins with ''"),
        ("ftp://example.com/", "begins with 'ftp'"),
        ("file:///etc/passwd", "begins with 'file'"),
        ("https://", "names the host ''"),
        ("https:///path", "names the host ''"),
        ("https://user:password@example.com/", "a user name or a password"),
        ("https://@example.com/", "a user name or a password"),
        ("https://example.com/#part", "a fragment"),
        ("https://example.com/#", "a fragment"),
        ("https://example.com:0/", "the port 0"),
        ("https://example.com:99999/", "not valid"),
        ("https://example.com:port/", "not valid"),
        ("https://[::1/", "not valid"),
        ("https://[fe80::1%25eth0]/", "names the host"),
        ("https://exa mple.com/", "a space"),
        ("https://example.com/a\r\nX-Evil: 1", "a space"),
        ("https://example.com\\@evil.com/", "a backslash"),
        ("https://bücher.example/", "outside printable ASCII"),
        ("https://-example.com/", "names the host"),
        ("https://127.1/", "names the host '127.1'"),
        ("https://2130706433/", "names the host '2130706433'"),
        ("https://0x7f.0.0.1/", "names the host"),
        ("https://0177.0.0.1/", "names the host"),
        ("https://example.0x7f/", "names the host"),
        ("https://a..example/", "names the host 'a..example'"),
        ("https://.example/", "names the host"),
        ("https://a.-b.example/", "names the host"),
        ("https://" + "a" * 64 + ".example/", "names the host"),
        ("https://" + "a." * 126 + "example/", "names the host"),
        ("https://example.com/" + "x" * MAX_URL_BYTES, "longer than 2048 bytes"),
    ],
)
def test_an_invalid_url_is_refused_with_a_message_that_names_the_problem(url, problem):
    with pytest.raises(ValueError, match="callback_url") as refused:
        check_allowed(parse_url(url), LISTED)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://example.com/", "only https"),
        ("https://example.com:8443/", "only 443"),
        ("https://127.0.0.1/", "not public"),
        ("https://[::1]/", "not public"),
        ("https://10.1.2.4/", "not public"),
        # A listed name does not list those below it or above it.
        ("http://more.hooks.internal/", "only https"),
        ("http://internal/", "only https"),
        ("http://hooks.internal./", "names the host"),
        # An entry with a port allows that port only.
        ("http://port.internal/", "only https"),
        ("https://port.internal:8081/", "only 443"),
        ("https://[fd00::8]/", "not public"),
    ],
)
def test_what_is_not_listed_needs_https_the_usual_port_and_a_public_address(url, problem):
    with pytest.raises(ValueError, match="callback_url") as refused:
        check_allowed(parse_url(url), LISTED)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    "entry",
    [
        "hooks.internal:0",
        "hooks.internal:70000",
        "hooks.internal:",
        "hooks.internal:http",
        "http://hooks.internal",
        "hooks.internal/path",
        "[::1",
        "::1]",
        "[hooks.internal]:80",
        "[10.0.0.1]",
        "10.0.0.999",
        "10.0.1",
        "fe80::1%eth0",
        "*.internal",
        "a..b",
        "a b",
        ":80",
        "[]:80",
        "1:2",
    ],
)
def test_a_listed_host_that_no_url_could_name_stops_the_start_and_is_quoted(entry):
    with pytest.raises(ConfigError, match="PENSTOCK_WEBHOOK_HOSTS") as refused:
        load({"PENSTOCK_WEBHOOK_HOSTS": f"hooks.internal,{entry}"}, dotenv=None)
    assert repr(entry) in str(refused.value)


def test_no_message_repeats_a_token_in_the_path():
    for url in ("http://example.com/token", "https://example.com:8443/token", "https://a b/token", "x://y/token"):
        with pytest.raises(ValueError, match="callback_url") as refused:
            check_allowed(parse_url(url), LISTED)
        assert "token" not in str(refused.value)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "192.0.0.8",
        "192.88.99.1",
        "3fff::1",
        "198.18.0.1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::8.8.8.8",
        "fe80::1",
        "fec0::1",
        "fc00::1",
        "fd12::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::10.0.0.1",
        "64:ff9b::127.0.0.1",
        "64:ff9b:1::8.8.8.8",
        "2002:7f00:1::",
        "2002:0a00:0001::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:db8::1",
        "100::1",
    ],
)
def test_an_address_that_is_not_public_or_embeds_such_a_one_is_recognized(address):
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1"]
)
def test_a_public_address_is_recognized(address):
    assert is_public(address)

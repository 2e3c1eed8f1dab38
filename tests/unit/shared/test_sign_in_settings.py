"""Tests which settings of sign-in are valid, alone and together."""

import ipaddress
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.errors import ConfigError
from shared.settings.settings import Settings, load
from shared.settings.sign_in_roles import Role, parse_roles
from web.http.client_address import TrustedProxies
from web.sign_in.sign_in import sign_in_proxies

ROOT = Path(__file__).parents[3]
ISSUER = {
    "PENSTOCK_OIDC_ISSUER": "https://login.example.org/realms/main",
    "PENSTOCK_OIDC_AUDIENCE": "penstock",
    "PENSTOCK_SIGN_IN_ROLES": "ops=operator",
}


def read(**environ: str) -> Settings:
    return load(environ=environ, dotenv=None)


def test_groups_have_roles_in_the_order_of_the_setting():
    text = "ops=operator, team-red=tenant:red ,team-red=tenant:crimson,cn=lab=group:research,"
    assert parse_roles(text) == (
        ("ops", Role("operator")),
        ("team-red", Role("tenant", "red")),
        ("team-red", Role("tenant", "crimson")),
        ("cn=lab", Role("group", "research")),
    )


@pytest.mark.parametrize(
    "entry",
    ["ops", "=operator", "ops=admin", "ops=tenant", "ops=tenant:", "ops=tenant:a b", "ops=operator:x", "a=Operator"],
)
def test_a_role_that_is_not_valid_is_quoted(entry):
    with pytest.raises(ConfigError, match=re.escape(f"PENSTOCK_SIGN_IN_ROLES contains {entry!r}")):
        read(PENSTOCK_SIGN_IN_ROLES=f"x=operator,{entry}")


@pytest.mark.parametrize(
    ("issuer", "problem"),
    [
        ("http://login.example.org", "must begin with https://"),
        ("http://10.0.0.1:8080", "must begin with https://"),
        ("https://:443", "must have a host"),
        ("https://user@login.example.org", "no user name"),
        ("https://login.example.org?a=b", "no user name, query or fragment"),
        ("https://login.example.org:http", "not a URL"),
        ("login.example.org", "does not look like an https URL"),
    ],
)
def test_an_issuer_that_is_not_valid_is_quoted_with_the_reason(issuer, problem):
    with pytest.raises(ConfigError, match=problem) as raised:
        read(**ISSUER | {"PENSTOCK_OIDC_ISSUER": issuer})
    assert f"PENSTOCK_OIDC_ISSUER={issuer!r}" in str(raised.value)


@pytest.mark.parametrize(
    "issuer", ["https://login.example.org", "http://127.0.0.1:8080/x", "http://localhost", "http://[::1]"]
)
def test_an_issuer_is_at_an_https_address_or_at_a_loopback_address(issuer):
    assert read(**ISSUER | {"PENSTOCK_OIDC_ISSUER": issuer}).oidc_issuer == issuer


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        (ISSUER | {"PENSTOCK_OIDC_AUDIENCE": ""}, "needs PENSTOCK_OIDC_AUDIENCE"),
        (ISSUER | {"PENSTOCK_SIGN_IN_ROLES": ""}, "needs PENSTOCK_SIGN_IN_ROLES"),
        (ISSUER | {"PENSTOCK_AUTH": "open"}, "needs PENSTOCK_AUTH=required"),
        ({"PENSTOCK_SIGN_IN_PROXIES": "10.1.2.3"}, "needs PENSTOCK_SIGN_IN_ROLES"),
    ],
)
def test_settings_that_are_not_valid_together_are_an_error_that_names_both(environ, problem):
    with pytest.raises(ConfigError, match=problem):
        read(**environ)


@pytest.mark.parametrize("networks", ["0.0.0.0/0", "10.0.0.1,::/0", "proxy.example", "10.0.0.1/8"])
def test_a_network_of_all_addresses_and_what_is_no_network_are_refused(networks):
    with pytest.raises(ConfigError, match="PENSTOCK_SIGN_IN_PROXIES="):
        sign_in_proxies(read(PENSTOCK_SIGN_IN_PROXIES=networks, PENSTOCK_SIGN_IN_ROLES="ops=operator"))


# --- the example of oauth2-proxy ---------------------------------------------------------------------


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return found


def test_the_settings_in_the_docs_name_the_address_of_the_proxy_in_compose():
    page = (ROOT / "docs" / "sign-in.md").read_text()
    block = re.search(r"   ```sh\n((?:   PENSTOCK_.*\n)+)   ```", page)
    assert block is not None
    settings = read(**dict(line.strip().split("=", 1) for line in block[1].splitlines()))
    address = re.search(r"\d+\.\d+\.\d+\.\d+", compose()["services"]["oauth2-proxy"]["networks"]["sso"]["ipv4_address"])
    assert address is not None
    proxies: TrustedProxies = sign_in_proxies(settings)
    assert proxies.trusts(address[0])
    # The first address of the network is that of the machine itself, from which everybody else arrives.
    assert not proxies.trusts(address[0].replace(".2", ".1"))


def test_the_proxy_reaches_the_door_in_the_network_in_which_its_address_is_known():
    services = compose()["services"]
    upstream = services["oauth2-proxy"]["environment"]["OAUTH2_PROXY_UPSTREAMS"]
    assert upstream == f"http://{services['web']['networks']['sso']['aliases'][0]}:8000"
    assert "aliases" not in services["web"]["networks"]["default"]


def test_no_other_container_can_get_the_address_of_the_proxy():
    services = compose()["services"]
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (ROOT / "compose.yaml").read_text())
    (pool,) = yaml.safe_load(text)["networks"]["sso"]["ipam"]["config"]
    subnet, others = ipaddress.ip_network(pool["subnet"]), ipaddress.ip_network(pool["ip_range"])
    plain = yaml.safe_load(text)["services"]["oauth2-proxy"]["networks"]["sso"]["ipv4_address"]
    assert others.subnet_of(subnet)
    assert ipaddress.ip_address(plain) in subnet
    assert ipaddress.ip_address(plain) not in others
    # The first address is the machine's own, and the last one is for all.
    assert subnet[1] not in others
    wanting = [
        name for name, one in services.items() if "sso" in (one.get("networks") or {}) and name != "oauth2-proxy"
    ]
    assert len(set(others) - {subnet[-1]}) >= len(wanting)


def test_no_container_but_the_proxy_reads_its_secrets_and_git_ignores_them():
    services = compose()["services"]
    readers = [name for name, service in services.items() if "sso.env" in str(service.get("env_file", ""))]
    assert readers == ["oauth2-proxy"]
    assert "sso.env" in (ROOT / ".gitignore").read_text().splitlines()


@pytest.mark.parametrize("block", range(2))
def test_the_settings_in_the_docs_are_valid(block):
    page = (ROOT / "docs" / "sign-in.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks[-1:] if block else blocks[:2]).splitlines()
    assert read(**dict(line.split("=", 1) for line in lines)).sign_in_roles

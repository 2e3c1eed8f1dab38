"""Checks settings that are valid separately but not together, the ports of addresses, and lists of hosts."""

from typing import TYPE_CHECKING

from shared.errors import ConfigError
from shared.settings.sign_in_roles import check_sign_in
from shared.settings.table import ROWS
from shared.settings.webhook_hosts import parse_hosts

if TYPE_CHECKING:
    from shared.settings.settings import Settings

_MAX_PORT = 65_535
#: The address on which `penstock gate` listens if PENSTOCK_GATE_LISTEN is not set.
GATE_LISTEN = "127.0.0.1:7070"


def check_combinations(settings: "Settings") -> None:
    """Raise ConfigError for settings that are valid separately but not together, and for invalid ports and hosts."""
    if settings.default_deadline_ms > settings.max_deadline_ms:
        raise ConfigError(
            f"PENSTOCK_DEFAULT_DEADLINE_MS={settings.default_deadline_ms} is greater than "
            f"PENSTOCK_MAX_DEADLINE_MS={settings.max_deadline_ms}"
        )
    if settings.ack_replicas and not settings.redis_url:
        raise ConfigError(
            f"PENSTOCK_ACK_REPLICAS={settings.ack_replicas} needs REDIS_URL: the embedded store has no replicas"
        )
    if settings.engine == "upstream":
        _check_upstream(settings)
    parse_hosts(settings.webhook_hosts)
    check_sign_in(settings)
    for row in ROWS:
        address = str(getattr(settings, row.field))
        if row.field.endswith("listen") and address and host_port(address)[1] > _MAX_PORT:
            raise ConfigError(f"{row.name}={address!r} is out of range: a port is 0 to {_MAX_PORT}")
    door_addresses = {"PENSTOCK_LISTEN": settings.listen, "PENSTOCK_GATE_LISTEN": settings.gate_listen or GATE_LISTEN}
    for name, listen in door_addresses.items():
        if settings.auth == "open" and host_port(listen)[0] not in {"127.0.0.1", "localhost", "::1"}:
            raise ConfigError(f"PENSTOCK_AUTH=open is for loopback addresses only, and {name}={listen!r} is not one")


def _check_upstream(settings: "Settings") -> None:
    if not settings.upstream_url:
        raise ConfigError("PENSTOCK_ENGINE='upstream' needs PENSTOCK_UPSTREAM_URL, such as http://127.0.0.1:8080/v1")
    if not (settings.upstream_model or settings.model_name):
        raise ConfigError("PENSTOCK_ENGINE='upstream' needs PENSTOCK_UPSTREAM_MODEL, the model's name at the upstream")


def host_port(listen: str) -> tuple[str, int]:
    """Return an address as (host, port). The brackets of an IPv6 address are removed."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)

"""Says through which HTTP proxy a request goes, by the environment's `http_proxy`, `https_proxy` and `no_proxy`."""

import os
import urllib.parse
import urllib.request

from shared.errors import ConfigError
from shared.hosts import is_loopback


def proxy_for(url: str) -> str | None:
    """Return the URL of the proxy for requests to this URL, or None. Raises ConfigError if it is no HTTP proxy.

    Loopback addresses have none: a proxy on another machine would connect to its own.
    """
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    proxies = urllib.request.getproxies_environment()
    proxy = proxies.get(parts.scheme)
    if not proxy or is_loopback(host) or urllib.request.proxy_bypass(_with_port(host, parts.port)):
        return None
    shown = proxy.rpartition("@")[2]
    address = proxy if "://" in proxy else f"http://{proxy}"
    try:
        proxy_parts = urllib.parse.urlsplit(address)
        is_http = proxy_parts.scheme in {"http", "https"} and bool(proxy_parts.hostname) and proxy_parts.port != 0
    except ValueError:
        is_http = False
    if not is_http:
        raise ConfigError(
            f"{_variable(parts.scheme)}={shown!r} is not the URL of an HTTP proxy, such as http://proxy.example:3128"
        )
    return address


def proxy_handler(url: str) -> urllib.request.ProxyHandler:
    """Return the handler that makes urllib's requests to this URL use its proxy, if it has one. Raises ConfigError."""
    proxy = proxy_for(url)
    return urllib.request.ProxyHandler({urllib.parse.urlsplit(url).scheme: proxy} if proxy else {})


def _with_port(host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return name if port is None else f"{name}:{port}"


def _variable(scheme: str) -> str:
    """Return the name of the variable that is set: lower case is used if both are."""
    name = f"{scheme}_proxy"
    return name if name in os.environ else name.upper()

"""Runs nginx from the system's package in front of an ingress, with the configuration in docs/proxies.md."""

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Self

from tests.support.ports import free_port
from tests.support.processes import ROOT, wait_for

#: Debian installs nginx into a folder that only root's PATH contains.
PROGRAM = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
#: If TESTS_NEED names nginx, as in continuous integration, its tests fail without nginx instead of being skipped.
MAY_BE_SKIPPED = PROGRAM is None and "nginx" not in os.environ.get("TESTS_NEED", "").split()

_FRAME = """daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{printed}
}}
"""


class Nginx:
    """One nginx process on its own port; leaving the context kills it."""

    def __init__(
        self,
        folder: Path,
        ingress_port: int,
        *,
        tls: tuple[Path, Path] | None = None,
        sign_in_port: int | None = None,
    ) -> None:
        """Start nginx; with `tls`, a certificate and its key, it listens with the lines for TLS in docs/deploy.md.

        With `sign_in_port`, it has the lines of docs/sign-in.md, and asks the program at this port about each request.
        """
        assert PROGRAM is not None, "nginx is not installed (Debian's nginx-light)"
        page = (ROOT / "docs" / "proxies.md").read_text(encoding="utf-8")
        (printed,) = re.findall(r"```nginx\n(.*?)```", page, re.DOTALL)
        self.port = free_port()
        for said, here in (("127.0.0.1:8000", ingress_port), ("127.0.0.1:8080", self.port)):
            assert said in printed
            printed = printed.replace(said, f"127.0.0.1:{here}")
        if tls is not None:
            printed = printed.replace(f"listen 127.0.0.1:{self.port};", _tls_lines(self.port, *tls))
        if sign_in_port is not None:
            printed = _with_sign_in(printed, sign_in_port)
        config = folder / "nginx.conf"
        config.write_text(_FRAME.format(folder=folder, printed=printed))
        self.url = f"http{'s' if tls else ''}://{'localhost' if tls else '127.0.0.1'}:{self.port}"
        self._process = subprocess.Popen([PROGRAM, "-e", "stderr", "-p", folder, "-c", config])

    def __enter__(self) -> Self:
        wait_for(lambda: self._process.poll() is not None or self._is_listening(), "nginx to listen")
        assert self._process.poll() is None
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _is_listening(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True


def _with_sign_in(printed: str, port: int) -> str:
    """Return the configuration with the lines of docs/sign-in.md, where that page says to put them."""
    page = (ROOT / "docs" / "sign-in.md").read_text(encoding="utf-8")
    locations, lines = re.findall(r"```nginx\n(.*?)```", page, re.DOTALL)
    for said, here in (
        ("proxy_set_header Host localhost;", "proxy_set_header Host $http_host;"),
        ("    location / {\n", f"{locations.replace('127.0.0.1:4180', f'127.0.0.1:{port}')}    location / {{\n{lines}"),
    ):
        assert said in printed
        printed = printed.replace(said, here)
    return printed


def _tls_lines(port: int, certificate: Path, key: Path) -> str:
    """Return the lines of docs/deploy.md that make nginx listen with TLS, with the port and the files of a test."""
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    (printed,) = re.findall(r"^ *listen 443 ssl;\n(?: *ssl_.*\n)+", page, re.MULTILINE)
    for said, here in (
        ("listen 443", f"listen 127.0.0.1:{port}"),
        ("/etc/ssl/certs/api.example.org.pem", certificate),
        ("/etc/ssl/private/api.example.org.key", key),
    ):
        assert said in printed
        printed = printed.replace(said, str(here))
    return str(printed)

"""A private `penstock up` for the demo: a stack in a temporary folder, with tenants, weights and API keys."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from shared.accounts.api_keys import ApiKeys
from shared.accounts.tenants import Tenants
from shared.cli.demo.ledger import Team
from shared.cli.readiness import why_not_ready
from shared.cli.stack.addresses import check_can_listen, listen_address
from shared.cli.stack.extras import module_command
from shared.cli.stack.processes import end_leftovers
from shared.cli.stack.stack import report
from shared.errors import PenstockError
from shared.jobs.tenant_policy import TenantPolicy
from shared.state_dir import find_key_prefix, find_url
from shared.store.connection import OPERATOR, open_client
from shared.store.embedded import EmbeddedStore

_HOST = "127.0.0.1"
_POLL_INTERVAL_S = 0.1
#: How long the stack may take to end after its stdin was closed, before it is killed.
_STOP_S = 30.0
#: How much of the stack's log is shown if it dies, in bytes.
_SHOWN_LOG_BYTES = 2_000


class PrivateStack:
    """A stack that exists for the length of a `with` block. It uses none of the user's settings and no other store."""

    def __init__(self, port: int) -> None:
        """Choose the address; port 0 is any free port. Raise ConfigError if this process cannot listen on it."""
        if port:
            check_can_listen(_HOST, port, "--port")
        self._address = listen_address(_HOST, port)
        self.url = f"http://{self._address}"
        self._state = Path()
        self._log = Path()

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
        self._state, self._log = self._folder, self._folder / "demo.log"
        foreign = ("PENSTOCK_", "REDIS_URL")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        environ |= {
            "PENSTOCK_STATE_DIR": str(self._state),
            "PENSTOCK_LISTEN": self._address,
            "PENSTOCK_AUTH": "required",
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                module_command("shared.cli.demo.stack_process"),
                env=environ,
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # Ctrl-C in the terminal signals only the demo, which then closes the pipe.
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None  # noqa: S101 - for mypy: it was started with a pipe
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode != 0 and self._state.exists():
            self._end_orphans()
        shutil.rmtree(self._folder, ignore_errors=True)

    def wait_until_ready(self) -> None:
        """Return when the door admits jobs. Raises PenstockError if the stack ends instead."""
        while why_not_ready(self.url):
            self.require_alive()
            time.sleep(_POLL_INTERVAL_S)

    def require_alive(self) -> None:
        """Raise PenstockError, with the end of the log, if the stack has ended."""
        if self._process.poll() is not None:
            tail = ""
            with suppress(OSError):
                tail = self._log.read_bytes()[-_SHOWN_LOG_BYTES:].decode(errors="replace")
            raise PenstockError(f"the demo's stack ended with exit code {self._process.returncode}: {tail.strip()}")

    def add_teams(self, teams: Sequence[Team]) -> dict[str, str]:
        """Give each team its weight and an API key. Return the keys by the teams' names."""
        url, prefix = find_url(self._state), find_key_prefix(self._state)
        with open_client(url, name="penstock-demo", prefix=prefix, timeouts=OPERATOR) as client:
            tenants, api_keys = Tenants(client), ApiKeys(client)
            for team in teams:
                tenants.set(team.name, TenantPolicy(weight=team.weight))
            return {team.name: api_keys.create(team.name, label="demo").key for team in teams}

    def admin_key(self) -> str:
        """Return the password of the console."""
        return (self._state / "admin.key").read_text(encoding="utf-8").strip()

    def _end_orphans(self) -> None:
        """End what a killed stack has left running: the door, the worker and the store's server."""
        end_leftovers(self._state, 0.0, report, lambda: True)
        with suppress(PenstockError):
            EmbeddedStore.start(self._state, wait_s=_STOP_S).stop()

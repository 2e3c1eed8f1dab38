"""The duty that sends alerts. One process of all doors has it at a time; each machine tells by itself of a store away.

docs/adr/0104-alerts-without-prometheus.md says what can be told twice and what not.
"""

import random
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from functools import partial

from shared.alerts.conditions import Condition, Finding, finding
from shared.alerts.findings import Finder, store_sentence
from shared.alerts.incidents import Incidents, Line, parse_incidents
from shared.alerts.stored import Held, StoredAlerts
from shared.errors import StoreUnavailable
from shared.log import LimitedEvent, get_logger
from shared.settings.secret_values import parse_signing_secret
from shared.store_fault import StoreFault
from web.http import shutdown
from web.http.callback_url import parse_url
from web.runtime.context import DoorContext
from web.webhooks.alert_message import MAX_LINES, message_id, slack_body, standard_body
from web.webhooks.alerts_of_machine import AlertsOfMachine
from web.webhooks.post import NameResolver, NoThreadFree, Resolve, look_up, post, signed_headers

log = get_logger()
_FAULT = LimitedEvent("alerts.fault", interval_s=60)

#: The time between two passes, in seconds.
PASS_S = 5.0
#: For how long the alerts are a process's: longer than all time limits of a try to send together.
LEASE_MS = 30_000


class Alerter:
    """Finds what is wrong and tells it by the webhook of the operator."""

    def __init__(self, context: DoorContext, resolve: Resolve = look_up) -> None:
        self._settings, self._metrics, self._context = context.settings, context.metrics, context
        self._stored, self._finder = StoredAlerts(context.store.client), Finder(context.store, context.settings)
        self._machine = AlertsOfMachine(context.settings.state_path, context.cell)
        self._asker = f"{socket.gethostname()[:64]}-{secrets.token_hex(8)}"
        self._resolve = partial(NameResolver(resolve).addresses, "")

    def start(self) -> None:
        """Start the thread, if there is a URL to send to."""
        if self._settings.alert_url:
            threading.Thread(target=self._run, name="alerts", daemon=True).start()

    def one_pass(self) -> None:
        """Look what is wrong, and send what is due. Another process does that for the fleet or for this machine."""
        if not self._machine.is_ours():
            return
        try:
            held = self._stored.claim(self._asker, lease_ms=LEASE_MS)
            if held is not None:
                self._tell_for_fleet(held)
        except StoreUnavailable as error:
            self._tell_for_machine(error.fault)
        else:
            self._tell_for_machine(None)

    def _tell_for_fleet(self, held: Held) -> None:
        """Tell what is in the store. Raises StoreUnavailable."""
        state = parse_incidents(held.state, held.now_ms)
        found = self._finder.find(state.samples, held.now_ms)
        state.note(self._named(found.findings), held.now_ms, unknown=found.unknown)
        tested = f"{held.test} {self._send([], held.now_ms, message=f'msg_test_{held.test}')}" if held.test else ""
        lines = self._due(state, held.now_ms)
        # Only a process that still has the alerts sends.
        if self._stored.write(self._asker, state.as_text(), lease_ms=LEASE_MS, tested=tested) and lines:
            self._tell(state, lines, held.now_ms)
            self._stored.write(self._asker, state.as_text(), lease_ms=LEASE_MS)

    def _tell_for_machine(self, fault: StoreFault | None) -> None:
        """Tell that the store is away for this machine, or that it is back."""
        now_ms = time.time_ns() // 1_000_000
        state = self._machine.read(now_ms)
        if fault is None and not state.open:
            return
        state.note(self._named([] if fault is None else [_store_away(fault)]), now_ms)
        lines = self._due(state, now_ms)
        if lines:
            self._machine.write(state)
            self._tell(state, lines, now_ms)
        self._machine.write(state)

    def _named(self, found: Sequence[Finding]) -> list[Finding]:
        """Return findings that name the cell, if there are several."""
        if self._context.cells.directory is None:
            return list(found)
        cell = self._context.cell
        return [finding(one.condition, f"{cell} {one.subject}".strip(), f"cell {cell}: {one.text}") for one in found]

    def _due(self, state: Incidents, now_ms: int) -> list[Line]:
        wait_ms, repeat_ms = 1_000 * self._settings.alert_for_s, 1_000 * self._settings.alert_repeat_s
        return state.due(now_ms, for_ms=wait_ms, repeat_ms=repeat_ms)

    def _tell(self, state: Incidents, lines: Sequence[Line], now_ms: int) -> None:
        these = lines[:MAX_LINES]
        result = self._send(these, now_ms, message=message_id(these), more=len(lines) - len(these))
        if result == "delivered":
            state.told(these, now_ms)
        else:
            state.failed(result, now_ms, random.random)

    def _send(self, lines: Sequence[Line], now_ms: int, *, message: str, more: int = 0) -> str:
        """Send one message and return how that ended, a word of WebhookResult or `no_thread`."""
        sender, headers = socket.gethostname()[:64], {}
        if self._settings.alert_format == "standard":
            body = standard_body(message, lines, now_ms, sender, more)
            secret = parse_signing_secret("PENSTOCK_ALERT_SECRET=(not shown)", self._settings.alert_secret)
            # Receivers compare this time with their own clock.
            headers = signed_headers(message, int(time.time()), body, [secret])
        else:
            body = slack_body(lines, sender, more)
        target = parse_url(self._settings.alert_url)
        try:
            # The operator's own URL may be private. Redirects are not followed.
            result = post(target, body, headers, is_listed=True, resolve=self._resolve).value
        except NoThreadFree:
            result = "no_thread"
        self._metrics.alerts.labels(result).inc()
        conditions = [f"{line.status} {line.incident.key}" for line in lines] or ["test"]
        level = "info" if result == "delivered" else "warning"
        # The path of the URL may be a token.
        getattr(log, level)("alerts.sent", outcome=result, host=target.host, id=message, conditions=conditions)
        return result

    def _run(self) -> None:
        closed = self._context.closed
        while not (shutdown.requested.is_set() or closed.is_set()):
            try:
                self.one_pass()
            except Exception:  # noqa: BLE001 - it is logged, but not each time
                self._metrics.alerts.labels("fault").inc()
                _FAULT.log("error", exc_info=True)
            closed.wait(PASS_S)


def _store_away(fault: StoreFault) -> Finding:
    condition = Condition.STORE_REFUSES_WRITES if fault.refuses_writes_only else Condition.STORE_AWAY
    host = socket.gethostname()[:64]
    return finding(condition, host, f"for the door on {host}, {store_sentence(fault)}")

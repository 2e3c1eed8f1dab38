"""The duty that sends webhooks: each HTTP process claims one after the other, and sends several at once."""

import random
import secrets
import threading
from collections import Counter
from collections.abc import Callable

import structlog

from shared.accounts.webhook_secrets import WebhookSecrets
from shared.errors import StoreUnavailable
from shared.store.webhooks.results import WebhookResult
from shared.store.webhooks.webhooks import ClaimedWebhook, Webhooks
from web.http import shutdown
from web.http.callbacks.url import CallbackTarget, check_allowed, parse_hosts, parse_url
from web.operations.webhooks.event import event_body, webhook_id
from web.operations.webhooks.post import Resolve, post
from web.operations.webhooks.signature import signed_headers
from web.runtime.context import DoorContext

log = structlog.get_logger()

#: How many webhooks a process sends at once: in all, of one tenant, and to one host. A tenant whose receiver is slow
#: takes only its part.
AT_ONCE, AT_ONCE_OF_TENANT, AT_ONCE_TO_HOST = 32, 3, 6
#: For how long a claimed webhook is a process's: longer than all time limits of a try together.
LEASE_MS = 60_000
#: The wait after the first failed try, and the longest one, in ms. A wait is twice as long as the one before.
FIRST_REST_MS, LONGEST_REST_MS = 5_000, 1_800_000
#: How long a webhook waits whose host has as many connections as it may, in ms.
_HOST_BUSY_MS = 500
#: The longest wait before a process looks whether a webhook is due, and the wait after an error, in seconds.
_LOOK_S, _AFTER_ERROR_S = 0.5, 1.0
#: After these results, no later try can succeed.
_HOPELESS = frozenset({WebhookResult.UNREADABLE})


def rest_ms(tries: int, jitter: Callable[[], float] = random.random) -> int:
    """Return the wait before the next try. The jitter (from 0 to 1) spreads the tries to a receiver that was away."""
    longest = min(LONGEST_REST_MS, FIRST_REST_MS * 2 ** min(tries, 20))
    return int(longest * (0.5 + 0.5 * jitter()))


class WebhookSender:
    """Sends webhooks of all tenants, and counts what it has open."""

    def __init__(self, context: DoorContext, resolve: Resolve | None = None) -> None:
        self._context, self._resolve = context, resolve
        self._webhooks, self._secrets = Webhooks(context.store.client), WebhookSecrets(context.store.client)
        self._hosts = parse_hosts(context.settings.webhook_hosts)
        self._lock = threading.Lock()
        #: What is open, by tenant and by host; changed under the lock.
        self._by_tenant, self._by_host = Counter[str](), Counter[str]()
        self._one_ended = threading.Event()

    def start(self) -> None:
        """Start the thread that claims."""
        threading.Thread(target=self._run, name="webhooks", daemon=True).start()

    def claim(self) -> ClaimedWebhook | int | None:
        """Claim the webhook whose turn it is, as `Webhooks.claim` does. Raises StoreUnavailable."""
        with self._lock:
            busy = [tenant for tenant, number in self._by_tenant.items() if number >= AT_ONCE_OF_TENANT]
        return self._webhooks.claim(secrets.token_hex(8), lease_ms=LEASE_MS, busy=busy)

    def send(self, claimed: ClaimedWebhook) -> None:
        """Try to send a claimed webhook, and write how that ended. Raises StoreUnavailable."""
        target = _target_of(claimed)
        host = target.host if target else ""
        with self._lock:
            is_free = self._by_host[host] < AT_ONCE_TO_HOST
            self._by_host[host] += is_free
        if not is_free:
            self._webhooks.write(claimed, None, rest_ms=_HOST_BUSY_MS)
            return
        try:
            result = self._try(claimed, target)
        finally:
            with self._lock:
                self._by_host[host] -= 1
                self._by_host += Counter()
        left_ms = None if result in _HOPELESS else rest_ms(claimed.tries)
        became = self._webhooks.write(claimed, result, rest_ms=left_ms)
        if became != "told":
            # The URL is not logged: its path may contain a token.
            facts = {"webhook": claimed.id, "tenant": claimed.tenant, "host": host, "reason": result.value}
            log.warning("webhook.failed", became=became, tries=claimed.tries + 1, **facts)

    def start_next(self) -> float:
        """Claim a webhook and send it in a thread; return the seconds to wait. Raises StoreUnavailable."""
        with self._lock:
            if self._by_tenant.total() >= AT_ONCE:
                return _LOOK_S
        claimed = self.claim()
        if not isinstance(claimed, ClaimedWebhook):
            return _LOOK_S if claimed is None else min(_LOOK_S, claimed / 1000)
        with self._lock:
            self._by_tenant[claimed.tenant] += 1
        threading.Thread(target=self._send_in_thread, args=(claimed,), name="webhook", daemon=True).start()
        return 0.0

    def open_by_tenant(self) -> Counter[str]:
        """Return how many tries of each tenant are open in this process."""
        with self._lock:
            return +self._by_tenant

    def _try(self, claimed: ClaimedWebhook, target: CallbackTarget | None) -> WebhookResult:
        subject = claimed.subject()
        if subject is None or target is None:
            return WebhookResult.UNREADABLE
        try:
            check_allowed(target, self._hosts)
        except ValueError:
            return WebhookResult.REFUSED_URL
        keys = self._secrets.get(claimed.tenant)
        if not keys:
            return WebhookResult.UNSIGNED
        body = event_body(subject, claimed.ended_ms, is_cut=claimed.is_cut)
        headers = signed_headers(webhook_id(claimed.id), claimed.now_ms // 1000, body, keys)
        return post(target, body, headers, is_listed=target.host in self._hosts, resolve=self._resolve)

    def _run(self) -> None:
        while not shutdown.requested.is_set():
            try:
                wait_s = self.start_next()
            except StoreUnavailable:
                wait_s = _AFTER_ERROR_S
            except Exception:
                # The webhook is due again when the claim has ended; the others must not wait for it.
                log.exception("webhook.fault")
                wait_s = _AFTER_ERROR_S
            if wait_s > 0:
                self._one_ended.wait(wait_s)
                self._one_ended.clear()

    def _send_in_thread(self, claimed: ClaimedWebhook) -> None:
        try:
            self.send(claimed)
        except StoreUnavailable:
            # The store has the claim, which ends; the webhook is then sent again with the same id.
            log.warning("webhook.unwritten", webhook=claimed.id, tenant=claimed.tenant)
        except Exception:
            log.exception("webhook.fault")
        finally:
            with self._lock:
                self._by_tenant[claimed.tenant] -= 1
                self._by_tenant += Counter()
            self._one_ended.set()


def _target_of(claimed: ClaimedWebhook) -> CallbackTarget | None:
    try:
        return parse_url(claimed.url)
    except ValueError:
        return None

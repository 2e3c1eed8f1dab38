"""The duty that sends webhooks: each HTTP process claims one after the other, and sends several at once."""

import random
import secrets
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

from shared.accounts.webhook_secrets import WebhookSecrets
from shared.errors import StoreUnavailable
from shared.log import LimitedEvent, get_logger
from shared.settings.webhook_hosts import parse_hosts
from shared.store.webhook_results import WebhookResult
from shared.store.webhooks import ClaimedWebhook, Webhooks
from web.http import shutdown
from web.http.callback_url import CallbackTarget, check_allowed, is_listed, parse_url
from web.runtime.context import DoorContext
from web.webhooks.event import event_body, webhook_id
from web.webhooks.post import NameResolver, NoThreadFree, Resolve, look_up, post, signed_headers

log = get_logger()
#: The owner of a receiver can cause these lines as often as they like.
_FAILED, _FAULT = LimitedEvent("webhook.failed"), LimitedEvent("webhook.fault", interval_s=60)

#: How many webhooks a process sends at once: in all, of one tenant, and to one port of a host. A tenant whose receiver
#: is slow takes only its part. A tenant's first to a host is always sent, whatever other tenants send there.
AT_ONCE, AT_ONCE_OF_TENANT, AT_ONCE_TO_HOST = 32, 3, 6
#: For how long a claimed webhook is a process's: longer than all time limits of a try together.
LEASE_MS = 60_000
#: The wait after the first failed try, and the longest one, in ms. A wait is twice as long as the one before.
FIRST_REST_MS, LONGEST_REST_MS = 5_000, 1_800_000
#: How long a webhook waits that cannot be sent now, because its host has as many connections as it may or no thread is
#: free to resolve its name, in ms. For as long, this process claims no other webhook of its tenant: a tenant can have
#: thousands like it, and each claim reads a record of up to 1 MiB.
_BUSY_MS = 500
#: The longest wait before a process looks whether a webhook is due, and the wait after an error, in seconds.
_LOOK_S, _AFTER_ERROR_S = 0.5, 1.0
#: After these results, no later try can succeed.
_HOPELESS = frozenset({WebhookResult.UNREADABLE})

#: The name or address of a host, and a port of it.
_Host = tuple[str, int]


def rest_ms(tries: int, jitter: Callable[[], float] = random.random) -> int:
    """Return the wait before the next try. The jitter (from 0 to 1) spreads the tries to a receiver that was away."""
    longest = min(LONGEST_REST_MS, FIRST_REST_MS * 2 ** min(tries, 20))
    return int(longest * (0.5 + 0.5 * jitter()))


class WebhookSender:
    """Sends webhooks of all tenants, and counts what it has open."""

    def __init__(self, context: DoorContext, resolve: Resolve = look_up) -> None:
        self._clock, self._names, self._closed = context.clock, NameResolver(resolve), context.closed
        self._webhooks, self._secrets = Webhooks(context.store.client), WebhookSecrets(context.store.client)
        self._hosts = parse_hosts(context.settings.webhook_hosts)
        self._lock = threading.Lock()
        #: The tenant and the host of each open request, AT_ONCE at most; changed under the lock.
        self._tries: list[tuple[str, _Host]] = []
        #: Until when no webhook of a tenant is claimed, in seconds of the clock; changed under the lock.
        self._passed_over: dict[str, float] = {}
        self._one_ended = threading.Event()

    def start(self) -> None:
        """Start the thread that claims."""
        threading.Thread(target=self._run, name="webhooks", daemon=True).start()

    def claim(self) -> ClaimedWebhook | int | None:
        """Claim the webhook whose turn it is, as `Webhooks.claim` does. Raises StoreUnavailable."""
        now_s = self._clock.monotonic()
        with self._lock:
            self._passed_over = {tenant: until_s for tenant, until_s in self._passed_over.items() if until_s > now_s}
            by_tenant = Counter(tenant for tenant, _ in self._tries)
            busy = {tenant for tenant, number in by_tenant.items() if number >= AT_ONCE_OF_TENANT}
            busy |= self._passed_over.keys()
        return self._webhooks.claim(secrets.token_hex(8), lease_ms=LEASE_MS, busy=busy)

    def send(self, claimed: ClaimedWebhook) -> WebhookResult | None:
        """Try to send a claimed webhook, write how that ended and return it. Raises StoreUnavailable.

        Return None if no try was made, because no thread was free to resolve the name; the webhook is then put off.
        """
        target = _target_of(claimed)
        try:
            result = self._try_or_fault(claimed, target)
        except NoThreadFree:
            self._put_off(claimed)
            return None
        left_ms = None if result in _HOPELESS else rest_ms(claimed.tries)
        became = self._webhooks.write(claimed, result, rest_ms=left_ms)
        if became != "told":
            # The URL is not logged: its path may contain a token.
            facts = {"webhook": claimed.id, "tenant": claimed.tenant, "reason": result.value}
            host = target.host if target else ""
            _FAILED.log("warning", became=became, tries=claimed.tries + 1, host=host, **facts)
        return result

    def start_next(self) -> float:
        """Claim a webhook and send it in a thread; return the seconds to wait. Raises StoreUnavailable."""
        with self._lock:
            if len(self._tries) >= AT_ONCE:
                return _LOOK_S
        claimed = self.claim()
        if not isinstance(claimed, ClaimedWebhook):
            return _LOOK_S if claimed is None else min(_LOOK_S, claimed / 1000)
        host = _host_of(claimed)
        if self._open(claimed.tenant, host):
            threading.Thread(target=self._send_in_thread, args=(claimed, host), name="webhook", daemon=True).start()
        else:
            self._put_off(claimed)
        return 0.0

    def open_by_tenant(self) -> Counter[str]:
        """Return how many tries of each tenant are open in this process."""
        with self._lock:
            return Counter(tenant for tenant, _ in self._tries)

    def _open(self, tenant: str, host: _Host) -> bool:
        """Count a try of a tenant to send to a host, and return True, if the host has room for it."""
        with self._lock:
            is_full = sum(other == host for _, other in self._tries) >= AT_ONCE_TO_HOST
            if is_full and (tenant, host) in self._tries:
                return False
            self._tries.append((tenant, host))
            return True

    def _close(self, tenant: str, host: _Host, *, was_made: bool) -> None:
        with self._lock:
            self._tries.remove((tenant, host))
            if was_made:
                # There is room for another try of the tenant.
                self._passed_over.pop(tenant, None)
        self._one_ended.set()

    def _put_off(self, claimed: ClaimedWebhook) -> None:
        with self._lock:
            self._passed_over[claimed.tenant] = self._clock.monotonic() + _BUSY_MS / 1000
        self._webhooks.write(claimed, None, rest_ms=_BUSY_MS)

    def _try_or_fault(self, claimed: ClaimedWebhook, target: CallbackTarget | None) -> WebhookResult:
        try:
            return self._try(claimed, target)
        except (StoreUnavailable, NoThreadFree):
            raise
        except Exception:  # noqa: BLE001 - it is logged, but not each time
            # It is due again after the normal wait, and is given up as others are.
            _FAULT.log("error", webhook=claimed.id, tenant=claimed.tenant, exc_info=True)
            return WebhookResult.FAULT

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
        resolve = partial(self._names.addresses, claimed.tenant)
        return post(target, body, headers, is_listed=is_listed(target, self._hosts), resolve=resolve)

    def _run(self) -> None:
        while not (shutdown.requested.is_set() or self._closed.is_set()):
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

    def _send_in_thread(self, claimed: ClaimedWebhook, host: _Host) -> None:
        result = None
        try:
            result = self.send(claimed)
        except StoreUnavailable:
            # The store has the claim, which ends; the webhook is then sent again with the same id.
            log.warning("webhook.unwritten", webhook=claimed.id, tenant=claimed.tenant)
        except Exception:  # noqa: BLE001 - it is logged, but not each time
            _FAULT.log("error", webhook=claimed.id, tenant=claimed.tenant, exc_info=True)
        finally:
            self._close(claimed.tenant, host, was_made=result is not None)


def _host_of(claimed: ClaimedWebhook) -> _Host:
    target = _target_of(claimed)
    return (target.host, target.port) if target else ("", 0)


def _target_of(claimed: ClaimedWebhook) -> CallbackTarget | None:
    try:
        return parse_url(claimed.url)
    except ValueError:
        return None

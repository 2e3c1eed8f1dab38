"""Checks the callback_url of a request before the request is admitted."""

import redis

from shared.accounts.webhook_secrets import WebhookSecrets
from shared.settings.door import DoorSettings
from shared.settings.webhook_hosts import parse_hosts
from shared.store.repeat_lookup import EarlierRequest
from shared.store.webhooks import Webhooks
from web.http.api_errors import ApiError, invalid_field
from web.http.callback_url import check_allowed, parse_url

#: So many webhooks of a tenant may wait to be told. With the copies of its jobs they also count against its bytes.
MAX_PENDING = 10_000


def check_callback(client: redis.Redis, settings: DoorSettings, tenant: str, url: str, earlier: EarlierRequest) -> None:
    """Raise ApiError unless the end of a job or batch may be told to this URL. Raises StoreUnavailable.

    A repetition of a request that was admitted earlier gets that job or batch, whatever has changed since.
    """
    try:
        _check(client, settings, tenant, url)
    except ApiError:
        if not earlier.was_admitted(client, tenant):
            raise


def _check(client: redis.Redis, settings: DoorSettings, tenant: str, url: str) -> None:
    try:
        check_allowed(parse_url(url), parse_hosts(settings.webhook_hosts))
    except ValueError as error:
        raise invalid_field("callback_url", str(error)) from None
    if not WebhookSecrets(client).get(tenant):
        message = (
            f"callback_url needs a secret for signatures, and tenant {tenant!r} has none: an operator sets it with "
            f"`penstock tenants set {tenant} --webhook-secret-file FILE`"
        )
        raise invalid_field("callback_url", message)
    pending = Webhooks(client).count_of(tenant)
    if pending >= MAX_PENDING:
        message = (
            f"{pending} webhooks of tenant {tenant!r} are not told yet, the most that may wait: is its receiver away?"
        )
        limits = {"limit": "tenant_webhooks", "value": pending, "max": MAX_PENDING}
        raise ApiError("webhooks_full", message, param="callback_url", limits=limits)

"""The secrets of tenants, with which their webhooks are signed (Standard Webhooks): in the store, and nowhere shown."""

from pathlib import Path
from typing import Any

import redis

from shared.accounts.admin_actions import Actor, local_actor, record
from shared.accounts.changed_accounts import AccountChange, AccountKind, note_change
from shared.accounts.tenants import check_name
from shared.errors import ConfigError
from shared.settings.secret_values import SIGNING_PREFIX, parse_signing_secret
from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import store_faults

#: A tenant may have two secrets while its receivers change from one to the other; both sign.
_MAX_SECRETS = 2


def parse_secrets(content: str) -> tuple[bytes, ...]:
    """Return the secrets in a text, one a line. Raises ConfigError, whose message does not quote them."""
    lines = content.split()
    if not 1 <= len(lines) <= _MAX_SECRETS:
        raise ConfigError(f"webhook_secret has {len(lines)} lines; it needs one secret, or two if both are to sign")
    return tuple(parse_signing_secret("webhook_secret", line) for line in lines)


def read_secret_file(file: str | None) -> str | None:
    """Return the content of a file with secrets, "" for `default`, and None for None.

    Raises ConfigError, whose message does not quote the content.
    """
    if file is None or file == "default":
        return None if file is None else ""
    try:
        content = Path(file).read_text("ascii")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        # Somebody who gives the secret itself instead of a file must not find it in a log of the terminal.
        shown = "(not shown: a secret, not a file)" if SIGNING_PREFIX in file else repr(file)
        raise ConfigError(f"webhook_secret_file={shown} cannot be read: {reason}") from None
    parse_secrets(content)
    return content


class WebhookSecrets:
    """The secrets of all tenants. Every method raises StoreUnavailable if the store does not answer."""

    def __init__(self, client: redis.Redis, actor: Actor | None = None) -> None:
        self._client = client
        self._actor = actor or local_actor()

    def change(self, tenant: str, content: str | None) -> None:
        """Store the secrets in a text, or remove those of the tenant if it is empty; None changes nothing.

        Without a secret, the webhooks of the tenant wait. Raises ConfigError for an invalid text or tenant.
        """
        if content is None:
            return
        if content:
            parse_secrets(content)
        with store_faults(self._client):
            if content:
                self._client.hset(keys.webhook_secrets(), check_name(tenant), "\n".join(content.split()))
            elif not self._client.hdel(keys.webhook_secrets(), check_name(tenant)):
                return
        what, on = "tenant.webhook_secret", f"tenant {tenant}: {'set' if content else 'removed'}"
        record(self._client, self._actor, what, on)
        note_change(AccountChange(AccountKind.WEBHOOKS, (tenant,), self._actor, what, on))

    def get(self, tenant: str) -> tuple[bytes, ...]:
        """Return a tenant's secrets; none if it has none, or if another program has spoiled them."""
        stored = self._read(tenant)
        try:
            return parse_secrets(stored) if stored else ()
        except ConfigError:
            return ()

    def owners(self) -> frozenset[str]:
        try:
            with store_faults(self._client):
                names: Any = self._client.hkeys(keys.webhook_secrets())
        except redis.ResponseError:
            return frozenset()
        return frozenset(text(name) for name in names)

    def _read(self, tenant: str) -> str:
        try:
            with store_faults(self._client):
                stored: Any = self._client.hget(keys.webhook_secrets(), tenant)
        except redis.ResponseError:
            # Another program has stored something else under the key.
            return ""
        return text(stored) if stored is not None else ""

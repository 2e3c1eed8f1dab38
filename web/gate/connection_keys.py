"""Keeps whether the client of a gate connection has a valid key, and checks the key of each frame."""

from collections.abc import Callable

from web.gate.requests import Auth, Metrics, Request, Submit
from web.http.api_errors import ApiError
from web.jobs.callers import Caller, CredentialFields, identify
from web.runtime.context import DoorContext
from web.runtime.credentials.key_watch import KeyUse

_CREDENTIAL_FIELDS = CredentialFields("tenant", "as tenant_key")


class ConnectionKeys:
    """The keys that a connection has shown.

    A client is a stranger until a frame with a valid key arrives, and again when that key is no longer valid. If
    PENSTOCK_AUTH is `open`, which requires no key, no client is a stranger.
    """

    def __init__(
        self,
        context: DoorContext,
        client: str,
        *,
        on_change: Callable[[], None],
        on_key_end: Callable[[ApiError], None],
    ) -> None:
        """Begin as a stranger. `client` is the client's address, against whose limit failed keys count.

        `on_change` is called when a frame has changed `is_stranger`.
        `on_key_end` is called on another thread when a key that this connection has used is no longer valid.
        """
        self._context, self._client = context, client
        self._on_change, self._on_key_end = on_change, on_key_end
        self._is_open = context.settings.auth == "open"
        #: The key of the latest successful `auth` frame, which frames without a key use.
        self._key: str | None = None
        #: The use of the latest valid key.
        self._use: KeyUse | None = None

    @property
    def is_stranger(self) -> bool:
        """Whether the connection has the limits of clients without a valid key."""
        return not self._is_open and (self._use is None or self._use.ended)

    def identify(self, request: Request) -> Caller | None:
        """Return the caller of this frame, or None if its `op` needs none. A valid key makes the client known.

        A frame without a key uses that of the latest `auth` frame. If an `auth` frame fails, no earlier one counts any
        more. Raises ApiError (401, 403, 422, 429) and StoreUnavailable.
        """
        if isinstance(request, Auth):
            self._key = None
            self._set_use(None)
            caller = self._check(request.tenant_key, None)
            self._key = request.tenant_key
            return caller
        if isinstance(request, Submit):
            return self._check(request.tenant_key or self._key, request.tenant)
        if isinstance(request, Metrics) and not self._is_open:
            return self._check(request.tenant_key or self._key, None)
        return None

    def use_of(self, caller: Caller) -> KeyUse:
        """Return the use that ends when the key of this caller, the latest one, is no longer valid.

        It is a new one if the latest one has ended: a tenant that was disabled may have been enabled again.
        """
        use = self._use
        if use is None or use.ended or (use.digest, use.tenant) != (caller.key_digest, caller.tenant):
            use = self._context.key_watch.watch(caller.key_digest, caller.tenant, self._on_key_end)
        return use

    def end(self) -> None:
        """Stop watching keys; the connection is over."""
        self._use = None

    def _check(self, key: str | None, tenant: str | None) -> Caller:
        caller = identify(self._context, api_key=key, tenant=tenant, client=self._client, fields=_CREDENTIAL_FIELDS)
        self._set_use(self.use_of(caller))
        return caller

    def _set_use(self, use: KeyUse | None) -> None:
        was_stranger = self.is_stranger
        self._use = use
        if self.is_stranger != was_stranger:
            self._on_change()

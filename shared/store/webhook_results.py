"""How a try to send a webhook ended: the values of the label `result` of the metric of webhooks."""

from enum import StrEnum


class WebhookResult(StrEnum):
    """How one try ended. Each try is counted once; a webhook that is given up is counted as that too."""

    #: The receiver answered with a status from 200 to 299.
    DELIVERED = "delivered"
    #: It answered with another status; redirects are not followed.
    BAD_STATUS = "bad_status"
    #: It did not accept the connection, or closed it without an answer.
    UNREACHABLE = "unreachable"
    #: Its certificate is not valid for its name, or the TLS handshake failed.
    TLS_FAILED = "tls_failed"
    #: It did not answer in time.
    TIMED_OUT = "timed_out"
    #: Its name has no address, or no name server has answered in time.
    NOT_RESOLVED = "not_resolved"
    #: Its name has an address that is not public, and PENSTOCK_WEBHOOK_HOSTS does not list it.
    REFUSED_ADDRESS = "refused_address"
    #: The URL is not allowed any more: an operator has removed its host from PENSTOCK_WEBHOOK_HOSTS.
    REFUSED_URL = "refused_url"
    #: No try was made, because the tenant has no secret any more.
    UNSIGNED = "unsigned"
    #: Another program has changed the copy of the job or batch.
    UNREADABLE = "unreadable"
    #: The door has failed to make the request, which its log describes; a later try may succeed.
    FAULT = "fault"
    #: The day has passed, or no try can succeed.
    GAVE_UP = "gave_up"

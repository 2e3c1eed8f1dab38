"""The settings of alerts without Prometheus, which doors send to one webhook."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from shared.errors import ConfigError
from shared.settings.secret_values import parse_signing_secret
from shared.settings.setting import number, text, word

_MAX_URL_CHARS = 2_048


@dataclass(frozen=True)
class AlertSettings:
    """Alerts without Prometheus: where they are sent, and when."""

    alert_url: str = text(
        "",
        "an http or https URL",
        "doors send alerts to it (docs/alerts.md); it may be private; PENSTOCK_ALERT_URL_FILE may name a file with it, "
        "because such a URL often has a token; unset: no alerts",
        secret=True,
    )
    alert_format: str = word(
        "slack",
        ("slack", "standard"),
        "slack: as incoming webhooks of Slack take it; standard: Standard Webhooks, signed",
    )
    alert_secret: str = text(
        "",
        "whsec_ and base64",
        "signs alerts of the format standard; PENSTOCK_ALERT_SECRET_FILE may name a file",
        secret=True,
    )
    alert_for_s: int = number(
        60, "s", (0, 86_400), "a condition is told after it has held for so long, and its end after as long without it"
    )
    alert_repeat_s: int = number(
        14_400, "s", (60, 2_592_000), "a condition that still holds is told again after this time"
    )
    alert_refusals_percent: int = number(
        50,
        "%",
        (1, 100),
        "the condition refusals: more of the requests of the last ten minutes were refused; 100: never",
    )


def check_alerts(settings: AlertSettings) -> None:
    """Raise ConfigError, whose message quotes neither the path of the URL nor the secret, if alerts cannot be sent."""
    if not settings.alert_url:
        return
    url = settings.alert_url
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigError("PENSTOCK_ALERT_URL=(not shown) has a host or a port that is not valid") from None
    if parts.scheme not in {"http", "https"} or not host or "@" in parts.netloc or "#" in url:
        raise ConfigError(
            f"PENSTOCK_ALERT_URL={parts.scheme[:20]}://{(host or '')[:80]}… (the rest is not shown) is not an http or "
            "https URL with a host, without user, password and fragment"
        )
    if len(url) > _MAX_URL_CHARS or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise ConfigError(
            f"PENSTOCK_ALERT_URL={parts.scheme}://{host[:80]}… (the rest is not shown) is longer than {_MAX_URL_CHARS} "
            "characters, or contains a space, a backslash or a character outside printable ASCII"
        )
    if settings.alert_format == "standard":
        parse_signing_secret("PENSTOCK_ALERT_SECRET=(not shown)", settings.alert_secret)

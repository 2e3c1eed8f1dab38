"""Builds PromQL that counts each fleet figure once, however many doors Prometheus scrapes.

With a directory of cells, each series has the label `cell`; without one, the label is missing and there is one cell.
"""

#: The series that doors read from the store. Every door has the same, so `max by` takes one of them.
FLEET = 'job="penstock-fleet"'
#: The series that a door counts itself, so those of all doors are added up.
DOOR = 'job="penstock-door"'
#: The time over which Grafana lets a rate be computed.
INTERVAL = "$__rate_interval"

#: The labels of metrics that several boards show.
OFFERS = ("tenant", "decision", "reason")
JOBS = ("tenant", "model_name", "outcome")
PROMISES = ("tenant", "model_name", "result")
FIRST_TOKEN = ("tenant", "model_name", "size")


def gauge(metric: str, *labels: str, where: str = "") -> str:
    """Return a gauge of the fleet by these labels, which must be all that it has; of several cells, the greatest."""
    by = f" by ({', '.join(labels)})" if labels else ""
    return f"max{by}({metric}{{{_selector(where)}}})"


def amount(metric: str, *labels: str, where: str = "") -> str:
    """Return a gauge of the fleet by these labels, added up over cells.

    `model_name` of the gauges of queued and running jobs is not needed: a tenant has one series, and two doors may
    disagree about the name for a moment, so that the tenant's jobs would count twice.
    """
    return total(f"max by ({', '.join(('cell', *labels))}) ({metric}{{{_selector(where)}}})", *labels)


def rate(metric: str, *labels: str, where: str = "") -> str:
    """Return how much a counter of each cell grows in a second, by these labels, which must be all that it has."""
    return f"max by ({', '.join(('cell', *labels))}) (rate({metric}{{{_selector(where)}}}[{INTERVAL}]))"


def total(expression: str, *labels: str) -> str:
    """Return the sum of an expression, by these labels."""
    return f"sum by ({', '.join(labels)}) ({expression})" if labels else f"sum({expression})"


def share_of(part: str, whole: str) -> str:
    """Return the sum of one expression over that of another."""
    return f"{total(part)} / {total(whole)}"


def offers(where: str = "") -> str:
    """Return the offers a second."""
    return rate("penstock_admission_total", *OFFERS, where=where)


def tokens(where: str) -> str:
    """Return the tokens a second of ended attempts."""
    return rate("penstock_tokens_total", "tenant", "model_name", "kind", where=where)


def quantile(part: float, histogram: str, *labels: str, of: tuple[str, ...], where: str = "") -> str:
    """Return a quantile of a fleet histogram by `labels`; `of` are all labels that it has besides `le`."""
    buckets = rate(f"{histogram}_bucket", *of, "le", where=where)
    return f"histogram_quantile({part}, {total(buckets, *labels, 'le')})"


def door_quantile(part: float, histogram: str, *labels: str) -> str:
    """Return a quantile of a histogram that doors count, by these labels."""
    return f"histogram_quantile({part}, {total(f'rate({histogram}_bucket{{{DOOR}}}[{INTERVAL}])', *labels, 'le')})"


def _selector(where: str) -> str:
    return f"{FLEET}, {where}" if where else FLEET

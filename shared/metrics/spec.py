"""Describes one metric, and holds what all metrics have in common: the histograms' buckets and the tenants' labels."""

from dataclasses import dataclass
from typing import Literal

#: The upper bounds of the buckets of every histogram, in ms; a test compares them with
#: shared/lua/lib/ledgers/stats.lua.
BUCKETS_MS = (
    5,
    10,
    25,
    50,
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    20_000,
    40_000,
    80_000,
    160_000,
    320_000,
    640_000,
)
#: In gauges, this many tenants have a label value of their own: those with the most recent admissions. All other
#: tenants share the label value OTHER.
MAX_TENANTS = 50
OTHER = "other"


@dataclass(frozen=True)
class MetricSpec:
    """One metric.

    If the metric is read from the store's `stats` hash, the hash has one field for each combination of label values.
    The name of such a field starts with `field`, and the label values follow in the order of `labels`.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    field: str = ""
    #: The values of the last label for which there is a series from the start: as soon as another value of it was
    #: counted with the same other labels. A counter that begins with its first count seems not to have grown, so an
    #: alert would miss the first of some rare events.
    initial: tuple[str, ...] = ()

"""Read what a Prometheus would scrape from an address, and compare two scrapes."""

from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

#: The name and the labels of a series.
Series = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Scrape:
    """The values of all series of one answer, and the series that only grow: counters and parts of histograms."""

    values: dict[Series, float]
    growing: frozenset[Series]

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of all series with this name and these labels."""
        return sum(value for series, value in self.values.items() if matches(series, name, labels))

    def series_of(self, name: str) -> dict[Series, float]:
        return {series: value for series, value in self.values.items() if series[0] == name}

    def fallen_since(self, earlier: "Scrape") -> list[tuple[Series, float, float | None]]:
        """Return the series of an earlier scrape that are gone or lower in this one, with both values."""
        return [
            (series, earlier.values[series], self.values.get(series))
            for series in earlier.growing
            if self.values.get(series, float("-inf")) < earlier.values[series]
        ]


def matches(series: Series, name: str, labels: dict[str, str]) -> bool:
    return series[0] == name and labels.items() <= dict(series[1]).items()


def scrape(url: str) -> Scrape:
    """Scrape the address over a connection of its own. Raises AssertionError if a series occurs twice."""
    answer = httpx.get(url, timeout=30)
    assert answer.status_code == 200, answer.text
    return parse(answer.text)


def parse(text: str) -> Scrape:
    values: dict[Series, float] = {}
    growing = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series = (sample.name, tuple(sorted(sample.labels.items())))
            assert series not in values, f"{series} occurs twice"
            values[series] = sample.value
            if family.type in {"counter", "histogram"}:
                growing.add(series)
    return Scrape(values, frozenset(growing))

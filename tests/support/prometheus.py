"""Runs a real Prometheus, which Debian's package `prometheus` contains, with the files of deploy/prometheus."""

import math
import os
import shutil
from typing import Any

import httpx
import pytest
import yaml

from tests.support.ports import free_port
from tests.support.processes import ROOT, Stage, wait_for

#: The labels of a series, sorted by name.
Labels = tuple[tuple[str, str], ...]

PROMTOOL = shutil.which("promtool") or ""
SERVER = shutil.which("prometheus") or ""
#: If TESTS_NEED names prometheus, as in continuous integration, the tests fail without it instead of being skipped.
needs_prometheus = pytest.mark.skipif(
    not (PROMTOOL and SERVER) and "prometheus" not in os.environ.get("TESTS_NEED", "").split(),
    reason="no prometheus and promtool on this machine",
)

_FOLDER = ROOT / "deploy" / "prometheus"


def _sooner(rules: str, seconds: int) -> str:
    """Return the rules with the `for` of each alert replaced by `seconds`."""
    content = yaml.safe_load(rules)
    for group in content["groups"]:
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = f"{seconds}s"
    return yaml.safe_dump(content)


class Prometheus:
    """A Prometheus with the configuration and the rules of deploy/prometheus, which scrapes often."""

    def __init__(
        self,
        stage: Stage,
        *,
        doors: list[str],
        gates: list[str],
        workers: list[str],
        admin_key: str,
        scrape_ms: int = 500,
        alerts_after_s: int | None = None,
    ) -> None:
        """Start it and wait until it answers. Doors, gates and workers are addresses (host:port) of their metrics.

        A scrape begins every `scrape_ms` and may take as long. `alerts_after_s` replaces the times of the alerts'
        `for`, so that a test need not wait for minutes.
        """
        folder = stage.folder("prometheus")
        config = yaml.safe_load((_FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
        every = f"{scrape_ms}ms"
        config["global"] = {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": "1s"}
        targets = {"penstock-fleet": doors, "penstock-door": doors, "penstock-gate": gates, "penstock-worker": workers}
        for job in config["scrape_configs"]:
            job["static_configs"] = [{"targets": targets[job["job_name"]]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        (folder / "admin-key").write_text(admin_key)
        for rules in config["rule_files"]:
            text = (_FOLDER / rules).read_text(encoding="utf-8")
            (folder / rules).write_text(text if alerts_after_s is None else _sooner(text, alerts_after_s))
        self._url = f"http://127.0.0.1:{(port := free_port())}"
        arguments = {
            "--config.file": folder / "prometheus.yml",
            "--storage.tsdb.path": folder / "data",
            "--web.listen-address": f"127.0.0.1:{port}",
            "--log.level": "warn",
        }
        process = stage.start("prometheus", [SERVER, *(f"{name}={value}" for name, value in arguments.items())])
        wait_for(lambda: self._is_ready() or not process.alive, "Prometheus to answer", timeout_s=60)
        assert process.alive, process.log.read_text(errors="replace")

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self._url}/-/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def query(self, expression: str, at_s: float | None = None) -> dict[Labels, float]:
        """Return the value of each series of the result, now or at a time. Raises AssertionError for a wrong query."""
        parameters = {"query": expression} | ({} if at_s is None else {"time": str(at_s)})
        answer = self._get("query", parameters)
        assert answer["resultType"] == "vector", expression
        return {tuple(sorted(series["metric"].items())): float(series["value"][1]) for series in answer["result"]}

    def samples(self, selector: str, from_s: float, to_s: float) -> dict[Labels, list[tuple[float, float]]]:
        """Return the samples of each series between two times: the time of each, and its value."""
        parameters = {"query": f"{selector}[{math.ceil(to_s - from_s)}s]", "time": str(to_s)}
        return {
            tuple(sorted(series["metric"].items())): [(at_s, float(text)) for at_s, text in series["values"]]
            for series in self._get("query", parameters)["result"]
        }

    def rules(self) -> list[dict[str, Any]]:
        """Return all rules with how their last evaluation went."""
        return [rule for group in self._get("rules", {})["groups"] for rule in group["rules"]]

    def _get(self, path: str, parameters: dict[str, str]) -> dict[str, Any]:
        answer = httpx.get(f"{self._url}/api/v1/{path}", params=parameters, timeout=60).json()
        assert answer["status"] == "success", (parameters, answer)
        data: dict[str, Any] = answer["data"]
        return data

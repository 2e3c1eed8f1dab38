"""Finds the programs of Prometheus, which Debian's package `prometheus` contains."""

import os
import shutil

import pytest

PROMTOOL = shutil.which("promtool") or ""
SERVER = shutil.which("prometheus") or ""
#: If TESTS_NEED names prometheus, as in continuous integration, the tests fail without it instead of being skipped.
needs_prometheus = pytest.mark.skipif(
    not (PROMTOOL and SERVER) and "prometheus" not in os.environ.get("TESTS_NEED", "").split(),
    reason="no prometheus and promtool on this machine",
)

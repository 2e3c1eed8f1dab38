"""Runs a headless browser that prints a page's document after the page's scripts have run."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
#: The browser uses no existing profile and sends nothing to its vendor.
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--dump-dom",
)
#: How long the browser may take on a busy machine, in seconds. Virtual time does not pass while it compiles scripts.
_END_WITHIN_S = 240

#: If TESTS_NEED names chromium, as in continuous integration, the tests fail without it instead of being skipped.
needs_browser = pytest.mark.skipif(
    CHROMIUM is None and "chromium" not in os.environ.get("TESTS_NEED", "").split(),
    reason="no chromium on this machine",
)


def document(url: str, folder: Path, *, page_ms: int) -> str:
    """Return the page's document after `page_ms` of virtual time, which stops while a request is pending."""
    options = (f"--virtual-time-budget={page_ms}", f"--user-data-dir={folder / 'profile'}")
    done = subprocess.run(
        [str(CHROMIUM), *_FLAGS, *options, url], capture_output=True, text=True, timeout=_END_WITHIN_S, check=True
    )
    return done.stdout

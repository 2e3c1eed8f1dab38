"""A real browser without a window, that writes out a page's document as its scripts have left it."""

import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
#: No profile of anybody's, no word to anybody.
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

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


def document(url: str, folder: Path, *, page_ms: int) -> str:
    """The page's document after `page_ms` of its own time, which stands still while it waits for an answer."""
    mine = (f"--virtual-time-budget={page_ms}", f"--user-data-dir={folder / 'profile'}")
    done = subprocess.run([str(CHROMIUM), *_FLAGS, *mine, url], capture_output=True, text=True, timeout=90, check=True)
    return done.stdout

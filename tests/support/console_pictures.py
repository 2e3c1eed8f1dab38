"""Takes the pictures of docs/console.md: runs a door with a few tenants, and looks at it with Chromium.

Run it as `python -m tests.support.console_pictures` after a change of the pages, and look at the pictures.
"""

import random
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from shared.accounts.groups import Groups
from shared.accounts.tenants import Tenants
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.tenant_policy import TenantPolicy
from tests.support.chromium import Page, chromium
from tests.support.served import Served, sim_served

DOCS = Path(__file__).parents[2] / "docs"
#: How long jobs are submitted before the pictures are taken, in seconds: long enough for the charts to show something.
_BUSY_S = 45.0
#: The colours of a picture, and how many pixels of it are kept from its top.
_COLOURS, _MOST_HEIGHT = 160, 2_400
_TENANTS = ("vision", "speech", "search", "batch")


def main() -> None:
    """Write the pictures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with sim_served(folder / "stage", PENSTOCK_SIM_DECODE_TPS="60") as served, chromium(folder) as browser:
            page = browser.page()
            page.look(1_280)
            page.open(f"{served.url}/console")
            with _submitting(served):
                time.sleep(_BUSY_S)
                _take(page, "console-light", 1_280)
                _take(page, "console-dark", 1_280, dark=True)
                _take(page, "console-phone", 390)
            page.open(f"{served.url}/")
            _take(page, "front-page-phone", 390)
            _take(page, "front-page-dark", 1_280, dark=True)


@contextmanager
def _submitting(served: Served) -> Iterator[None]:
    """Submit jobs until the block ends, so that each picture in it shows jobs that wait and run."""
    is_over = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as pool:
        submitter = pool.submit(_submit_jobs, served, is_over)
        try:
            yield
        finally:
            is_over.set()
        submitter.result()


def _submit_jobs(served: Served, is_over: threading.Event) -> None:
    client, chance = served.stage.client, random.Random(3)
    Groups(client).set("research", GroupPolicy(weight=2.0))
    for tenant in ("vision", "speech"):
        Tenants(client).set(tenant, TenantPolicy(group="research"))
    while not is_over.wait(0.3):
        for tenant in _TENANTS:
            if chance.random() < 0.5:
                deadline_ms = 2_500 if tenant == "batch" else 60_000
                served.submit(tenant, max_tokens=chance.choice([20, 60, 120]), deadline_ms=deadline_ms)


def _take(page: Page, name: str, width: int, *, dark: bool = False) -> None:
    page.look(width, dark=dark)
    # The charts are drawn again with the next point.
    time.sleep(1.5)
    path = DOCS / f"{name}.png"
    page.picture(path, most_height=_MOST_HEIGHT)
    Image.open(path).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size} bytes, {page.width_needed()} pixels wide")


if __name__ == "__main__":
    main()

"""The console's figures under load, with two processes of the door, compared with what the clients have counted."""

import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.processes import wait_for
from tests.support.served import Served, sim_served


class Reader:
    """Reads the stream of the console on a thread, and keeps the newest HTML of each panel."""

    def __init__(self, url: str) -> None:
        self.panels: dict[str, str] = {}
        self._client = httpx.Client(base_url=url, timeout=60)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        name, lines = "", list[str]()
        with self._client.stream("GET", "/console/live") as answer:
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    name, lines = line.removeprefix("event: "), []
                elif line.startswith("data: "):
                    lines.append(line.removeprefix("data: "))
                elif name:
                    self.panels[name], name = "\n".join(lines), ""
                if self._ends.is_set():
                    return

    def text(self, panel: str) -> str:
        """Return the text of a panel, without markup and with single spaces."""
        return " ".join(re.sub(r"<[^>]*>", " ", self.panels.get(panel, "")).split())

    def refused(self, tenant: str) -> Counter[str]:
        """Return the refusals in a tenant's line, by reason."""
        row = next((one for one in self.panels.get("tenants", "").split("<tr") if f">{tenant}<" in one), "")
        return Counter({reason: int(number) for number, reason in re.findall(r"<b>(\d+)</b> (\w+)", row)})

    def close(self) -> None:
        self._ends.set()
        self._thread.join()
        self._client.close()


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Served]:
    with sim_served(tmp_path, PENSTOCK_WEB_WORKERS="2", PENSTOCK_SIM_DECODE_TPS="40") as served:
        yield served
        served.stage.assert_sound()


@pytest.fixture
def readers(door: Served) -> Iterator[list[Reader]]:
    """Several streams, which both processes of the door serve."""
    opened = [Reader(door.url) for _ in range(6)]
    wait_for(lambda: all("workers" in one.panels for one in opened), "the first figures", timeout_s=60)
    yield opened
    for one in opened:
        one.close()


def test_refusals_and_jobs_are_those_that_the_clients_counted_and_none_counts_twice(door, readers):
    def submit(number: int) -> tuple[str, str]:
        tenant = ("red", "blue")[number % 2]
        answer = door.submit(tenant, max_tokens=20)
        return tenant, "admitted" if answer.status_code == 202 else answer.json()["reason"]

    with ThreadPoolExecutor(8) as clients:
        told = Counter(clients.map(submit, range(200)))
    for tenant in ("red", "blue"):
        expected = Counter({reason: number for (name, reason), number in told.items() if name == tenant})
        admitted = expected.pop("admitted")
        assert admitted
        assert expected
        for reader in readers:
            wait_for(lambda r=reader, t=tenant, e=expected: r.refused(t) == e, f"{tenant}: {expected}", timeout_s=60)
    # Every admitted job ends, and the totals of all processes say so.
    wait_for(lambda: door.stage.inflight() == 0, "the end of all jobs", timeout_s=60)
    for reader in readers:
        wait_for(lambda r=reader: r.text("totals").startswith("Inflight 0 of"), "no inflight job", timeout_s=60)
        refusals = [int(number) for number in re.findall("(\\d+) \N{MULTIPLICATION SIGN} ", reader.text("refusals"))]
        assert sum(refusals) == sum(number for (_, what), number in told.items() if what != "admitted")

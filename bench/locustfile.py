"""People who ask a real door, for Locust: each asks, reads the answer, thinks, and asks again.

`make bench-load` starts a door for each scenario and runs this file. For a door of your own, which runs with
PENSTOCK_AUTH=open:

    PYTHONPATH=. LOAD_SCENARIO=burst .venv/load/bin/locust -f bench/locustfile.py --host http://127.0.0.1:8000

The environment names the scenario (LOAD_SCENARIO), its length (LOAD_SECONDS), the seed (LOAD_SEED), the model
(LOAD_MODEL) and the file for the people's own ledger (LOAD_LEDGER). Without a ledger, only Locust's own figures remain.
"""

import itertools
import json
import os
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import gevent
from locust import HttpUser, constant, events, task

from bench.load_ledger import Ending, TenantLedger
from bench.load_people import ANSWER_TOKENS, PATIENCE_S, Group, scenario_named

SCENARIO = scenario_named(os.environ.get("LOAD_SCENARIO", "baseline"))
SECONDS = float(os.environ.get("LOAD_SECONDS", "60"))
SEED = int(os.environ.get("LOAD_SEED", "11"))
MODEL = os.environ.get("LOAD_MODEL", "sim")

#: Attempts of the client library in the scenario with layered retries, and of the program around it, with the waits of
#: the program in seconds.
INNER_ATTEMPTS, OUTER_WAITS_S = 3, (0.5, 1.0, 2.0, 4.0, 8.0)

LEDGER: dict[str, TenantLedger] = defaultdict(TenantLedger)
#: Numbers the people in the order in which they come, so that no two of them make the same random choices.
_numbers = itertools.count()
_began_s = time.monotonic()


class Refused(Exception):
    """The door refused a request; `hint_s` is after how many seconds to retry, or None if that would not help."""

    def __init__(self, hint_s: float | None) -> None:
        super().__init__(hint_s)
        self.hint_s = hint_s


class Fault(Exception):
    """An answer that Penstock must not give."""


class Person(HttpUser):
    """One person, or one program, of a group."""

    abstract = True
    group: Group
    wait_time = constant(0)

    def on_start(self) -> None:
        """Come at the time at which the group comes, and think for a part of the usual time first."""
        self.random = random.Random(f"{SEED} {next(_numbers)}")
        self.client.headers["X-Tenant"] = self.group.tenant
        gevent.sleep(self.group.present[0] * SECONDS + self.random.uniform(0, self.group.think_s[1]))

    @task
    def ask_and_think(self) -> None:
        """Ask one question, and think about the answer."""
        if time.monotonic() - _began_s >= self.group.present[1] * SECONDS:
            gevent.sleep(SECONDS)
            return
        self.ask()
        gevent.sleep(self.random.uniform(*self.group.think_s))

    def ask(self) -> None:
        """Ask one question until it is answered, or the person leaves or gives up. Write down how it ended."""
        ledger = LEDGER[self.group.tenant]
        asked_s = time.monotonic()
        leaves = self.random.random() < self.group.leave_part
        patience_s = self.group.leaves_after_s if leaves else PATIENCE_S
        try:
            # The door ends a job at its deadline. A second more, so that its own answer arrives.
            with gevent.Timeout(patience_s + (0 if leaves else 1)):
                ending = self.ask_in_layers(asked_s) if self.group.retries == "layered" else self.ask_as_told(asked_s)
        except gevent.Timeout:
            ending = "left" if leaves else "gave_up"
        except Fault as fault:
            ending = "fault"
            ledger.faults[str(fault)] += 1
        ledger.endings[ending] += 1
        if ending == "answered":
            ledger.answer_ms.append((time.monotonic() - asked_s) * 1000)

    def ask_as_told(self, asked_s: float) -> Ending:
        """Ask again after each retry hint, as long as an answer may still come in time."""
        while True:
            try:
                return self.send(asked_s)
            except Refused as refused:
                left_s = PATIENCE_S - (time.monotonic() - asked_s)
                if refused.hint_s is None or refused.hint_s >= left_s:
                    return "gave_up"
                gevent.sleep(refused.hint_s)

    def ask_in_layers(self, asked_s: float) -> Ending:
        """Ask with a client library that retries, in a program that retries the library's calls."""
        for wait_s in (*OUTER_WAITS_S, None):
            for attempt in range(INNER_ATTEMPTS):
                try:
                    return self.send(asked_s)
                except Refused as refused:
                    if attempt < INNER_ATTEMPTS - 1:
                        gevent.sleep(refused.hint_s or 0.5)
            if wait_s is not None:
                gevent.sleep(wait_s * (1 - self.random.random() / 4))
        return "gave_up"

    def send(self, asked_s: float) -> Ending:
        """Send one request and read its stream. Raises Refused and Fault."""
        ledger = LEDGER[self.group.tenant]
        ledger.requests += 1
        sent_s = time.monotonic()
        deadline_ms = max(1, round(1000 * (PATIENCE_S - (sent_s - asked_s))))
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Tell me a story about a fox and a boat."}],
            "max_tokens": ANSWER_TOKENS,
            "deadline_ms": deadline_ms,
            "stream": True,
        }
        with self.client.post("/v1/chat/completions", json=body, stream=True, catch_response=True) as response:
            if response.status_code in {429, 503}:
                response.success()
                ledger.refusals += 1
                ledger.refusal_ms.append((time.monotonic() - sent_s) * 1000)
                raise Refused(_hint_s(response))
            if response.status_code == 504:
                response.success()
                return "cut"
            if response.status_code != 200:
                raise Fault(f"status {response.status_code}: {response.text[:100]}")
            return self.read(response, ledger, asked_s)

    def read(self, response: Any, ledger: TenantLedger, asked_s: float) -> Ending:
        """Read a stream to its end. Close the connection if the person leaves meanwhile."""
        first, finished = True, ""
        try:
            for line in response.iter_lines(chunk_size=1):
                if not line.startswith(b"data: {"):
                    continue
                for choice in json.loads(line[6:]).get("choices", ()):
                    if choice.get("delta", {}).get("content"):
                        if first:
                            ledger.first_token_ms.append((time.monotonic() - asked_s) * 1000)
                        first = False
                    finished = choice.get("finish_reason") or finished
        finally:
            response.close()
        if finished not in {"stop", "length"}:
            return "cut"
        ledger.tokens += ANSWER_TOKENS
        return "answered"


def _hint_s(response: Any) -> float | None:
    """Return after how many seconds to retry, or None if a retry would not help."""
    if response.headers.get("x-should-retry") == "false":
        return None
    return float(response.headers.get("retry-after-ms", "1000")) / 1000


#: Locust looks for user classes among the names of this module: one class for each group.
for _number, _group in enumerate(SCENARIO.groups):
    _name = f"{_group.tenant.capitalize()}{_number}"
    globals()[_name] = type(_name, (Person,), {"group": _group, "fixed_count": _group.people})


@events.test_start.add_listener
def begin(**_: Any) -> None:
    """Start the scenario's clock and an empty ledger."""
    global _began_s  # noqa: PLW0603 - Locust's listeners are functions of the module
    _began_s = time.monotonic()
    LEDGER.clear()


@events.test_stop.add_listener
def write_ledger(**_: Any) -> None:
    """Write the people's ledger to the file that LOAD_LEDGER names."""
    path = os.environ.get("LOAD_LEDGER")
    if path:
        Path(path).write_text(json.dumps({name: one.as_json() for name, one in LEDGER.items()}), encoding="utf-8")

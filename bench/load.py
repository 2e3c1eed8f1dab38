"""Load by people: runs each scenario of bench/load_people.py with Locust against a door of its own.

    make bench-load                             # all scenarios, about seven minutes
    make bench-load LOAD=--page                 # and write the table into docs/load.md
    python -m bench.load --only burst --engine llama --seconds 30

Every scenario has a fresh `penstock up` with one worker. The figures come from the people's own ledger. Locust runs in
an environment of its own (.venv/load), because Penstock does not need its packages.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench.common import environment, print_environment, write_results
from bench.engine_stack import free_port
from bench.live.stack import penstock_up
from bench.load_ledger import summary
from bench.load_people import SCENARIOS, Scenario, scenario_named

ROOT = Path(__file__).parents[1]
SEED, SECONDS = 11, 60.0
#: With eight slots and 40 tokens a second for each, the simulated worker answers eight questions of 40 tokens a second.
SETTINGS = {
    "PENSTOCK_MAX_BATCH_SIZE": "8",
    "PENSTOCK_SIM_PREFILL_TPS": "2000",
    "PENSTOCK_SIM_DECODE_TPS": "40",
}
#: How long people may read their last answers, in seconds, and how long Locust may take to start and to end.
LAST_ANSWERS_S, MARGIN_S = 12, 60
_MODELS = {"sim": "sim", "llama": "penstock-demo"}
#: The page with the table, and the lines between which `--page` writes it.
PAGE = ROOT / "docs" / "load.md"
_BEGIN, _END = "<!-- made by python -m bench.load --page -->", "<!-- end of the table -->"
#: The counters of the store that say what the worker computed for nobody.
_FLEET = ("penstock_dead_tokens_total", "penstock_executed_total")

COLUMNS = (
    "scenario",
    "team",
    "questions",
    "requests each",
    "left",
    "answered",
    "first token p50 p95",
    "refused in p99",
)


def run_scenario(scenario: Scenario, locust: str, engine: str, seconds: float, seed: int) -> dict[str, Any]:
    """Run one scenario on a fresh stack. Return the figures of each tenant and of the worker."""
    port = free_port()
    with penstock_up(SETTINGS, port, engine), tempfile.TemporaryDirectory() as folder:
        url, ledger = f"http://127.0.0.1:{port}", Path(folder) / "ledger.json"
        command = [locust, "-f", "bench/locustfile.py", "--headless", "--only-summary", "--host", url]
        command += ["-u", str(scenario.people), "-r", str(scenario.people), "-t", f"{seconds:g}s"]
        command += ["--stop-timeout", str(LAST_ANSWERS_S), "--exit-code-on-error", "0"]
        environ = {
            "PYTHONPATH": str(ROOT),
            "LOAD_SCENARIO": scenario.name,
            "LOAD_SECONDS": f"{seconds:g}",
            "LOAD_SEED": str(seed),
            "LOAD_MODEL": _MODELS[engine],
            "LOAD_LEDGER": str(ledger),
        }
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | environ,
            capture_output=True,
            text=True,
            timeout=seconds + LAST_ANSWERS_S + MARGIN_S,
            check=False,
        )
        if done.returncode or not ledger.exists():
            raise RuntimeError(f"locust ended with {done.returncode}: {done.stderr[-2_000:]}")
        tenants = json.loads(ledger.read_text(encoding="utf-8"))
        fleet = _fleet_figures(url)
    figures = {name: summary(one) | {"what_failed": one["faults"]} for name, one in sorted(tenants.items())}
    return {"tenants": figures, "fleet": fleet}


def _fleet_figures(url: str) -> dict[str, float]:
    """Return the sums of the counters in _FLEET over their labels."""
    with urllib.request.urlopen(f"{url}/metrics/fleet", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return {
        name: sum(float(line.rpartition(" ")[2]) for line in lines if line.partition(" ")[0].partition("{")[0] == name)
        for name in _FLEET
    }


def rows(figures: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the table: one row for each scenario and team."""
    found: list[tuple[str, ...]] = []
    for scenario, result in figures.items():
        for name, one in result["tenants"].items():
            found.append(
                (
                    scenario,
                    name,
                    str(one["questions"]),
                    _number(one["requests_per_question"], "{:.1f}"),
                    str(one["left"]),
                    _number(one["answered_of_those_who_stayed"], "{:.0%}"),
                    f"{_seconds(one['first_token_ms_p50'])} {_seconds(one['first_token_ms_p95'])}",
                    _number(one["refusal_ms_p99"], "{:.0f} ms"),
                )
            )
    return found


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _seconds(value_ms: float | None) -> str:
    return "-" if value_ms is None else f"{value_ms / 1000:.2f} s"


def table(figures: dict[str, Any]) -> str:
    """Return the table as Markdown."""
    lines = [" | ".join(row) for row in (COLUMNS, *rows(figures))]
    lines.insert(1, " | ".join("---" for _ in COLUMNS))
    return "".join(f"| {line} |\n" for line in lines)


def write_page(facts: dict[str, Any], figures: dict[str, Any], result: Path) -> None:
    """Replace what docs/load.md says was measured by this run."""
    page = PAGE.read_text(encoding="utf-8")
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end:
        raise SystemExit(f"{PAGE} has no lines {_BEGIN!r} and {_END!r}")
    measured = (
        f"Measured on {facts['date'][:10]} ({facts['cores']} cores, {facts['cpu']}, {facts['seconds']:g} s each, seed "
        f"{facts['seed']},\nload average before it {facts['load_before'][0]:.1f}; "
        f"[JSON](../bench/results/{result.name})):\n"
    )
    text = f"{measured}\n{table(figures)}\n{_computed_for_nobody(figures['leavers'])}"
    PAGE.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")


def _computed_for_nobody(leavers: dict[str, Any]) -> str:
    """Return a sentence about the tokens that the worker computed after their client had left."""
    left = sum(one["left"] for one in leavers["tenants"].values())
    tokens = sum(one["tokens"] for one in leavers["tenants"].values())
    dead = leavers["fleet"]["penstock_dead_tokens_total"]
    return (
        f"In the scenario *leavers*, {left} people closed their connections. The worker computed {dead:.0f} tokens for "
        f"them after that\n(`penstock_dead_tokens_total`), beside {tokens} tokens of whole answers.\n"
    )


def _locust(named: str) -> str:
    command = named or str(Path(sys.prefix) / "load" / "bin" / "locust")
    if not Path(command).exists():
        raise SystemExit(f"{command} does not exist: run `make bench-load`, or name another with --locust")
    return command


def main() -> None:
    """Run the chosen scenarios, print the table and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="a scenario, such as burst; can be repeated")
    parser.add_argument("--engine", choices=sorted(_MODELS), default="sim")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="the length of each scenario")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--page", action="store_true", help="write the table of all scenarios into docs/load.md")
    parser.add_argument("--locust", default="", help="the program locust; by default that of .venv/load")
    options = parser.parse_args()
    locust = _locust(options.locust)
    chosen = [scenario_named(name) for name in options.only or [one.name for one in SCENARIOS]]
    facts = environment(options.seed) | {"engine": options.engine, "seconds": options.seconds, "settings": SETTINGS}
    facts["locust"] = subprocess.run([locust, "--version"], capture_output=True, text=True, check=True).stdout.split()[
        1
    ]
    print_environment(facts)
    figures: dict[str, Any] = {}
    for scenario in chosen:
        began_s = time.monotonic()
        figures[scenario.name] = run_scenario(scenario, locust, options.engine, options.seconds, options.seed)
        print(f"# {scenario.name}: {time.monotonic() - began_s:.0f} s")
    print(table(figures), end="")
    faults = sum(one["faults"] for result in figures.values() for one in result["tenants"].values())
    if len(chosen) == len(SCENARIOS):
        result = write_results("load" if options.engine == "sim" else f"load-{options.engine}", facts, figures)
        if options.page:
            write_page(facts, figures, result)
    if faults:
        raise SystemExit(f"{faults} requests had answers that Penstock must not give")


if __name__ == "__main__":
    main()

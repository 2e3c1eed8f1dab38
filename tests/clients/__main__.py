"""`make clients`: run the checks of every client package against real doors and models, and print a table.

Each package for Python is installed from its own lock file into an environment of its own, since some exclude each
other. The models are the demo model, a small instruction model from a package, and, for coding agents, a server behind
Penstock that calls their tools.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from importlib.metadata import version
from pathlib import Path

from gguf import PoolingType

from tests.clients.calling_server import calling_server
from tests.clients.installed import CODING, GUIDELLM, NODE, PYTHON, command_of, script_of, smollm2
from tests.support.bert import write_bert
from tests.support.processes import Stage, wait_for
from tests.support.served import Served
from workers.demo import demo_model_path

#: The models, and the clients that run against each unless `--only` names others.
DEMO, SMOLLM2, CALLER = "demo", "smollm2", "caller"
MODELS = {DEMO: [*PYTHON, *NODE, *CODING], SMOLLM2: [*PYTHON, *NODE, *CODING], CALLER: list(CODING)}
_SECRET = "heliotrope"
_TIMEOUT_S = 900

Results = list[dict[str, str | None]]


def main() -> None:
    """Run the chosen clients against the chosen models; exit with 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("--only", default="", help="names of clients, comma-separated")
    parser.add_argument("--models", default=",".join(MODELS), help=f"some of {', '.join(MODELS)}, comma-separated")
    parser.add_argument("--list", action="store_true", help="print each client for Python and what is locked for it")
    parser.add_argument("--guidellm", metavar="PYTHON", help="a Python in whose environment guidellm is installed")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{name} {packages}" for name, packages in PYTHON.items()))
        return
    only = [name for name in options.only.split(",") if name]
    print(f"penstock {version('penstock')}\n\n| model | client | check | result |\n|---|---|---|---|", flush=True)
    failed = 0
    for model in options.models.split(","):
        with _serving(model) as environ:
            for name in [name for name in MODELS[model] if not only or name in only]:
                failed += _print_rows(model, name, _checked(name, environ))
            if options.guidellm is not None and model == DEMO:
                command = [options.guidellm, script_of(f"{GUIDELLM}_client")]
                failed += _print_rows(model, GUIDELLM, _run(command, environ))
    if options.guidellm is None:
        print(f"| | {GUIDELLM} | | not run: it installs PyTorch; --guidellm names a Python that has both |")
    sys.exit(failed > 0)


@contextmanager
def _serving(model: str) -> Iterator[dict[str, str]]:
    """Run a door with a worker for the model, and yield the environment of the checks, until the context ends."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        checked = {"CHECKED_LIMIT_S": "300"} | ({} if model == CALLER else {"CHECKED_SMALL": "1"})
        settings = {"PENSTOCK_ENGINE": "llama"}
        settings["PENSTOCK_MODEL"] = str(smollm2() if model == SMOLLM2 else demo_model_path())
        if model == CALLER:
            file = folder / "notes.txt"
            file.write_text(f"The color of the day is {_SECRET}.\n")
            url = stack.enter_context(calling_server(str(file)))
            settings |= {"PENSTOCK_ENGINE": "upstream", "PENSTOCK_UPSTREAM_URL": url, "PENSTOCK_UPSTREAM_MODEL": CALLER}
            checked |= {"CHECKED_FILE": str(file), "CHECKED_SECRET": _SECRET}
        stage = stack.enter_context(Stage(folder, PENSTOCK_AUTH="open"))
        stage.worker(**settings)
        ranker = folder / "ranker.gguf"
        write_bert(ranker, pooling=PoolingType.RANK)
        stage.worker(PENSTOCK_ENGINE="llama", PENSTOCK_MODEL=str(ranker))
        served = stack.enter_context(Served(stage))
        wait_for(lambda: served.http.get("/health/ready").is_success, "the door to be ready")
        listed = {one["id"] for one in served.http.get("/v1/models").json()["data"]}
        (name,) = listed - {"ranker"}
        environ = {name: text for name, text in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
        environ |= checked | {
            "OPENAI_BASE_URL": f"{served.url}/v1",
            "OPENAI_API_KEY": "any",
            "CHECKED_MODEL": name,
            "CHECKED_RANKER": "ranker",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "HAYSTACK_TELEMETRY_ENABLED": "False",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        yield environ
        # When it ends, the stage prints its logs for pytest to show.
        with redirect_stdout(io.StringIO()):
            stack.close()


def _checked(name: str, environ: dict[str, str]) -> Results:
    """Install a client and run its checks."""
    print(f"# {name}", file=sys.stderr, flush=True)
    try:
        command = command_of(name)
    except (OSError, subprocess.CalledProcessError) as error:
        return [{"check": "installation", "error": str(error)}]
    return _run(command, environ)


def _run(command: list[str], environ: dict[str, str]) -> Results:
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [{"check": "the script", "error": str(error)}]
    if done.returncode:
        return [{"check": "the script", "error": done.stderr[-2_000:]}]
    results: Results = json.loads(done.stdout.splitlines()[-1])
    return results


def _print_rows(model: str, name: str, found: Results) -> int:
    """Print the rows of one client, and return how many of its checks failed."""
    for one in found:
        result = "works" if one["error"] is None else " ".join(one["error"].split())
        print(f"| {model} | {name} | {one['check']} | {result} |", flush=True)
    return sum(one["error"] is not None for one in found)


if __name__ == "__main__":
    main()

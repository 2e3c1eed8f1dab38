"""`make clients`: run the checks of every client package against real doors and models, and print a table.

Each package for Python is installed from its own lock file into an environment of its own, since some exclude each
other. The models are the demo model, a small instruction model from a package, and, for coding agents, a server behind
Penstock that calls their tools.
"""

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from pathlib import Path

from gguf import PoolingType

from tests.clients.calling_server import calling_server
from tests.clients.installed import CODING, GUIDELLM, NODE, OURS, PYTHON, command_of, script_of, smollm2
from tests.clients.table import Table, environment
from tests.support.bert import write_bert
from tests.support.processes import Stage, wait_for
from tests.support.served import Served
from workers.demo import demo_model_path

#: The models, and the clients that run against each unless `--only` names others.
DEMO, SMOLLM2, CALLER = "demo", "smollm2", "caller"
_ALL = [*OURS, *PYTHON, *NODE, *CODING]
MODELS = {DEMO: _ALL, SMOLLM2: _ALL, CALLER: list(CODING)}
_SECRET = "heliotrope"
#: The seconds that a worker may take to start, and that a client's script has to end what it started.
_START_S, _GRACE_S = 300, 5

Results = list[dict[str, str | None]]


def main() -> None:
    """Run the chosen clients against the chosen models; exit with 1 if a check misses for an unknown reason."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("--only", default="", help="names of clients, comma-separated")
    parser.add_argument("--models", default=",".join(MODELS), help=f"some of {', '.join(MODELS)}, comma-separated")
    parser.add_argument("--list", action="store_true", help="print each client for Python and what is locked for it")
    parser.add_argument(
        "--timeout", type=float, default=3600, metavar="SECONDS", help="the most that a client may take"
    )
    parser.add_argument("--guidellm", metavar="PYTHON", help="a Python in whose environment guidellm is installed")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{name} {packages}" for name, packages in PYTHON.items()))
        return
    only = [name for name in options.only.split(",") if name]
    # The processes that this one has started end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    print("\n".join(environment()), flush=True)
    table = Table()
    try:
        for model in options.models.split(","):
            with _serving(model) as environ:
                for name in [name for name in MODELS[model] if not only or name in only]:
                    table.add(model, name, _checked(name, environ, options.timeout))
                if options.guidellm is not None and model == DEMO:
                    command = [options.guidellm, script_of(f"{GUIDELLM}_client")]
                    table.add(model, GUIDELLM, _run(command, environ, options.timeout))
    finally:
        print("\n".join(table.lines()))
    if options.guidellm is None:
        print(f"\n{GUIDELLM} was not run: it installs PyTorch; --guidellm names a Python that has both")
    sys.exit(table.failed > 0)


@contextmanager
def _serving(model: str) -> Iterator[dict[str, str]]:
    """Run a door with a worker for the model, and yield the environment of the checks, until the context ends."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        checked = {"CHECKED_LIMIT_S": "1200"} | ({} if model == CALLER else {"CHECKED_SMALL": "1"})
        settings = {"PENSTOCK_ENGINE": "llama"}
        settings["PENSTOCK_MODEL"] = str(smollm2() if model == SMOLLM2 else demo_model_path())
        if model == CALLER:
            file = folder / "notes.txt"
            file.write_text(f"The color of the day is {_SECRET}.\n")
            url = stack.enter_context(calling_server(str(file)))
            settings |= {"PENSTOCK_ENGINE": "upstream", "PENSTOCK_UPSTREAM_URL": url, "PENSTOCK_UPSTREAM_MODEL": CALLER}
            checked |= {"CHECKED_FILE": str(file), "CHECKED_SECRET": _SECRET}
        stage = stack.enter_context(Stage(folder, PENSTOCK_AUTH="open"))
        stage.worker(wait=False, **settings)
        ranker = folder / "ranker.gguf"
        write_bert(ranker, pooling=PoolingType.RANK)
        stage.worker(wait=False, PENSTOCK_ENGINE="llama", PENSTOCK_MODEL=str(ranker))
        served = stack.enter_context(Served(stage))

        def listed() -> set[str]:
            return {one["id"] for one in served.http.get("/v1/models").json()["data"]}

        wait_for(lambda: len(listed()) == 2, "both models to be served", timeout_s=_START_S)
        (name,) = listed() - {"ranker"}
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
        try:
            yield environ
        finally:
            # When it ends, the stage prints its logs for pytest to show.
            with redirect_stdout(io.StringIO()):
                stack.close()


def _checked(name: str, environ: dict[str, str], timeout_s: float) -> Results:
    """Install a client and run its checks."""
    print(f"# {name}", file=sys.stderr, flush=True)
    try:
        command = command_of(name)
    except (OSError, subprocess.SubprocessError) as error:
        return [{"check": "installation", "error": str(error)}]
    return _run(command, environ, timeout_s)


def _run(command: list[str], environ: dict[str, str], timeout_s: float) -> Results:
    """Run the script of a client's checks, and end it with all that it started."""
    try:
        run = subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
    except OSError as error:
        return [{"check": "the script", "error": str(error)}]
    try:
        out, err = run.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return [{"check": "the script", "error": f"not finished after {timeout_s:.0f} s"}]
    finally:
        _end(run)
    if run.returncode:
        return [{"check": "the script", "error": err[-2_000:]}]
    results: Results = json.loads(out.splitlines()[-1])
    return results


def _end(run: subprocess.Popen[str]) -> None:
    """End a process and its group. It has a moment to end what it started in other groups."""
    try:
        os.killpg(run.pid, signal.SIGTERM)
        run.wait(_GRACE_S)
    except ProcessLookupError:
        return
    except subprocess.TimeoutExpired:
        pass
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    run.communicate()


if __name__ == "__main__":
    main()

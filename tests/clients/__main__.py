"""`make clients`: run the checks of every client package against a real door and model, and print a table.

Each package is installed from its own lock file into a virtual environment of its own, since some exclude each other.
"""

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from importlib.metadata import version
from pathlib import Path

from tests.support.processes import ROOT, wait_for
from tests.support.served import Served, random_model_served

FOLDER = Path(__file__).parent
#: Where the packages are installed; a stamp holds the lock file that was installed last.
INSTALLED = ROOT / ".venv" / "clients"
#: The name of each client's script and lock file, and what is locked: its package, and what that needs undeclared.
PACKAGES = {
    "langchain": "langchain-openai",
    "instructor": "instructor",
    "pydantic_ai": "pydantic-ai-slim[openai]",
    "llama_index": "llama-index-llms-openai-like",
    "openai_agents": "openai-agents",
    "llm": "llm",
    "litellm": "litellm mcp",
}
NODE = "node"
#: A package that is not installed here, because its PyTorch takes several gigabytes.
GUIDELLM = "guidellm"
_TIMEOUT_S = 600

Results = list[dict[str, str | None]]


def main() -> None:
    """Run the chosen clients; exit with 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("--only", default=",".join([*PACKAGES, NODE]), help="names of clients, comma-separated")
    parser.add_argument("--list", action="store_true", help="print each client and what is locked for it")
    parser.add_argument("--guidellm", metavar="PYTHON", help="a Python in whose environment guidellm is installed")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{name} {packages}" for name, packages in PACKAGES.items()))
        return
    only = [name for name in options.only.split(",") if name]
    with _serving() as served:
        environ = {name: text for name, text in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
        environ |= {
            "OPENAI_BASE_URL": f"{served.url}/v1",
            "OPENAI_API_KEY": "any",
            "CHECKED_MODEL": served.http.get("/v1/models").json()["data"][0]["id"],
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        print(f"penstock {version('penstock')}\n\n| client | check | result |\n|---|---|---|", flush=True)
        failed = sum([_print_rows(name, _checked(name, environ)) for name in only])
        if options.guidellm is not None:
            failed += _print_rows(GUIDELLM, _checked(GUIDELLM, environ, options.guidellm))
    if options.guidellm is None:
        print(f"| {GUIDELLM} | | not run: it installs PyTorch; --guidellm names a Python that has both |")
    sys.exit(failed > 0)


@contextmanager
def _serving() -> Iterator[Served]:
    """Run a door with a worker for a tiny model with random weights, until the context ends."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        served = stack.enter_context(random_model_served(Path(folder), PENSTOCK_AUTH="open"))
        wait_for(lambda: served.http.get("/health/ready").is_success, "the door to be ready")
        yield served
        # When it ends, the stage prints its logs for pytest to show.
        with redirect_stdout(io.StringIO()):
            stack.close()


def _checked(name: str, environ: dict[str, str], python: str | None = None) -> Results:
    """Run the checks of one client, with `python` if its package is installed there already."""
    print(f"# {name}", file=sys.stderr, flush=True)
    try:
        command = [python, _script(name)] if python else _node() if name == NODE else _python(name)
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.CalledProcessError) as error:
        return [{"check": "installation", "error": str(error)}]
    if done.returncode:
        return [{"check": "the script", "error": done.stderr[-2_000:]}]
    results: Results = json.loads(done.stdout.splitlines()[-1])
    return results


def _python(name: str) -> list[str]:
    """Install the client's packages, if its lock file has changed, and return the command that runs its checks."""
    lock, home = ROOT / "requirements" / "clients" / f"{name}.txt", INSTALLED / name
    python = home / "bin" / "python"

    def install() -> None:
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        _run_pip(python, "install", "--require-hashes", "--no-deps", "-r", str(lock))

    _once(lock, home, install)
    return [str(python), _script(name)]


def _script(name: str) -> str:
    return str(FOLDER / "scripts" / f"{name}_client.py")


def _run_pip(python: Path, *arguments: str) -> None:
    quietly = ["--quiet", "--disable-pip-version-check"]
    subprocess.run([str(python), "-m", "pip", *arguments, *quietly], check=True, stderr=subprocess.DEVNULL)


def _node() -> list[str]:
    """Install the packages for Node and return the command. Raises OSError if Node is not installed."""
    node, npm, home = shutil.which("node"), shutil.which("npm"), INSTALLED / NODE
    if node is None or npm is None:
        raise OSError("node and npm are required")

    def install() -> None:
        shutil.copytree(FOLDER / NODE, home)
        subprocess.run([npm, "ci", "--no-audit", "--no-fund"], cwd=home, check=True, capture_output=True)

    _once(FOLDER / NODE / "package-lock.json", home, install)
    shutil.copy(FOLDER / NODE / "openai_client.mjs", home)
    return [node, str(home / "openai_client.mjs")]


def _once(lock: Path, home: Path, install: Callable[[], None]) -> None:
    stamp = home / "installed.lock"
    if not stamp.exists() or stamp.read_text() != lock.read_text():
        shutil.rmtree(home, ignore_errors=True)
        install()
        stamp.write_text(lock.read_text())


def _print_rows(name: str, found: Results) -> int:
    """Print the rows of one client, and return how many of its checks failed."""
    for one in found:
        error = one["error"]
        print(f"| {name} | {one['check']} | {'works' if error is None else ' '.join(error.split())} |", flush=True)
    return sum(one["error"] is not None for one in found)


if __name__ == "__main__":
    main()

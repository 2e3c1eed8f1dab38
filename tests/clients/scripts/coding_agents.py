"""Coding agents as they are shipped: one prompt each, and one call of the tool that reads a file.

Arguments: the name of the agent, and the path of its program. CHECKED_FILE names a file and CHECKED_SECRET the word in
it, if the model calls tools.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from check import BASE_URL, KEY, MODEL, check, main

AGENT, PROGRAM = sys.argv[1:]
FILE, SECRET = os.environ.get("CHECKED_FILE"), os.environ.get("CHECKED_SECRET")
HOST = BASE_URL.removesuffix("/v1")
#: The seconds that one run may take.
LIMIT_S = float(os.environ.get("CHECKED_LIMIT_S", "120"))

#: Set for models with a short context: the agents then have short instructions, and as few tools as they can have.
SMALL = "CHECKED_SMALL" in os.environ
BRIEF = "Be brief."

CODEX = f"""
model = "{MODEL}"
model_provider = "penstock"
{'model_instructions_file = "brief.md"' if SMALL else ""}
[features]
multi_agent = {json.dumps(not SMALL)}
goals = {json.dumps(not SMALL)}
[model_providers.penstock]
name = "Penstock"
base_url = "{BASE_URL}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""
OPENCODE = {
    "model": f"penstock/{MODEL}",
    "small_model": f"penstock/{MODEL}",
    "share": "disabled",
    "autoupdate": False,
    "permission": ({"*": "deny", "read": "allow"} if SMALL else {}) | {"external_directory": "allow"},
    "agent": {"build": {"prompt": BRIEF} if SMALL else {}, "title": {"disable": SMALL}},
    "provider": {
        "penstock": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": BASE_URL, "apiKey": KEY},
            "models": {MODEL: {"limit": {"context": 32_000, "output": 256 if SMALL else 4_000}}},
        }
    },
}
#: The name of an agent → its arguments before the prompt.
ARGUMENTS = {
    "claude_code": [
        "--allowedTools=Read",
        *(["--tools", "Read", "--system-prompt", BRIEF] if SMALL else []),
        "--print",
    ],
    "codex": ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"],
    "opencode": ["run"],
    "qwen_code": [
        *(["--bare", "--system-prompt", BRIEF, "--core-tools", "read_file"] if SMALL else []),
        *(["--exclude-tools", "agent,skill,task_stop,send_message,tool_search"] if SMALL else []),
        *("--auth-type", "openai", "--approval-mode", "yolo", "--prompt"),
    ],
}


def environ(home: Path) -> dict[str, str]:
    """Return the environment of an agent, which has a home of its own and reaches nothing but the door."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
    return kept | {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local"),
        "ANTHROPIC_BASE_URL": HOST,
        "ANTHROPIC_AUTH_TOKEN": KEY,
        "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
        "OPENAI_BASE_URL": BASE_URL,
        "OPENAI_API_KEY": KEY,
        "OPENAI_MODEL": MODEL,
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "QWEN_TELEMETRY_ENABLED": "false",
    }


def answer(prompt: str) -> str:
    """Run the agent with a prompt in an empty folder, and return what it prints."""
    with tempfile.TemporaryDirectory() as folder:
        home, work = Path(folder) / "home", Path(folder) / "work"
        for made in (home / ".codex", home / ".config" / "opencode", work):
            made.mkdir(parents=True)
        (home / ".codex" / "config.toml").write_text(CODEX)
        (home / ".codex" / "brief.md").write_text(BRIEF)
        (home / ".config" / "opencode" / "opencode.json").write_text(json.dumps(OPENCODE))
        # The agent may start processes of its own, which must end with it.
        run = subprocess.Popen(
            [PROGRAM, *ARGUMENTS[AGENT], prompt],
            cwd=work,
            env=environ(home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = run.communicate(timeout=LIMIT_S)
        finally:
            _end(run)
    assert run.returncode == 0, f"exit {run.returncode}: {(out + err)[-500:]}"
    assert out.strip(), f"no output: {err[-500:]}"
    return out


def _end(run: subprocess.Popen[str]) -> None:
    try:
        os.killpg(run.pid, 9)
    except ProcessLookupError:
        return
    run.wait()


@check("a prompt")
def _prompt() -> None:
    said = answer("Say hello.")
    assert "API Error" not in said, said[-500:]


if FILE:

    @check("a file that it reads with its tool")
    def _tool() -> None:
        said = answer(f"Read the file {FILE} and say what it holds.")
        assert SECRET in said, said[-500:]


# The agent runs in a session of its own, and ends with this process.
signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
main()

"""The text that `penstock up` prints when it is ready: the URL, and examples to copy and paste."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from shared.examples import curl_example, openai_example
from shared.settings.settings import Settings


def greeting(settings: Settings, url: str, models: Sequence[str]) -> str:
    """Return the text: the models and the URL, how to submit a job in three ways, the console, and how to stop.

    The examples use curl, the openai package and `penstock submit`. If API keys are required, the text also contains
    the command that creates a key.
    """
    needs_key = settings.auth == "required"
    # A request that names no model goes to the first one.
    parts = [f"{' and '.join(models)} {'is' if len(models) == 1 else 'are'} served at {url}"]
    if needs_key:
        state_option = f" --state-dir {shlex.quote(settings.state_dir)}" if settings.state_dir else ""
        make_key = f"export PENSTOCK_API_KEY=$({program()} keys add default{state_option})"
        parts.append(f"Create an API key for the tenant `default`:\n\n{make_key}")
    parts.append(f"Submit a job and wait for its end:\n\n{curl_example(url, needs_key=needs_key)}")
    python = openai_example(url, needs_key=needs_key, model=models[0])
    parts.append(f"The same in Python, after `pip install openai`:\n\n{python}")
    environ = "" if url == settings.url else f"PENSTOCK_URL={url} "
    parts.append(f"The same with this command:\n\n{environ}{program()} submit 'Once upon a time'")
    key_file = settings.admin_key_file or settings.state_path / "admin.key"
    password = f"\nThe password is the admin key in {key_file}." if needs_key else ""
    parts.append(f"Watch it in a browser: {url}/console{password}")
    if settings.gate_listen:
        parts.append(f"The TCP gate listens on {settings.gate_listen}.")
    parts.append("Ctrl-C stops it; queued jobs are kept for the next start.")
    return "\n\n".join(parts)


def program() -> str:
    """Return what a user types to run this installation's `penstock`.

    It is `penstock` if the PATH leads to this installation. Otherwise it is the command's path, quoted for the shell,
    and relative if the command is below the current folder.
    """
    command = Path(sys.executable).parent / "penstock"
    found = shutil.which("penstock")
    if found and Path(found).resolve() == command.resolve():
        return "penstock"
    try:
        return shlex.quote(str(command.relative_to(Path.cwd())))
    except ValueError:
        return shlex.quote(str(command))

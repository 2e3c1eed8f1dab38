"""What `penstock up` prints once it serves: lines that work when they are pasted."""

import shlex
import shutil
import sys
from pathlib import Path

from shared.settings.settings import Settings

_BODY = '{"prompt": "Once upon a time", "max_tokens": 32, "temperature": 0}'


def greeting(settings: Settings, url: str, model: str) -> str:
    """The URL, how to make a key where one is asked for, a curl line, an OpenAI snippet, the command's own."""
    keyed = settings.auth == "required"
    parts = [f"{model} is served at {url}"]
    if keyed:
        folder = f" --state-dir {shlex.quote(settings.state_dir)}" if settings.state_dir else ""
        make_key = f"export PENSTOCK_API_KEY=$({program()} keys add default{folder})"
        parts.append(f"A key for the tenant `default`:\n\n    {make_key}")
    bearer = ' -H "authorization: Bearer $PENSTOCK_API_KEY"' if keyed else ""
    parts.append(
        f"A job, waited for:\n\n    curl -s '{url}/v1/jobs?wait_ms=30000' -H 'content-type: application/json'{bearer} "
        f"-d '{_BODY}'"
    )
    key = 'os.environ["PENSTOCK_API_KEY"]' if keyed else '"any"'
    parts.append(
        "The same by the openai package:\n\n"
        f"{'    import os' + chr(10) if keyed else ''}"
        "    from openai import OpenAI\n\n"
        f'    client = OpenAI(base_url="{url}/v1", api_key={key}, max_retries=8)\n'
        '    messages = [{"role": "user", "content": "Once upon a time"}]\n'
        f'    answer = client.chat.completions.create(model="{model}", messages=messages)\n'
        "    print(answer.choices[0].message.content)"
    )
    where = "" if url == settings.url else f"PENSTOCK_URL={url} "
    parts.append(f"From this command line:\n\n    {where}{program()} submit 'Once upon a time'")
    if settings.gate_listen:
        parts.append(f"The TCP gate listens on {settings.gate_listen}.")
    parts.append("Ctrl-C stops it; jobs that wait are kept for the next start.")
    return "\n\n".join(parts)


def program() -> str:
    """How to type this command in the folder where it was started."""
    beside = Path(sys.executable).parent / "penstock"
    found = shutil.which("penstock")
    if found and Path(found).resolve() == beside.resolve():
        return "penstock"
    try:
        return shlex.quote(str(beside.relative_to(Path.cwd())))
    except ValueError:
        return shlex.quote(str(beside))

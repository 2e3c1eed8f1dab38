"""Examples of requests, for users to copy: the door's start page and the greeting of `penstock up` show them.

No example is indented or contains an empty line, so that each can be pasted into a shell or a Python prompt.
"""

import json
import shlex

_PROMPT = "Once upon a time"


def curl_example(url: str, *, needs_key: bool, model: str = "") -> str:
    """Return a shell command that submits a job and waits for its end. It names the model if `model` is not ""."""
    bearer = ' -H "authorization: Bearer $PENSTOCK_API_KEY"' if needs_key else ""
    named = {"model": model} if model else {}
    body = shlex.quote(json.dumps(named | {"prompt": _PROMPT, "max_tokens": 32, "temperature": 0}))
    return f"curl -s '{url}/v1/jobs?wait_ms=30000' -H 'content-type: application/json'{bearer} -d {body}"


def openai_example(url: str, *, needs_key: bool, model: str) -> str:
    key = 'os.environ["PENSTOCK_API_KEY"]' if needs_key else '"any"'
    return (
        f"{'import os' + chr(10) if needs_key else ''}"
        "from openai import OpenAI\n"
        f'client = OpenAI(base_url="{url}/v1", api_key={key}, max_retries=8)\n'
        f'messages = [{{"role": "user", "content": "{_PROMPT}"}}]\n'
        f"answer = client.chat.completions.create(model={json.dumps(model)}, messages=messages)\n"
        "print(answer.choices[0].message.content)"
    )

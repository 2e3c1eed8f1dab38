"""One tenant floods the door with jobs; then another tenant sends a single job and is not delayed by the flood.

Start `make up`, then run `python examples/flood.py` in another shell. PENSTOCK_URL selects another door. If the door
requires API keys, set RED_KEY and BLUE_KEY to keys of two tenants. Otherwise the door must run with PENSTOCK_AUTH=open,
as `make up` does, because this program then names its tenants in the header X-Tenant.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any

URL = os.environ.get("PENSTOCK_URL", "http://127.0.0.1:8000").rstrip("/")
FLOOD_JOBS = 200


class NoAnswer(Exception):
    """A request was answered with neither a job nor a refusal; the message says with what, and what to do about it."""


def submit(tenant: str, prompt: str, *, max_tokens: int, wait_ms: int = 0) -> tuple[int, dict[str, Any]]:
    """Send one job. Return the HTTP status and the body, which is the job or its refusal. Raise NoAnswer otherwise."""
    key = os.environ.get(f"{tenant.upper()}_KEY")
    caller = {"authorization": f"Bearer {key}"} if key else {"x-tenant": tenant}
    body = json.dumps({"prompt": prompt, "max_tokens": max_tokens}).encode()
    headers = {"content-type": "application/json", **caller}
    try:
        request = urllib.request.Request(f"{URL}/v1/jobs?wait_ms={wait_ms}", body, headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            status, answer = response.status, parse_object(response.read())
    except urllib.error.HTTPError as error:
        with error:
            status, answer = error.code, parse_object(error.read())
    except (OSError, HTTPException) as error:
        cause = getattr(error, "reason", error)
        raise NoAnswer(f"no answer from {URL} (PENSTOCK_URL): {cause}; start it with `make up`") from None
    except ValueError as error:
        raise NoAnswer(f"PENSTOCK_URL={URL!r} does not look like http://host:port: {error}") from None
    if answer.get("status") == "yield" or (status < 300 and "id" in answer):
        return status, answer
    raise NoAnswer(f"{URL} answered {status}{message_of(answer)}{advice(status, tenant)}")


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in a body, or an empty one if the body is something else, such as a proxy's page."""
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def message_of(answer: dict[str, Any]) -> str:
    """Return the message of the door's error, or say that the answer is not one of Penstock's."""
    error = answer.get("error")
    if isinstance(error, dict) and error.get("message"):
        return f": {error['message']}"
    return ", but neither a job nor a refusal; is PENSTOCK_URL the address of a Penstock door, without /v1?"


def advice(status: int, tenant: str) -> str:
    """Return what to do about a missing or wrong key."""
    name = f"{tenant.upper()}_KEY"
    if status not in {401, 403}:
        return ""
    return f"; check {name}" if os.environ.get(name) else f"; set {name} to an API key (`penstock keys add {tenant}`)"


def flood() -> None:
    """Send many jobs as the tenant red, then one job as the tenant blue, and print how each tenant was answered."""
    with ThreadPoolExecutor(max_workers=50) as pool:
        answers = list(pool.map(lambda _: submit("red", "Once upon a time", max_tokens=200), range(FLOOD_JOBS)))
    refusals = [(status, body) for status, body in answers if body["status"] == "yield"]
    print(f"red:  {FLOOD_JOBS} jobs sent, {FLOOD_JOBS - len(refusals)} admitted, {len(refusals)} refused")
    if refusals:
        statuses = " and ".join(sorted({str(status) for status, _ in refusals}))
        reasons = ", ".join(sorted({body["reason"] for _, body in refusals}))
        hints_s = [body["retry_hint_ms"] / 1000 for _, body in refusals if body["retry_hint_ms"] is not None]
        hints = f"retry after {min(hints_s):.1f} to {max(hints_s):.1f} s" if hints_s else "a retry would not help"
        print(f"red:  {statuses} {reasons}; {hints}")
    began_s = time.monotonic()
    status, job = submit("blue", "There was a fox", max_tokens=16, wait_ms=30_000)
    took_s = time.monotonic() - began_s
    text = json.dumps(str(job.get("text") or job.get("reason") or "").strip(), ensure_ascii=False)
    print(f"blue: 1 job sent, {status} {job['status']} after {took_s:.1f} s: {text}")


def main() -> None:
    """Run the flood. Exit with 1 and one sentence if the door answers otherwise than with jobs and refusals.

    Exit with 1 as well, without a word, if the program that reads stdout has ended, such as `head`.
    """
    try:
        flood()
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except NoAnswer as error:
        sys.exit(f"flood.py: {error}")


if __name__ == "__main__":
    main()

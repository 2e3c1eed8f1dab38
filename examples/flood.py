"""One tenant floods the door with jobs; then another tenant sends a single job and is not delayed by the flood.

Start `make up`, then run `python examples/flood.py` in another shell. PENSTOCK_URL selects another door. If the door
requires API keys, set RED_KEY and BLUE_KEY to keys of two tenants. Otherwise the door must run with PENSTOCK_AUTH=open,
as `make up` does, because this program then names its tenants in the header X-Tenant.
"""

import json
import os
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

URL = os.environ.get("PENSTOCK_URL", "http://127.0.0.1:8000")
FLOOD_JOBS = 200


def submit(tenant: str, prompt: str, *, max_tokens: int, wait_ms: int = 0) -> tuple[int, dict[str, Any]]:
    """Send one job. Return the HTTP status and the body, which is the job or its refusal."""
    key = os.environ.get(f"{tenant.upper()}_KEY")
    caller = {"authorization": f"Bearer {key}"} if key else {"x-tenant": tenant}
    request = urllib.request.Request(
        f"{URL}/v1/jobs?wait_ms={wait_ms}",
        json.dumps({"prompt": prompt, "max_tokens": max_tokens}).encode(),
        {"content-type": "application/json", **caller},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def main() -> None:
    """Send many jobs as the tenant red, then one job as the tenant blue, and print how each tenant was answered."""
    with ThreadPoolExecutor(max_workers=50) as pool:
        answers = list(pool.map(lambda _: submit("red", "Once upon a time", max_tokens=200), range(FLOOD_JOBS)))
    refusals = [body for status, body in answers if status == 503]
    reasons = sorted({body["reason"] for body in refusals})
    hints_s = [body["retry_hint_ms"] / 1000 for body in refusals]
    print(f"red:  {FLOOD_JOBS} jobs sent, {FLOOD_JOBS - len(refusals)} admitted, {len(refusals)} refused")
    if refusals:
        print(f"red:  503 {', '.join(reasons)}; retry after {min(hints_s):.1f} to {max(hints_s):.1f} s")
    began_s = time.monotonic()
    status, job = submit("blue", "There was a fox", max_tokens=16, wait_ms=30_000)
    took_s = time.monotonic() - began_s
    text = json.dumps(str(job.get("text", "")).strip(), ensure_ascii=False)
    print(f"blue: 1 job sent, {status} {job.get('status')} after {took_s:.1f} s: {text}")


if __name__ == "__main__":
    main()

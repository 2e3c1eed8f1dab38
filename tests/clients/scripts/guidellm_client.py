"""guidellm: its benchmark over chat completions and over completions, in which no request may fail."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from check import BASE_URL, KEY, MODEL, check, main

N_REQUESTS, N_TOKENS = 12, 16


def benchmark(request_format: str) -> dict[str, Any]:
    """Run guidellm with two requests at once, and return its report on their benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        prompts, report = Path(folder, "prompts.jsonl"), Path(folder, "report.json")
        line = json.dumps({"prompt": "hello", "output_tokens_count": N_TOKENS})
        prompts.write_text(f"{line}\n" * N_REQUESTS)
        backend = f"kind=openai_http,target={BASE_URL.removesuffix('/v1')},model={MODEL},api_key={KEY}"
        subprocess.run(
            [
                str(Path(sys.executable).with_name("guidellm")),
                "run",
                *("--backend", f"{backend},request_format={request_format}"),
                *("--profile", "kind=concurrent,streams=2"),
                *("--constraint", f"kind=max_requests,count={N_REQUESTS}"),
                *("--data", f"kind=json_file,path={prompts}"),
                *("--output", f"kind=json,path={report}"),
                "--disable-console",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        (found,) = json.loads(report.read_text())["benchmarks"]
        return dict(found)


def expect_all_answered(request_format: str) -> None:
    """Expect that every request succeeded with as many tokens as it asked for."""
    found = benchmark(request_format)
    totals = found["metrics"]["request_totals"]
    assert totals == {"successful": N_REQUESTS, "errored": 0, "incomplete": 0, "total": N_REQUESTS}, totals
    lengths = {request["output_tokens"] for request in found["requests"]["successful"]}
    assert lengths == {N_TOKENS}, lengths


@check("benchmark over chat completions")
def _chat() -> None:
    expect_all_answered("/v1/chat/completions")


@check("benchmark over completions")
def _completions() -> None:
    expect_all_answered("/v1/completions")


main()

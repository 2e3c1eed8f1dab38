"""`penstock up` with its own model: the answers are the model's, and what the pages tell one to type works."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.program import COMMAND, ROOT
from tests.support.up import Up

pytestmark = pytest.mark.ways("direct", reason="the stack as `penstock up` starts it for a newcomer, without a proxy")

OPENINGS = (
    "Once upon a time",
    "The little fox",
    "In the old mill",
    "Mara had a red boat",
    "Long ago",
    "One rainy morning",
)
# No answer to any of the 24 comes by two tokens closer than .009 nats: at .0003 rounding decided, by the company.
ENDINGS = (" there was", ", who was never tired,", " and the owl", " wanted a friend")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """The stack as a newcomer gets it, with eight slots."""
    environ = {"PENSTOCK_ENGINE": "llama", "PENSTOCK_MAX_BATCH_SIZE": "8", "PENSTOCK_MAX_QUEUE_SIZE": "32"}
    with Up(tmp_path_factory.mktemp("one") / "state", "--port", "0", **environ) as stack:
        yield stack.serving()


@pytest.fixture(scope="module")
def alone(up: Up):
    """The same file served by llama_cpp.Llama, one prompt at a time."""
    from llama_cpp import Llama

    (model,) = Path(up.state).rglob("*.gguf")
    llama = Llama(str(model), n_ctx=2_048, n_threads=1, verbose=False)
    yield lambda prompt, tokens: llama(prompt, max_tokens=tokens, temperature=0)["choices"][0]["text"]
    llama.close()


def answer(up: Up, prompt: str, tokens: int) -> str:
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "deadline_ms": 100_000}
    status, job = up.ask("POST", "/v1/jobs?wait_ms=60000", body)
    assert (status, job["status"]) == (200, "succeeded"), job
    return str(job["text"])


def test_a_submitted_job_is_polled_to_its_answer(up):
    job_id = up.submit(32, prompt="Once upon a time", temperature=0)
    job = up.job(job_id, wait_ms=30_000)
    assert job["status"] == "succeeded"
    assert job["model"] == "penstock-demo"
    assert len(job["text"].split()) > 5
    assert job["usage"]["completion_tokens"] <= 32
    assert job["usage"]["prompt_tokens"] > 0


def test_an_answer_is_what_the_model_alone_gives(up, alone):
    assert answer(up, "Once upon a time", 32) == alone("Once upon a time", 32)


@pytest.mark.timeout(300)
def test_twenty_four_jobs_at_once_in_eight_slots_are_each_what_the_model_alone_gives(up, alone):
    prompts = [opening + ending for opening in OPENINGS for ending in ENDINGS]
    assert len(set(prompts)) == 24
    with ThreadPoolExecutor(24) as clients:
        answers = list(clients.map(lambda pair: answer(up, pair[1], 16 + pair[0]), enumerate(prompts)))
    assert answers == [alone(prompt, 16 + i) for i, prompt in enumerate(prompts)]


def typed(up: Up, line: str) -> subprocess.CompletedProcess[str]:
    """A documented line in a shell that finds `penstock` and this door."""
    line = re.sub(r"(?<![\w/-])penstock (?=[a-z])", shlex.join(COMMAND).replace("\\", "/") + " ", line)
    line = line.replace("localhost:8000", up.url.removeprefix("http://"))
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        env=up.environ | {"PENSTOCK_URL": up.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


ONE_LINERS = re.findall(r"\| `(penstock redis [^`]+)` \|", (ROOT / "docs/keys.md").read_text())


def test_there_are_ten_one_liners_and_the_first_counts_what_is_inflight():
    assert len(ONE_LINERS) == 10
    assert ONE_LINERS[0] == "penstock redis ZCARD penstock:inflight"


@pytest.mark.parametrize("line", ONE_LINERS)
def test_a_one_liner_for_the_store_works_as_printed(up, line):
    done = typed(up, line)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ERR" not in done.stdout


def readme_lines() -> list[str]:
    """Every command line of the README but those of make, which would start another stack."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    lines = "\n".join(text for language, text in blocks if not language).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("make ")]


@pytest.mark.parametrize("line", readme_lines())
def test_a_line_of_the_readme_works_as_printed(up, line):
    done = typed(up, line)
    assert done.returncode == 0, done
    if line.startswith("curl"):
        assert json.loads(done.stdout)["status"] == "succeeded"


def test_the_readmes_snippet_chats(up, tmp_path):
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    program = tmp_path / "snippet.py"
    program.write_text(snippet.replace("http://127.0.0.1:8000", up.url))

    done = subprocess.run(
        [sys.executable, "-W", "ignore", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done
    assert done.stdout.strip()

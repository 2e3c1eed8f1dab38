"""LangChain's unmodified ChatOpenAI against the served door, and the snippet in docs/langchain.md."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import openai
import pytest
from pydantic import BaseModel, SecretStr

from tests.support.processes import ROOT, wait_for
from tests.support.served import Address, Served, sim_served

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI

pytestmark = pytest.mark.ways("direct", reason="test_openai_package.py sends such requests both ways")

#: One slot and two inflight jobs, so that most calls of a batch are refused at first.
ONE_SLOT = {"PENSTOCK_MAX_BATCH_SIZE": "1", "PENSTOCK_MAX_INFLIGHT": "2"}
PAGE = (ROOT / "docs" / "langchain.md").read_text(encoding="utf-8")


class Story(BaseModel):
    """The schema of a structured answer."""

    title: str


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sim_served(tmp_path_factory.mktemp("langchain"), **ONE_SLOT) as served:
        yield served


@pytest.fixture
def model(served: Address) -> "ChatOpenAI":
    # Not at the top: every process that collects tests would import it, which takes more than a second of CPU time.
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        base_url=f"{served.url}/v1", api_key=SecretStr("none"), model="sim", max_retries=10, max_tokens=20, timeout=60
    )


def test_invoke_returns_an_answer_with_its_usage(model: "ChatOpenAI") -> None:
    answer = model.invoke("hello there")
    assert len(str(answer.content).split()) == 20
    assert answer.usage_metadata is not None
    assert (answer.usage_metadata["input_tokens"], answer.usage_metadata["output_tokens"]) == (2, 20)
    assert answer.response_metadata["finish_reason"] == "length"


def test_an_answer_is_streamed_in_pieces(model: "ChatOpenAI") -> None:
    pieces = [str(chunk.content) for chunk in model.stream("hello there")]
    assert len("".join(pieces).split()) == 20
    assert sum(1 for piece in pieces if piece) > 1


def test_a_batch_larger_than_the_inflight_bound_gets_all_its_answers(served: Address, model: "ChatOpenAI") -> None:
    before = served.stage.stat("yielded")
    # Each answer takes half a second: a slow client sends the next requests before it has ended.
    answers = model.bind(max_tokens=100).batch([f"story {number}" for number in range(12)])
    assert [len(str(answer.content).split()) for answer in answers] == [100] * 12
    refused = served.stage.stat("yielded") - before
    print(f"12 answers, {refused} refusals obeyed")
    assert refused > 0


def test_closing_a_stream_early_cancels_its_job(served: Address, model: "ChatOpenAI") -> None:
    stream = model.stream("hello there", max_tokens=4_000)
    next(iter(stream))
    stream.close()  # type: ignore[attr-defined]  # a generator, declared as an iterator
    # It would last for 20 s.
    wait_for(lambda: served.stage.inflight() == 0, "the job to be canceled", timeout_s=10)


def test_tools_raise_the_error_unsupported_parameter(model: "ChatOpenAI") -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        model.bind_tools([Story]).invoke("hello there")
    assert caught.value.code == "unsupported_parameter"
    assert caught.value.param == "tools"


def test_the_snippet_in_the_docs_works_as_printed(served: Address, tmp_path: Path) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for printed, actual in (("http://localhost:8000", served.url), ('"demo"', '"sim"')):
        assert printed in snippet
        snippet = snippet.replace(printed, actual)
    done = subprocess.run(
        [sys.executable, "-c", snippet], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "20 640"

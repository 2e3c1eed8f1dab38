"""Measures how well a model calls tools and tells stories: `python -m tools.demo_model.evaluate --help`.

The requests are of the kind that the demo model is trained for, but none of them occurs in its training. They run in
the worker's engine, with greedy sampling.
"""

import argparse
import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import llama_cpp
import numpy as np

from shared.answer_parts import read_parts
from shared.jobs.job import ClaimRef
from shared.settings.settings import load
from tools.demo_model.calls.conversations import Question, a_question
from tools.demo_model.stories import a_story
from workers.demo import demo_model_path
from workers.demo.vocabulary import BOS_ID, EOS_ID
from workers.engine.events import Ended, Event, JobSpec
from workers.engine.llama.backend import load_backend
from workers.engine.loop import Engine
from workers.engine.stats import EngineSettings

#: More tokens than any call or answer of the evaluation has.
MAX_CALL_TOKENS = 160
_SLOTS, _CELLS_OF_A_SLOT = 8, 2048
_NO_DEADLINE_S = 1e12
#: Number of stories whose loss is measured: about 7,000 tokens.
N_STORIES = 40


@dataclass(frozen=True)
class Attempt:
    """A question, and the function and the arguments that the model called; "" if it called none."""

    question: Question
    name: str
    arguments: str

    @property
    def has_right_tool(self) -> bool:
        """Whether the model called the tool that the request is for."""
        return self.name == self.question.case.tool.name

    @property
    def has_right_arguments(self) -> bool:
        """Whether the model also passed exactly the values of the request."""
        return self.has_right_tool and _parsed(self.arguments) == self.question.case.arguments


@dataclass(frozen=True)
class Loop:
    """An attempt, and what the model answered when it was given the tool's result; "" if it did not call the tool."""

    attempt: Attempt
    answer: str

    @property
    def is_right(self) -> bool:
        """Whether the model called the right tool, and its answer names all that the expected answer has to name.

        These are the words of the result and of the arguments that the expected answer has too.
        """
        case = self.attempt.question.case
        known = _words(f"{case.result} {' '.join(map(str, case.arguments.values()))}")
        return self.attempt.has_right_tool and known & _words(case.answer) <= _words(self.answer)


def questions(seed: int, count: int, *, is_new_tool: bool = False) -> list[Question]:
    """Return unseen requests with three tools each, which depend only on the arguments.

    The right tool is one that training has, or with `is_new_tool` one whose words are new to the model.
    """
    rng = Random(seed)  # noqa: S311 - the requests are not secret
    return [a_question(rng, is_new_tool=is_new_tool) for _ in range(count)]


def attempts(path: Path, asked: Sequence[Question], *, tool_choice: str) -> list[Attempt]:
    """Return what the model at `path` calls for each question. Raises ModelError if it cannot be loaded."""
    texts = _answers(path, [_payload(question, tool_choice) for question in asked])
    return [_attempt(question, text) for question, text in zip(asked, texts, strict=True)]


def loops(path: Path, made: Sequence[Attempt]) -> list[Loop]:
    """Return what the model at `path` answers when its calls have results. Raises ModelError if it cannot be loaded."""
    called = [attempt for attempt in made if attempt.has_right_tool]
    texts = iter(_answers(path, [_payload_with_result(attempt) for attempt in called]))
    return [Loop(attempt, next(texts) if attempt.has_right_tool else "") for attempt in made]


def _answers(path: Path, payloads: Sequence[dict[str, Any]]) -> list[str]:
    """Return the model's answer to each request."""
    settings = load({}, None, device="cpu", max_batch_size=_SLOTS, kv_cells=_SLOTS * _CELLS_OF_A_SLOT, threads=1)
    ended: dict[str, str] = {}

    def note(event: Event) -> None:
        if isinstance(event, Ended):
            ended[event.key.id] = event.text

    with contextlib.closing(load_backend(settings, path)) as backend:
        engine = Engine(backend, EngineSettings(), note)
        for index, payload in enumerate(payloads):
            engine.submit(
                engine.prepare(JobSpec(ClaimRef(str(index), ""), "tests", payload, MAX_CALL_TOKENS, _NO_DEADLINE_S))
            )
        while engine.step():
            pass
    return [ended[str(index)] for index in range(len(payloads))]


def story_loss(path: Path, seed: int, count: int = N_STORIES) -> float:
    """Return the mean loss on generated stories in nats per character, which compares models with any vocabularies."""
    llama = llama_cpp.Llama(str(path), n_ctx=2048, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False)
    rng = Random(seed)  # noqa: S311 - stories are not secret
    loss, n_characters = 0.0, 0
    with contextlib.closing(llama):
        for _ in range(count):
            story = a_story(rng)
            ids = [BOS_ID, *llama.tokenize(story.encode(), add_bos=False, special=False), EOS_ID]
            llama.reset()
            llama.eval(ids)
            logits = llama.scores[: len(ids) - 1].astype(np.float64)
            largest = logits.max(axis=1, keepdims=True)
            normal = largest[:, 0] + np.log(np.exp(logits - largest).sum(axis=1))
            loss += float((normal - logits[np.arange(len(ids) - 1), ids[1:]]).sum())
            n_characters += len(story)
    return loss / n_characters


def main() -> None:
    """Print the shares of right tools, arguments and answers, the failures if requested, and the loss on stories."""
    options = _options()
    for kind, is_new_tool in (("known tools", False), ("new tools", True)):
        asked = questions(options.seed, options.requests, is_new_tool=is_new_tool)
        for choice in ("auto", "required"):
            made = attempts(options.model, asked, tool_choice=choice)
            right = sum(attempt.has_right_tool for attempt in made)
            exact = sum(attempt.has_right_arguments for attempt in made)
            print(f"{kind}, {choice}: right tool {_share(right, made)}, right arguments too {_share(exact, made)}")
            _print_failures(made, options.failures)
            if choice == "auto":
                _print_loops(kind, loops(options.model, made), options.failures)
    print(f"stories: {story_loss(options.model, options.seed):.4f} nats per character")


def _print_failures(made: Sequence[Attempt], n_failures: int) -> None:
    for attempt in islice((attempt for attempt in made if not attempt.has_right_arguments), n_failures):
        case = attempt.question.case
        print(f"  {case.request}\n    {case.tool.name}{dict(case.arguments)}: {attempt.name}{attempt.arguments}")


def _print_loops(kind: str, done: Sequence[Loop], n_failures: int) -> None:
    right = [loop for loop in done if loop.is_right]
    print(f"{kind}, the answer after the result: right {_share(len(right), done)}")
    for loop in islice((loop for loop in done if not loop.is_right), n_failures):
        case = loop.attempt.question.case
        print(f"  {case.request}\n    {case.result}: {loop.answer}\n    expected: {case.answer}")


def _payload(question: Question, tool_choice: str) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": question.case.request}],
        "tools": [tool.as_json() for tool in question.tools],
        "tool_choice": tool_choice,
        "max_tokens": MAX_CALL_TOKENS,
        "temperature": 0,
    }


def _payload_with_result(attempt: Attempt) -> dict[str, Any]:
    """Return the request that follows a call: with the call as the model made it, and the tool's result."""
    function = {"name": attempt.name, "arguments": attempt.arguments}
    call = {"id": "call", "type": "function", "function": function}
    payload = _payload(attempt.question, "auto")
    messages = [
        *payload["messages"],
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call", "content": attempt.question.case.result},
    ]
    return payload | {"messages": messages}


def _attempt(question: Question, text: str) -> Attempt:
    calls = read_parts(text).calls
    return Attempt(question, calls[0].name, calls[0].arguments) if calls else Attempt(question, "", text)


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def _parsed(arguments: str) -> Mapping[str, Any] | None:
    try:
        return dict(json.loads(arguments))
    except ValueError:
        return None


def _share(count: int, of: Sequence[Attempt | Loop]) -> str:
    return f"{count} of {len(of)} ({count / max(1, len(of)):.1%})"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.demo_model.evaluate", description=__doc__)
    parser.add_argument("--model", type=Path, default=demo_model_path(), help="the GGUF file to measure")
    parser.add_argument("--requests", type=int, default=200, help="number of requests of each kind")
    parser.add_argument("--seed", type=int, default=1, help="seed of the requests and of the stories")
    parser.add_argument("--failures", type=int, default=0, help="number of failures to print for each kind and choice")
    return parser.parse_args()


if __name__ == "__main__":
    main()

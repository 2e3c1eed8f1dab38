"""Tests that the evaluation measures which tools a model calls and how well it tells stories."""

import json
from pathlib import Path

import pytest

from tools.demo_model.calls.conversations import Question
from tools.demo_model.evaluate import Attempt, Loop, attempts, loops, questions, story_loss
from workers.demo import demo_model_path
from workers.demo.random_gguf import write_random_model


@pytest.fixture(scope="module")
def question() -> Question:
    return next(question for question in questions(2, 50) if len(question.case.arguments) == 2)


def test_a_model_that_must_call_a_tool_calls_one_of_the_question(tmp_path: Path) -> None:
    write_random_model(tmp_path / "random.gguf")
    asked = questions(1, 3)
    made = attempts(tmp_path / "random.gguf", asked, tool_choice="required")

    assert [attempt.question for attempt in made] == asked
    for attempt in made:
        assert attempt.name in [tool.name for tool in attempt.question.tools]


def test_a_call_is_right_only_with_the_right_tool_and_the_values_of_the_request(question: Question) -> None:
    right = question.case.tool.name
    other = next(tool.name for tool in question.tools if tool.name != right)
    name, value = next(iter(question.case.arguments.items()))
    incomplete = Attempt(question, right, "{}")
    cut = Attempt(question, right, f'{{"{name}": "{value}')

    assert not Attempt(question, other, "{}").has_right_tool
    assert not Attempt(question, "", "Once upon a time").has_right_tool
    assert (incomplete.has_right_tool, incomplete.has_right_arguments) == (True, False)
    assert (cut.has_right_tool, cut.has_right_arguments) == (True, False)


def test_a_model_that_has_called_a_tool_is_given_the_result_and_answers(tmp_path: Path) -> None:
    write_random_model(tmp_path / "random.gguf")
    first, second = questions(1, 2)
    right = Attempt(first, first.case.tool.name, json.dumps(dict(first.case.arguments)))
    wrong = Attempt(second, "", "Once upon a time")
    answered, refused = loops(tmp_path / "random.gguf", [right, wrong])

    assert answered.attempt == right
    assert answered.answer
    assert not answered.is_right
    assert refused == Loop(wrong, "")


def test_an_answer_is_right_only_after_the_right_call_and_with_the_values_of_the_result() -> None:
    for question in questions(3, 50):
        case = question.case
        call = Attempt(question, case.tool.name, "{}")

        assert Loop(call, case.answer).is_right
        assert Loop(call, f"So: {case.answer}").is_right
        assert not Loop(Attempt(question, "", case.answer), case.answer).is_right
        assert not Loop(call, "").is_right


def test_the_demo_model_has_a_lower_loss_on_stories_than_random_weights(tmp_path: Path) -> None:
    write_random_model(tmp_path / "random.gguf")

    # The random model knows none of the words, so its loss is far above one nat per character.
    assert story_loss(demo_model_path(), seed=1, count=2) < 0.2
    assert story_loss(tmp_path / "random.gguf", seed=1, count=2) > 1

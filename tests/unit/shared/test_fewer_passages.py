"""Tests the second choice in a job's payload: the prompt with fewer passages."""

import pytest

from shared.jobs.fewer_passages import FIELD, add_fewer, read_fewer

SYSTEM, FIRST = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "[1] [2] [3] [4] Why?"}
LESS, REST = {"role": "user", "content": "[1] [2] Why?"}, {"role": "assistant", "content": "Because"}


@pytest.mark.parametrize(
    ("payload", "less"),
    [
        ({"prompt": "four passages", "seed": 1}, {"prompt": "two", "seed": 1}),
        ({"messages": [SYSTEM, FIRST, REST]}, {"messages": [SYSTEM, LESS, REST]}),
        ({"messages": [SYSTEM, FIRST]}, {"messages": [SYSTEM]}),
        ({"messages": [FIRST]}, {"messages": []}),
    ],
)
def test_the_second_choice_is_read_as_it_was_written_and_has_no_third(payload, less):
    stored = add_fewer(payload, less, 2)
    assert {name: value for name, value in stored.items() if name != FIELD} == payload
    assert read_fewer(stored) == (less, 2)
    assert read_fewer(less) is None


def test_only_the_messages_that_differ_are_written_twice():
    stored = add_fewer({"messages": [SYSTEM] * 9 + [FIRST]}, {"messages": [SYSTEM] * 9 + [LESS]}, 2)
    assert stored[FIELD]["messages"] == [LESS]


@pytest.mark.parametrize(
    "spoiled", [None, 1, [], {}, {"passages": 1}, {"passages": "1", "prompt": "x"}, {"passages": 1, "after": 0}]
)
def test_a_second_choice_that_another_program_has_spoiled_is_ignored(spoiled):
    assert read_fewer({"prompt": "x", FIELD: spoiled}) is None
    assert read_fewer({"messages": 7, FIELD: {"passages": 1, "after": 0, "messages": []}}) is None

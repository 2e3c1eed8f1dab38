"""Tests of inputs that are texts or token ids, one or several."""

from typing import Any

import pytest

from web.api.request_schema import read_inputs


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([5, 6], [[5, 6]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
        (["a", [5]], ["a", [5]]),
    ],
)
def test_an_input_is_read_as_a_list_of_texts_and_lists_of_token_ids(given: Any, inputs: Any) -> None:
    assert read_inputs(given, "input", 2) == inputs


@pytest.mark.parametrize("given", [5, None, {}, [], "", "a\0", [True], [-1], ["a", 5], [[]], [["a"]], ["a", "b", "c"]])
def test_anything_else_is_an_error_that_names_the_field(given: Any) -> None:
    with pytest.raises(ValueError, match="input"):
        read_inputs(given, "input", 2)

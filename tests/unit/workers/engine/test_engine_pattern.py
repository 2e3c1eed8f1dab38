"""Tests of patterns as automata: each accepts exactly the texts of its regular expression, in one way only."""

import re

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tests.support.cpu_time import cpu_time_below
from workers.engine.structured.automaton import AutomatonBuilder
from workers.engine.structured.pattern import states_of

STEPS = 50_000

SUPPORTED = [
    r"^$",
    r"^abc$",
    r"^(a|b)$",
    r"^(?:ab)+c?$",
    r"^[a-c]{2,3}$",
    r"^[^a-c]*$",
    r"^.+$",
    r"^\d{3}-?\w+$",
    r"^a{2,}b{0,1}$",
    r"^(a|ab)(c|bcd)*$",
    r"^[\d_-]+$",
    r"^[a\]]*$",
    r"^\x41\u0062$",
    r"^a+?b*?$",
    r"^(a?b?){3}$",
    r"^\(\.\*\)$",
    r'^"a\\b"$',
    r"^\S\s\D\W$",
    r"^a$|^bc$",
    r"^(a*)*b$",
    r"^[a-]?[-b]?$",
    r"^\/\-$",
]


def _accepts(pattern: str, text: str) -> bool:
    states = states_of(pattern, AutomatonBuilder(STEPS))
    state = 0
    for character in text:
        targets = [
            target
            for target, ranges in states[state].transitions.items()
            for low, high in ranges
            if low <= ord(character) <= high
        ]
        assert len(targets) <= 1, "more than one transition for a character"
        if not targets:
            return False
        state = targets[0]
    return states[state].accepting


@pytest.mark.parametrize("pattern", SUPPORTED)
@given(text=st.text('abcd019_-.*()\\"]/ Ab\té', max_size=7))
def test_an_automaton_accepts_exactly_the_texts_that_the_expression_matches(pattern, text):
    assert _accepts(pattern, text) == (re.fullmatch(pattern, text, re.ASCII) is not None)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [(r"^(a?){999}$", "a" * 999), (r"^.{1,999}$", "é" * 999), (r"^[a-z]+(-[a-z]+)*@[a-z]+$", "ab-c-d@e")],
)
def test_an_automaton_accepts_long_texts(pattern, text):
    assert _accepts(pattern, text)
    assert not _accepts(pattern, text + "\n")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a", "begin with ^"),
        ("^a", "end with $"),
        ("^a|b$", "end with $"),
        ("^(a$", "not closed"),
        ("^a)$", "end with $"),
        ("^[a$", "not closed"),
        ("^[b-a]$", "backwards"),
        ("^a{3,2}$", "backwards"),
        ("^a**$", "cannot follow another quantifier"),
        ("^*$", "escaped"),
        (r"^\bword$", r"\b is not supported"),
        (r"^(a)\1$", "is not supported"),
        (r"^\p{L}$", "is not supported"),
        ("^(?=a)a$", "(?"),
        ("^[]$", "no text matches"),
        ("^\x01$", "no text matches"),
        ("^" + "a" * 1000 + "$", "over the limit of 1000"),
    ],
)
def test_an_unsupported_pattern_is_refused_with_the_reason(pattern, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        states_of(pattern, AutomatonBuilder(STEPS))


@pytest.mark.parametrize(
    "pattern",
    [
        "^((a{900}){900})$",
        "^(a|b)*a(a|b){40}$",
        "^" + "(a?)" * 240 + "$",
        "^(.*a){60}$",
        "^" + "".join(f"(.*{chr(97 + i)})?" for i in range(26)) + "$",
        "^(" + "|".join(f".*{chr(97 + i)}.*{chr(98 + i)}.*{chr(99 + i)}" for i in range(20)) + ")$",
    ],
)
def test_a_pattern_with_too_many_states_is_refused_within_a_second(pattern):
    with cpu_time_below(1), pytest.raises(ValueError, match=r"states|too long"):
        states_of(pattern, AutomatonBuilder(STEPS))

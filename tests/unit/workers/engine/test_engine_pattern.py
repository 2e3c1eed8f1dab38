"""Patterns as automata: the same texts fit as fit the expression, one way to read each, within bounds."""

import re
import time

import hypothesis.strategies as st
import pytest
from hypothesis import given

from workers.engine.structured.automaton import Search
from workers.engine.structured.pattern import states_of

STEPS = 50_000

UNDERSTOOD = [
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


def _fits(pattern: str, text: str) -> bool:
    states = states_of(pattern, Search(STEPS))
    at = 0
    for sign in text:
        ways = [
            target for target, ranges in states[at].moves.items() for low, high in ranges if low <= ord(sign) <= high
        ]
        assert len(ways) <= 1, "two ways to read one text"
        if not ways:
            return False
        at = ways[0]
    return states[at].ends


@pytest.mark.parametrize("pattern", UNDERSTOOD)
@given(text=st.text('abcd019_-.*()\\"]/ Ab\té', max_size=7))
def test_the_texts_that_fit_are_those_that_fit_the_expression(pattern, text):
    assert _fits(pattern, text) == (re.fullmatch(pattern, text, re.ASCII) is not None)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [(r"^(a?){999}$", "a" * 999), (r"^.{1,999}$", "é" * 999), (r"^[a-z]+(-[a-z]+)*@[a-z]+$", "ab-c-d@e")],
)
def test_long_texts_fit_too(pattern, text):
    assert _fits(pattern, text)
    assert not _fits(pattern, text + "\n")


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("a", "begin with ^"),
        ("^a", "end with $"),
        ("^a|b$", "end with $"),
        ("^(a$", "not closed"),
        ("^a)$", "end with $"),
        ("^[a$", "not closed"),
        ("^[b-a]$", "backwards"),
        ("^a{3,2}$", "backwards"),
        ("^a**$", "repeats a repetition"),
        ("^*$", "spelled"),
        (r"^\bword$", r"\b cannot be kept"),
        (r"^(a)\1$", "cannot be kept"),
        (r"^\p{L}$", "cannot be kept"),
        ("^(?=a)a$", "(?"),
        ("^[]$", "no text fits"),
        ("^\x01$", "no text fits"),
        ("^" + "a" * 1000 + "$", "over 1000"),
    ],
)
def test_what_is_not_understood_is_told(pattern, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        states_of(pattern, Search(STEPS))


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
def test_what_comes_to_too_much_is_told_within_a_second(pattern):
    began = time.process_time()
    with pytest.raises(ValueError, match=r"states|too long"):
        states_of(pattern, Search(STEPS))
    assert time.process_time() - began < 1

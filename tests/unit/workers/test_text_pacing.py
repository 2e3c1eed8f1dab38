"""When new text goes out: a job's first at once, then on a common tick of 50 ms, and never twice otherwise."""

from hypothesis import given
from hypothesis import strategies as st

from workers.duties.text_pacing import INTERVAL_S, TextPacing


def send(pace: TextPacing, now_s: float, ending: frozenset[str] = frozenset()) -> dict[str, str]:
    told = {chunk.key: chunk.text for chunk in pace.due(now_s, set(ending))}
    pace.sent(now_s)
    return told


def test_the_first_text_of_a_job_goes_at_once_and_the_next_waits():
    pace = TextPacing()
    pace.add("a", "one ", 1)
    assert send(pace, 10.01) == {"a": "one "}
    pace.add("a", "two ", 2)
    assert send(pace, 10.02) == {}
    assert pace.waits
    pace.add("a", "three", 3)
    assert send(pace, 10.12) == {"a": "two three"}
    assert not pace.waits


def test_jobs_that_began_at_different_moments_share_a_tick():
    pace = TextPacing()
    for key, moment in (("a", 10.01), ("b", 10.02), ("c", 10.04)):
        pace.add(key, "x", 1)
        assert send(pace, moment) == {key: "x"}
    for key in "abc":
        pace.add(key, "y", 2)
    assert send(pace, 10.12) == {"a": "y", "b": "y", "c": "y"}


def test_an_ending_job_is_not_paced():
    pace = TextPacing()
    pace.add("a", "x", 1)
    send(pace, 10.0)
    pace.add("a", "rest", 2)
    assert send(pace, 10.001, frozenset("a")) == {"a": "rest"}


def test_what_was_not_answered_is_sent_again_exactly_as_it_was():
    pace = TextPacing()
    pace.add("a", "x", 1)
    first = pace.due(10.0, set())
    pace.add("a", "y", 2)
    pace.add("b", "z", 1)
    assert pace.due(11.0, set()) == first
    pace.sent(11.0)
    assert send(pace, 11.2) == {"a": "y", "b": "z"}


def test_a_forgotten_job_says_no_more_even_what_was_in_doubt():
    pace = TextPacing()
    pace.add("a", "x", 1)
    pace.due(10.0, set())
    pace.forget("a")
    assert pace.due(10.0, set()) == []
    assert not pace.waits
    assert pace.next_tick_s(10.0) is None


def test_while_anybody_speaks_the_next_tick_is_at_most_an_interval_away():
    pace = TextPacing()
    assert pace.next_tick_s(10.0) is None
    pace.add("a", "x", 1)
    send(pace, 10.01)
    tick_s = pace.next_tick_s(10.01)
    assert tick_s is not None
    assert 10.01 < tick_s <= 10.01 + INTERVAL_S


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 0.07)), min_size=1, max_size=60))
def test_no_text_is_lost_doubled_or_reordered_whatever_the_moments(said):
    pace, now_s = TextPacing(), 10.0
    wanted: dict[str, str] = dict.fromkeys("abc", "")
    told = dict.fromkeys("abc", "")
    last_s: dict[str, float] = {}
    for number, (key, passed_s) in enumerate(said):
        now_s += passed_s
        word = f"{number} "
        wanted[key] += word
        pace.add(key, word, number)
        for sent, text in send(pace, now_s).items():
            told[sent] += text
            # Two sends of a job that fall into neighbouring ticks are an interval apart but for lateness.
            assert now_s - last_s.get(sent, 0.0) > 0.0
            last_s[sent] = now_s
    for sent, text in send(pace, now_s + 1).items():
        told[sent] += text
    assert told == wanted

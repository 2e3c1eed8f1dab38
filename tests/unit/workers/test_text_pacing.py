"""Tests of when new text is sent: a job's first text at once, later text on a common tick every 50 ms."""

from hypothesis import given
from hypothesis import strategies as st

from shared.jobs.answer_ids import NOTHING, AnswerIds
from shared.jobs.job import ClaimRef
from workers.duties.text_pacing import INTERVAL_S, TextPacing
from workers.engine.events import Text


def send(pace: TextPacing, now_s: float, ending: frozenset[str] = frozenset()) -> dict[str, str]:
    """Send the text that is due at `now_s`. Return it for each job."""
    received = {chunk.claim: chunk.text for chunk in pace.due(now_s, set(ending))}
    pace.sent(now_s)
    return received


def test_the_first_text_of_a_job_is_sent_at_once_and_later_text_waits_for_a_tick():
    pace = TextPacing()
    pace.add(Text("a", "one ", 1))
    assert send(pace, 10.01) == {"a": "one "}
    pace.add(Text("a", "two ", 2))
    assert send(pace, 10.02) == {}
    assert pace.has_unsent
    pace.add(Text("a", "three", 3))
    assert send(pace, 10.12) == {"a": "two three"}
    assert not pace.has_unsent


def test_jobs_that_started_at_different_times_share_a_tick():
    pace = TextPacing()
    for key, started_s in (("a", 10.01), ("b", 10.02), ("c", 10.04)):
        pace.add(Text(key, "x", 1))
        assert send(pace, started_s) == {key: "x"}
    for key in "abc":
        pace.add(Text(key, "y", 2))
    assert send(pace, 10.12) == {"a": "y", "b": "y", "c": "y"}


def test_the_last_text_of_an_ending_job_does_not_wait_for_a_tick():
    pace = TextPacing()
    pace.add(Text("a", "x", 1))
    send(pace, 10.0)
    pace.add(Text("a", "rest", 2))
    assert send(pace, 10.001, frozenset("a")) == {"a": "rest"}


def test_text_whose_send_was_not_answered_is_sent_again_unchanged():
    pace = TextPacing()
    pace.add(Text("a", "x", 1))
    first = pace.due(10.0, set())
    pace.add(Text("a", "y", 2))
    pace.add(Text("b", "z", 1))
    assert pace.due(11.0, set()) == first
    pace.sent(11.0)
    assert send(pace, 11.2) == {"a": "y", "b": "z"}


def test_a_forgotten_job_sends_nothing_more_not_even_unanswered_text():
    pace = TextPacing()
    pace.add(Text("a", "x", 1))
    pace.due(10.0, set())
    pace.forget("a")
    assert pace.due(10.0, set()) == []
    assert not pace.has_unsent
    assert pace.next_tick_s(10.0) is None


def test_while_a_job_produces_text_the_next_tick_is_at_most_one_interval_away():
    pace = TextPacing()
    assert pace.next_tick_s(10.0) is None
    pace.add(Text("a", "x", 1))
    send(pace, 10.01)
    tick_s = pace.next_tick_s(10.01)
    assert tick_s is not None
    assert 10.01 < tick_s <= 10.01 + INTERVAL_S


def test_ids_are_sent_with_their_text_and_the_seal_is_that_of_all_ids():
    pace = TextPacing("f")
    pace.add(Text(ClaimRef("id", "token"), "one ", 1, tokens=(5,)))
    (first,) = pace.due(10.01, set())
    pace.sent(10.01)
    pace.add(Text(ClaimRef("id", "token"), "two", 3, tokens=(6, 7)))
    (second,) = pace.due(10.12, set())
    ids = AnswerIds("token", "f")
    assert (first.ids, second.ids) == (ids.add([5], 1), ids.add([6, 7], 3))


def test_an_attempt_that_continues_seals_the_kept_ids_too():
    pace = TextPacing("f")
    pace.add(Text(ClaimRef("id", "token"), "three", 3, tokens=(7,)), kept=(5, 6))
    (chunk,) = pace.due(10.0, set())
    assert chunk.ids == AnswerIds("token", "f", (5, 6)).add([7], 3)


def test_many_tokens_wait_neither_for_text_nor_for_a_tick():
    pace = TextPacing("f", resume_tokens=8)
    for count in range(1, 4):
        pace.add(Text(ClaimRef("a", "t"), "", count, tokens=(count,)))
    assert pace.due(11.0, set()) == []
    pace.add(Text(ClaimRef("a", "t"), "", 4, tokens=(4,)))
    assert [(chunk.text, len(chunk.ids.ids)) for chunk in pace.due(10.0, set())] == [("", 16)]
    pace.sent(10.0)
    # The job's first text is still sent at once.
    pace.add(Text(ClaimRef("a", "t"), "now", 5, tokens=(5,)))
    assert [chunk.text for chunk in pace.due(10.001, set())] == ["now"]


def test_the_text_that_was_held_back_until_the_end_is_sent_without_ids():
    """An attempt that continued after it would hold it back, and send it again."""
    pace = TextPacing("f")
    pace.add(Text(ClaimRef("a", "t"), "", 1, tokens=(1,)))
    pace.add(Text(ClaimRef("a", "t"), "held", 2, tokens=(2,), is_last=True))
    assert [chunk.ids for chunk in pace.due(10.0, {ClaimRef("a", "t")})] == [NOTHING]


def test_an_engine_without_a_fingerprint_sends_no_ids():
    pace = TextPacing()
    pace.add(Text(ClaimRef("a", "t"), "x", 40, tokens=tuple(range(40))))
    assert [chunk.ids for chunk in pace.due(10.0, set())] == [NOTHING]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 0.07)), min_size=1, max_size=60))
def test_no_text_is_lost_repeated_or_reordered_at_any_timing(additions):
    pace, now_s = TextPacing(), 10.0
    expected: dict[str, str] = dict.fromkeys("abc", "")
    received = dict.fromkeys("abc", "")
    last_s: dict[str, float] = {}
    for number, (key, passed_s) in enumerate(additions):
        now_s += passed_s
        word = f"{number} "
        expected[key] += word
        pace.add(Text(key, word, number))
        for sent_key, text in send(pace, now_s).items():
            received[sent_key] += text
            # A send may be late, so two sends of a job may be less than an interval apart, but never at one time.
            assert now_s - last_s.get(sent_key, 0.0) > 0.0
            last_s[sent_key] = now_s
    for sent_key, text in send(pace, now_s + 1).items():
        received[sent_key] += text
    assert received == expected

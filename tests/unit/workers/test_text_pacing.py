"""Tests of when new text is sent: followed text on common ticks, other text about once a second."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.jobs.answer_ids import NOTHING, AnswerIds
from shared.jobs.job import ClaimRef
from workers.duties.text_pacing import UNFOLLOWED_S, Chunk, TextPacing
from workers.engine.events import Text

INTERVAL_S = 0.05
HELD = ClaimRef("id", "token")


def pacing(fingerprint: str = "", resume_tokens: int = 32) -> TextPacing:
    return TextPacing(fingerprint, resume_tokens, INTERVAL_S)


def send(pace: TextPacing, now_s: float, ending: str = "", leaving: str = "") -> dict[str, str]:
    """Send the text that is due at `now_s`. Return it for each job."""
    received = {chunk.claim: chunk.text for chunk in pace.due(now_s, set(ending), set(leaving))}
    pace.sent(now_s)
    return received


def due(pace: TextPacing, now_s: float) -> list[Chunk]:
    """Return the chunks that are due at `now_s`, which the store then gets."""
    chunks = pace.due(now_s, ())
    pace.sent(now_s)
    return chunks


def test_the_first_text_of_a_job_is_sent_at_once_and_later_text_waits_for_a_tick():
    pace = pacing()
    pace.add(Text("a", "one ", 1), 10.01)
    assert send(pace, 10.01) == {"a": "one "}
    pace.add(Text("a", "two ", 2), 10.02)
    assert send(pace, 10.02) == {}
    assert pace.has_unsent
    pace.add(Text("a", "three", 3), 10.03)
    assert send(pace, 10.06) == {"a": "two three"}
    assert not pace.has_unsent


def test_without_ticks_all_text_is_due_at_once():
    pace = TextPacing(interval_s=0.0)
    for count, text in enumerate(("one ", "two ", "three"), 1):
        pace.add(Text("a", text, count), 10.0)
        assert send(pace, 10.0) == {"a": text}


def test_jobs_that_started_at_different_times_share_a_tick():
    pace = pacing()
    for key, started_s in (("a", 10.01), ("b", 10.02), ("c", 10.04)):
        pace.add(Text(key, "x", 1), started_s)
        assert send(pace, started_s) == {key: "x"}
    for key in "abc":
        pace.add(Text(key, "y", 2), 10.045)
    assert send(pace, 10.051) == {"a": "y", "b": "y", "c": "y"}


def test_with_many_followed_jobs_ticks_are_twice_as_far_apart():
    pace = pacing()
    for number in range(65):
        pace.add(Text(str(number), "x", 1), 10.0)
    assert len(send(pace, 10.01)) == 65
    for number in range(65):
        pace.add(Text(str(number), "y", 2), 10.02)
    assert send(pace, 10.06) == {}
    assert pace.next_due_s(10.06, holds_jobs=True) == pytest.approx(10.1)
    assert len(send(pace, 10.101)) == 65


def test_the_last_text_of_an_ending_job_does_not_wait_for_a_tick():
    pace = pacing()
    pace.add(Text("a", "x", 1), 10.0)
    send(pace, 10.0)
    pace.add(Text("a", "rest", 2), 10.001)
    assert send(pace, 10.001, ending="a") == {"a": "rest"}


def test_text_whose_send_was_not_answered_is_sent_again_unchanged():
    pace = pacing()
    pace.add(Text("a", "x", 1), 10.0)
    first = pace.due(10.0, ())
    assert not pace.is_repeat
    pace.add(Text("a", "y", 2), 10.1)
    pace.add(Text("b", "z", 1), 10.1)
    assert pace.due(11.0, ()) == first
    assert pace.is_repeat
    pace.sent(11.0)
    # The first text of a job goes before the next texts of others.
    assert [send(pace, 11.2), send(pace, 11.2)] == [{"b": "z"}, {"a": "y"}]


def test_a_forgotten_job_sends_nothing_more_not_even_unanswered_text():
    pace = pacing()
    pace.add(Text("a", "x", 1), 10.0)
    pace.due(10.0, ())
    pace.forget("a")
    assert pace.due(10.0, ()) == []
    assert not pace.has_unsent
    assert pace.next_due_s(10.0, holds_jobs=False) is None


def test_while_a_job_produces_text_the_next_tick_is_at_most_one_interval_away():
    pace = pacing()
    assert pace.next_due_s(10.0, holds_jobs=False) is None
    pace.add(Text("a", "x", 1), 10.01)
    send(pace, 10.01)
    due_s = pace.next_due_s(10.01, holds_jobs=True)
    assert due_s is not None
    assert 10.01 < due_s <= 10.01 + INTERVAL_S


def test_ids_are_sent_with_their_text_and_the_seal_is_that_of_all_ids():
    pace = pacing("f")
    pace.add(Text(HELD, "one ", 1, tokens=(5,)), 10.01)
    (first,) = due(pace, 10.01)
    pace.add(Text(HELD, "two", 3, tokens=(6, 7)), 10.1)
    (second,) = due(pace, 10.12)
    ids = AnswerIds("token", "f")
    assert (first.ids, second.ids) == (ids.add([5], 1), ids.add([6, 7], 3))


def test_an_attempt_that_continues_seals_the_kept_ids_too():
    pace = pacing("f")
    pace.add(Text(HELD, "three", 3, tokens=(7,)), 10.0, kept=(5, 6))
    (chunk,) = due(pace, 10.0)
    assert chunk.ids == AnswerIds("token", "f", (5, 6)).add([7], 3)


def test_many_tokens_wait_neither_for_text_nor_for_a_tick():
    pace = pacing("f", resume_tokens=8)
    for count in range(1, 4):
        pace.add(Text(HELD, "", count, tokens=(count,)), 10.0)
    assert due(pace, 11.0) == []
    pace.add(Text(HELD, "", 4, tokens=(4,)), 10.0)
    assert [(chunk.text, len(chunk.ids.ids)) for chunk in due(pace, 10.0)] == [("", 16)]
    # The job's first text is still sent at once.
    pace.add(Text(HELD, "now", 5, tokens=(5,)), 10.001)
    assert [chunk.text for chunk in due(pace, 10.001)] == ["now"]


def test_the_text_that_was_held_back_until_the_end_is_sent_without_ids():
    """An attempt that continued after it would hold it back, and send it again."""
    pace = pacing("f")
    pace.add(Text(HELD, "", 1, tokens=(1,)), 10.0)
    pace.add(Text(HELD, "held", 2, tokens=(2,), is_last=True), 10.0)
    assert [chunk.ids for chunk in pace.due(10.0, {HELD})] == [NOTHING]


def test_an_engine_without_a_fingerprint_sends_no_ids():
    pace = pacing()
    pace.add(Text(HELD, "x", 40, tokens=tuple(range(40))), 10.0)
    assert [chunk.ids for chunk in due(pace, 10.0)] == [NOTHING]


def add_unfollowed(pace: TextPacing, job: str, count: int, now_s: float, *, begins_at_once: bool = False) -> None:
    """Add a text that is the job's name and its number of tokens."""
    event = Text(ClaimRef(job, "t"), f"{job}{count} ", count, tokens=(count,))
    pace.add(event, now_s, is_followed=False, begins_at_once=begins_at_once)


def test_text_that_nobody_follows_is_sent_once_a_second_for_all_jobs_together():
    """Each of two jobs has a new text every 0.1 s."""
    pace, sent = pacing("f"), []
    for number in range(50):
        now_s = 10 + number / 10
        for job in "ab":
            add_unfollowed(pace, job, number + 1, now_s)
        if chunks := due(pace, now_s):
            sent.append((number, [chunk.completion_tokens for chunk in chunks], pace.has_unfollowed))
    assert sent == [(number, [number + 1] * 2, True) for number in (5, 15, 25, 35, 45)]


def test_no_text_that_nobody_follows_is_older_than_a_second_when_it_is_sent():
    pace, now_s, added_s = pacing("f"), 10.0, []
    for count in range(1, 200):
        add_unfollowed(pace, "a", count, now_s)
        added_s.append(now_s)
        due_s = pace.next_due_s(now_s, holds_jobs=True)
        assert due_s is not None
        # Nothing wakes the delivery for such text: it comes by at the time that it has named, or with the next text.
        now_s = max(now_s + 0.013, min(due_s, now_s + 0.1))
        if due(pace, now_s):
            assert now_s - added_s[0] <= UNFOLLOWED_S + 0.1
            added_s.clear()


def test_a_job_that_ends_sends_no_text_that_nobody_follows_because_its_result_has_it():
    pace = pacing("f")
    add_unfollowed(pace, "a", 1, 10.0)
    held = ClaimRef("a", "t")
    assert pace.due(12.0, {held}) == []


def test_a_follower_gets_all_text_so_far_at_once_and_then_the_rest():
    pace = pacing("f")
    for count in (1, 2):
        add_unfollowed(pace, "a", count, 10.0)
    assert due(pace, 10.01) == []
    pace.follow(ClaimRef("a", "t"))
    assert [chunk.text for chunk in due(pace, 10.02)] == ["a1 a2 "]
    add_unfollowed(pace, "a", 3, 10.03)
    assert [chunk.text for chunk in due(pace, 10.06)] == ["a3 "]


def test_a_job_that_leaves_its_worker_sends_the_text_that_another_one_continues():
    pace = pacing("f")
    add_unfollowed(pace, "a", 1, 10.0)
    assert [chunk.text for chunk in pace.due(10.0, (), {ClaimRef("a", "t")})] == ["a1 "]


def test_a_worker_that_drains_sends_all_text_as_if_it_was_followed():
    pace = pacing("f")
    pace.sends_all = True
    add_unfollowed(pace, "a", 1, 10.0)
    assert [chunk.text for chunk in due(pace, 10.0)] == ["a1 "]


def test_the_first_text_of_a_job_with_a_start_deadline_is_sent_although_nobody_follows_it():
    pace = pacing("f")
    add_unfollowed(pace, "a", 1, 10.0, begins_at_once=True)
    assert [chunk.text for chunk in due(pace, 10.0)] == ["a1 "]
    add_unfollowed(pace, "a", 2, 10.1, begins_at_once=True)
    assert due(pace, 10.2) == []


def test_text_that_no_worker_can_continue_stays_until_somebody_follows_it():
    """Once a second the worker only asks the store whether somebody does."""
    pace = pacing()
    add_unfollowed(pace, "a", 1, 10.0)
    assert [chunk.text for chunk in due(pace, 11.0)] == [""]
    assert pace.has_unfollowed
    assert due(pace, 11.5) == []
    pace.follow(ClaimRef("a", "t"))
    assert [chunk.text for chunk in due(pace, 11.6)] == ["a1 "]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 0.07)), min_size=1, max_size=60), st.booleans())
def test_no_text_is_lost_repeated_or_reordered_at_any_timing(additions, is_followed):
    pace, now_s = pacing("f"), 10.0
    expected: dict[str, str] = dict.fromkeys("abc", "")
    received = dict.fromkeys("abc", "")
    for number, (job, passed_s) in enumerate(additions, 1):
        now_s += passed_s
        word = f"{number} "
        expected[job] += word
        pace.add(Text(ClaimRef(job, "t"), word, number, tokens=(1,)), now_s, is_followed=is_followed)
        if number == 30:
            pace.follow(ClaimRef("a", "t"))
        for chunk in due(pace, now_s):
            received[chunk.claim.id] += chunk.text
    for chunk in due(pace, now_s + 2):
        received[chunk.claim.id] += chunk.text
    assert received == expected


def test_a_long_interval_does_not_delay_text_that_nobody_follows():
    pacing = TextPacing("f", 32, 1.0)
    for number in range(70):
        pacing.add(Text(ClaimRef(f"j{number}", "t"), "x", 1), 10.0)
    send(pacing, 10.0)
    add_unfollowed(pacing, "b", 1, 10.05)
    send(pacing, 10.06)
    assert pacing.next_due_s(10.06, holds_jobs=True) <= 11.05

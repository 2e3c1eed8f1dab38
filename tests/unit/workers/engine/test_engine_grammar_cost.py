"""Tests of a grammar's cost while its answer is generated, and of a grammar that panics: both concern one job."""

import time
from dataclasses import replace

import pytest

from tests.support.driven import NEVER_S
from workers.engine.events import Ended, JobSpec, Text
from workers.engine.structured.compiler import Grammar
from workers.engine.structured.matcher import MaskShape
from workers.engine.structured.share import BURST_S, SHARE

one_backend = pytest.mark.parametrize("backend", [("split", 16384)], indirect=True, ids=["split"])
#: CPU time that a costly grammar takes for each token, in seconds.
TOKEN_S = 0.004


class AnyText:
    """Like llguidance.LLMatcher, for a grammar that allows every token."""

    def deep_copy(self):
        return self

    def is_stopped(self):
        return False

    def is_error(self):
        return False

    def validate_tokens(self, tokens):
        return len(tokens)

    def consume_token(self, token):
        return True


class Costly(AnyText):
    def consume_token(self, token):
        until_s = time.thread_time() + TOKEN_S
        while time.thread_time() < until_s:
            pass
        return True


class Panic(BaseException):
    """Like PanicException, the form in which Python code sees a panic of a library in Rust. It is no `Exception`."""


def panics(*_args):
    raise Panic("panicked at lib.rs")


def submit(driven, key, matcher, max_tokens=8, tenant="blue"):
    """Submit a job whose grammar is `matcher`."""
    prepared = driven.engine.prepare(JobSpec(key, tenant, {"prompt": "dibo", "temperature": 0}, max_tokens, NEVER_S))
    vocab = MaskShape(driven.engine.backend.n_vocab, driven.engine.backend.n_vocab, frozenset())
    driven.engine.submit(replace(prepared, grammar=Grammar(matcher, vocab, 5.0)))


@one_backend
def test_the_cpu_time_of_a_grammar_is_reported_while_the_answer_grows_and_at_its_end(driven):
    submit(driven, "costly", Costly())
    submit(driven, "cheap", AnyText())
    driven.submit("free", {"prompt": "dibo", "temperature": 0, "max_tokens": 8})
    driven.run_until_idle()
    assert len({(ended.text, ended.usage.completion_tokens) for ended in driven.ended.values()}) == 1
    texts = [event for event in driven.events if isinstance(event, Text) and event.key == "costly"]
    assert len(texts) > 1
    for event in texts:
        assert event.grammar_cpu_s == 0 or event.grammar_cpu_s >= TOKEN_S * event.completion_tokens
    cost = {key: ended.grammar_cpu_s for key, ended in driven.ended.items()}
    assert cost["costly"] >= TOKEN_S * 8
    assert cost["costly"] - cost["cheap"] > TOKEN_S * 4
    assert cost["free"] == 0


@one_backend
@pytest.mark.parametrize("name", ["deep_copy", "is_stopped", "validate_tokens", "consume_token"])
def test_a_panic_of_the_grammar_library_ends_its_job_only(driven, monkeypatch, name):
    broken = AnyText()
    monkeypatch.setattr(broken, name, panics, raising=True)
    submit(driven, "broken", broken)
    driven.submit("other", {"prompt": "dibo", "max_tokens": 20})
    driven.run_until_idle()
    assert driven.ended["other"].usage.completion_tokens == 20
    ended = driven.ended["broken"]
    assert (ended.outcome, ended.code) == ("failed", "engine_error")
    assert ended.message == "GrammarFault: llguidance failed: panicked at lib.rs"


@one_backend
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_request_to_end_the_process_is_not_taken_for_a_panic(driven, error):
    class Interrupted(AnyText):
        def consume_token(self, token):
            raise error

    submit(driven, "interrupted", Interrupted())
    with pytest.raises(error):
        driven.run_until_idle()


def costs_of(driven, prefix):
    """Return the CPU time of the grammars of the jobs whose keys begin so, as last reported before the job 'free'."""
    costs: dict[str, float] = {}
    for event in driven.events:
        if event.key == "free" and isinstance(event, Ended):
            break
        if event.key.startswith(prefix):
            costs[event.key] = event.grammar_cpu_s
    return sum(costs.values())


@one_backend
def test_costly_grammars_delay_another_tenants_answer_by_half_of_the_decoding_at_most(driven):
    for n in range(3):
        submit(driven, f"costly{n}", Costly(), max_tokens=60)
    driven.submit("free", {"prompt": "dibo", "temperature": 0, "max_tokens": 60}, tenant="red")
    driven.run_until_idle()
    # One step in which all three get a token may follow the moment at which the credit is used up.
    bound_s = SHARE * driven.engine.stats.decode_s + BURST_S + 3 * 2 * TOKEN_S
    assert costs_of(driven, "costly") <= bound_s
    assert {ended.usage.completion_tokens for ended in driven.ended.values()} == {60}


@one_backend
def test_costly_grammars_that_run_alone_wait_for_nobody(driven):
    for n in range(2):
        submit(driven, f"costly{n}", Costly(), max_tokens=20)
    driven.run_until_idle()
    assert driven.engine.stats.steps <= 20 + 2


@one_backend
def test_a_tenant_in_debt_gets_its_answers_without_a_grammar_as_before(driven):
    submit(driven, "costly", Costly(), max_tokens=40)
    driven.submit("free", {"prompt": "dibo", "temperature": 0, "max_tokens": 40})
    driven.run_until_idle()
    assert driven.engine.stats.steps > 40 + 2, "the tenant was never in debt"
    order = [event.key for event in driven.events if isinstance(event, Ended)]
    assert order == ["free", "costly"]


@one_backend
def test_a_cheap_grammar_is_not_delayed_by_another_tenants_costly_one(driven):
    submit(driven, "costly", Costly(), max_tokens=40)
    submit(driven, "cheap", AnyText(), max_tokens=40, tenant="red")
    driven.run_until_idle()
    order = [event.key for event in driven.events if isinstance(event, Ended)]
    assert order == ["cheap", "costly"]


@one_backend
def test_what_a_tenants_grammars_took_while_they_delayed_nobody_does_not_count_later(driven):
    submit(driven, "alone", Costly(), max_tokens=80)
    driven.run_until_idle()
    driven.submit("free", {"prompt": "dibo", "temperature": 0, "max_tokens": 400}, tenant="red")
    submit(driven, "cheap", AnyText(), max_tokens=8)
    driven.run_until_idle()
    order = [event.key for event in driven.events if isinstance(event, Ended)]
    assert order == ["alone", "cheap", "free"]


class Endless(AnyText):
    def consume_token(self, token):
        until_s = time.thread_time() + 0.2
        while time.thread_time() < until_s:
            pass
        return True


@one_backend
def test_the_time_of_a_grammar_that_ends_its_job_counts_too(driven):
    submit(driven, "slow", Endless())
    submit(driven, "cheap", AnyText(), max_tokens=40)
    driven.submit("free", {"prompt": "dibo", "temperature": 0, "max_tokens": 40}, tenant="red")
    driven.run_until_idle()
    assert driven.ended["slow"].message.startswith("GrammarSlow")
    order = [event.key for event in driven.events if isinstance(event, Ended)]
    assert order == ["slow", "free", "cheap"]


@one_backend
def test_a_tenant_in_debt_starts_no_further_answers_with_grammars_meanwhile(driven):
    submit(driven, "slow", Endless())
    driven.submit("free", {"prompt": "dibo", "temperature": 0, "max_tokens": 60}, tenant="red")
    while "slow" not in driven.ended:
        driven.engine.step()
    submit(driven, "next", AnyText(), max_tokens=1)
    driven.run_until_idle()
    order = [event.key for event in driven.events if isinstance(event, Ended)]
    assert order == ["slow", "free", "next"]

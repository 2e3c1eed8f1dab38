"""Tests of schemas that are made to hold a worker up: each is refused or bounded, and no other job notices."""

import json
import os
import signal
import sys
import threading
import time

import pytest

from shared.settings.settings import load
from tests.support.cpu_time import cpu_time_below
from tests.support.schemas import BOMBS, TOOL_BOMBS, an_object, bounded_integers, long_names
from workers.engine import helper
from workers.engine.events import JobRejected, JobSpec
from workers.engine.llama.backend import load_backend
from workers.engine.structured import probe
from workers.engine.structured.compiler import Grammar, GrammarCompiler, SchemaLimits, TokenTable
from workers.engine.structured.constraint import Constraint
from workers.engine.structured.matcher import GrammarSlow, GrammarStuck, MaskShape, Matcher
from workers.engine.structured.probe import Probes

pytestmark = pytest.mark.thorough

one_backend = pytest.mark.parametrize("backend", [("split", 16384)], indirect=True, ids=["split"])

BYTES = TokenTable([*(bytes([byte]) for byte in range(256)), b""], frozenset({256}), frozenset({256}))
LIMITS = SchemaLimits(max_bytes=65_536, compile_ms=500, step_ms=5.0)
#: The time that this process may spend on one hostile schema: it compiles the schema a second time, and samples.
CPU_S = 2.0


@pytest.fixture(scope="module")
def compiler():
    compiler = GrammarCompiler(BYTES, LIMITS)
    yield compiler
    compiler.close()


def a_format(schema):
    return {"type": "json_schema", "schema": schema}


def _rejection(driven, payload):
    try:
        driven.submit("hostile", payload)
    except JobRejected as rejected:
        return rejected
    return None


@one_backend
@pytest.mark.parametrize("name", BOMBS)
def test_a_hostile_schema_is_refused_or_its_job_ends_and_another_job_does_not_notice(driven, name):
    driven.submit("other", {"prompt": "dibo", "max_tokens": 30, "temperature": 0})
    payload = {"prompt": "x", "max_tokens": 40, "temperature": 3.0, "seed": 1, "response_format": a_format(BOMBS[name])}
    with cpu_time_below(CPU_S):
        rejected = _rejection(driven, payload)
        driven.run_until_idle()
    assert driven.ended["other"].usage.completion_tokens == 30
    if rejected is not None:
        assert (rejected.code, rejected.param) == ("unsupported_parameter", "response_format")
        assert rejected.helper_cpu_s <= 1.0
    else:
        ended = driven.ended["hostile"]
        assert ended.outcome == "succeeded" or ended.message.startswith("GrammarSlow: ")


@one_backend
@pytest.mark.parametrize("name", TOOL_BOMBS)
def test_a_hostile_list_of_tools_is_refused_or_its_job_ends_and_another_job_gets_a_token_in_each_step(driven, name):
    driven.submit("other", {"prompt": "dibo", "max_tokens": 30, "temperature": 0}, tenant="red")
    payload = {
        "messages": [{"role": "user", "content": "x"}],
        "tools": TOOL_BOMBS[name],
        "tool_choice": "required",
        "max_tokens": 40,
        "temperature": 3.0,
        "seed": 1,
    }
    with cpu_time_below(CPU_S):
        rejected = _rejection(driven, payload)
        while "other" not in driven.ended:
            driven.engine.step()
    # One step for each token, and one or two for the prompts.
    assert driven.engine.stats.steps <= 30 + 2
    driven.run_until_idle()
    if rejected is not None:
        assert (rejected.code, rejected.param) in {
            ("unsupported_parameter", "tools"),
            ("unsupported_parameter", "tools[0].function.parameters"),
            ("context_length_exceeded", "messages"),
        }
        assert rejected.helper_cpu_s <= 1.0
    else:
        ended = driven.ended["hostile"]
        assert ended.outcome == "succeeded" or ended.message.startswith("GrammarSlow: ")


@one_backend
@pytest.mark.parametrize("schema", [bounded_integers(400), long_names(10, 2_000)], ids=["integers", "names"])
def test_a_large_schema_is_accepted(backend, schema):
    spec = JobSpec("a", "blue", {"prompt": "x", "response_format": a_format(schema)}, 1, 1e9)
    assert backend.prepare(spec).grammar is not None


def test_a_compilation_that_takes_too_long_is_ended_and_the_next_one_succeeds(compiler):
    with pytest.raises(JobRejected, match="takes more than 500 ms to compile") as caught:
        compiler.compile(Constraint("json", json.dumps(BOMBS["multiples"])), "blue")
    assert 0.5 <= caught.value.helper_cpu_s < 1.5
    assert compiler.compile(Constraint("json", '{"type":"null"}'), "blue").helper_cpu_s < 0.5


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux limits the address space")
def test_a_grammar_that_needs_too_much_memory_is_refused_for_that_and_the_next_one_succeeds():
    probes = Probes(30_000, {}, max_bytes=120 << 20)
    try:
        large = '{"grammars":[{"lark_grammar":"start: /(a{1000}){300}/"}]}'
        assert probes.check(large).error == "it takes more than 120 MiB of memory to compile"
        assert probes.check('{"grammars":[{"json_schema":{}}]}').error == ""
    finally:
        probes.close()


def test_a_helper_process_that_died_while_it_was_idle_is_replaced():
    probes = Probes(500, {})
    try:
        assert probes.check('{"grammars":[{"json_schema":{}}]}').error == ""
        process = probes._helpers._idle[0]._process
        os.kill(process.pid, 9)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert probes.check('{"grammars":[{"json_schema":{}}]}').error == ""
    finally:
        probes.close()


def test_a_helper_process_that_cannot_start_is_a_fault_of_the_worker_and_not_of_the_request(monkeypatch, tmp_path):
    monkeypatch.setattr(probe, "_MAIN", tmp_path / "missing.py")
    with pytest.raises(RuntimeError, match="did not start"):
        Probes(500, {}).check('{"grammars":[{"json_schema":{}}]}')


def test_helper_processes_get_no_secret_and_end_with_their_compiler(monkeypatch):
    monkeypatch.setenv("PENSTOCK_REDIS_PASSWORD", "secret")
    probes = Probes(500, {})
    probes.check('{"grammars":[{"json_schema":{}}]}')
    process = probes._helpers._idle[0]._process
    if os.path.exists(f"/proc/{process.pid}/environ"):  # noqa: PTH110 - not every system has it
        with open(f"/proc/{process.pid}/environ", "rb") as environment:  # noqa: PTH123 - the same
            assert b"secret" not in environment.read()
    probes.close()
    assert process.returncode is not None


def test_a_stopped_helper_process_does_not_hold_up_a_grammar_that_is_longer_than_a_pipe(monkeypatch):
    probes = Probes(500, {})
    grammar = json.dumps({"grammars": [{"json_schema": {"description": "x" * 200_000}}]})
    assert probes.check(grammar).error == ""
    process = probes._helpers._idle[0]._process
    os.kill(process.pid, signal.SIGSTOP)
    monkeypatch.setattr(helper, "ANSWER_S", 0.2)
    assert probes.check(grammar).error == "it was not compiled within 0.2 s"
    assert process.poll() is not None
    probes.close()


def test_threads_that_compile_at_once_do_not_wait_for_each_other(compiler, monkeypatch):
    begun, may_end = threading.Event(), threading.Event()
    ask = helper._Helper.ask

    def held(self, line):
        if b"held" in line:
            begun.set()
            assert may_end.wait(30)
        return ask(self, line)

    monkeypatch.setattr(helper._Helper, "ask", held)
    slow = threading.Thread(target=compiler.compile, args=(Constraint("regex", "held"), "red"))
    slow.start()
    assert begun.wait(30)
    compiler.compile(Constraint("regex", "[a-z]{3}"), "blue")
    assert slow.is_alive()
    may_end.set()
    slow.join()


def test_a_grammar_is_kept_for_its_tenant_only_and_the_oldest_go_first(compiler, monkeypatch):
    checked = []
    check = compiler._probes.check
    monkeypatch.setattr(compiler._probes, "check", lambda grammar: checked.append(grammar) or check(grammar))

    def compiled(i, tenant):
        before = len(checked)
        compiler.compile(Constraint("regex", f"kept{i}"), tenant)
        return len(checked) > before

    assert compiled(0, "blue")
    assert not compiled(0, "blue")
    assert compiled(0, "red"), "whether another tenant uses a grammar is not to be seen"
    assert [compiled(i, "blue") for i in range(1, 17)] == [True] * 16
    assert compiled(0, "blue"), "a tenant keeps 16 grammars"
    assert not compiled(0, "red"), "one tenant's grammars do not displace another's"


def test_a_grammar_that_the_vocabulary_cannot_write_is_refused_or_stuck():
    letters = TokenTable([b"a", b"b", b""], frozenset({2}), frozenset({2}))
    compiler = GrammarCompiler(letters, LIMITS)
    with pytest.raises(JobRejected, match="the grammar allows no token of the vocabulary"):
        compiler.compile(Constraint("regex", "c"), "blue")
    matcher = compiler.compile(Constraint("regex", "(a|b)c"), "blue").start()
    matcher.accept(0)
    with pytest.raises(GrammarStuck):
        matcher.allowed()
    compiler.close()


def test_a_vocabulary_without_an_end_token_or_usual_bytes_can_be_used():
    odd = TokenTable([b"", b"ab", b"\xc3", b"\xa9", b"a", b"\xff", b"b"], frozenset(), frozenset({0}))
    compiler = GrammarCompiler(odd, LIMITS)
    matcher = compiler.compile(Constraint("regex", "(ab)+é"), "blue").start()
    text = b""
    while not matcher.ended:
        # é if it is allowed, in its two bytes.
        token = max(map(int, matcher.allowed()), key=lambda token: token in {2, 3})
        matcher.accept(token)
        text += odd.pieces[token]
        assert len(text) < 100
    assert text.decode().endswith("é")
    compiler.close()


class _Slow:
    """A grammar whose every answer takes 30 ms of CPU time."""

    def deep_copy(self):
        return self

    def consume_token(self, token):
        until = time.thread_time() + 0.03
        while time.thread_time() < until:
            pass
        return True

    def validate_tokens(self, tokens):
        return len(tokens)

    def is_error(self):
        return False


def test_a_grammar_that_takes_too_long_for_its_tokens_ends_its_job():
    matcher = Matcher(_Slow(), MaskShape(3, 3, frozenset()), step_ms=5.0)
    matcher.accept(1)
    with pytest.raises(GrammarSlow, match="more than 5 ms of CPU time for each token"):
        matcher.accept(1)


def test_the_limits_are_those_of_the_settings(model_path):
    settings = load({}, None, device="cpu", threads=1, max_schema_bytes=300, kv_cells=512)
    backend = load_backend(settings, model_path)
    try:
        wide = an_object(**{f"p{i}": {"type": "null"} for i in range(20)})
        with pytest.raises(JobRejected, match="PENSTOCK_MAX_SCHEMA_BYTES is 300"):
            backend.prepare(JobSpec("a", "blue", {"prompt": "x", "response_format": a_format(wide)}, 1, 1e9))
        small = backend.prepare(JobSpec("a", "blue", {"prompt": "x", "response_format": a_format({})}, 1, 1e9))
        assert isinstance(small.grammar, Grammar)
    finally:
        backend.close()

"""Tests of chat templates that take too much time or memory: their jobs are rejected, and the next one is answered."""

import contextlib
import gc
import os

import pytest

from shared.errors import ModelError
from shared.settings.settings import load
from tests.support.cpu_time import cpu_time_below
from tests.support.driven import Driven
from tests.support.gguf_copy import copy_gguf
from tests.support.tool_templates import a_tool
from workers.demo.vocabulary import TOOL_CHAT_TEMPLATE
from workers.engine import helper
from workers.engine.chat.chat_template import ChatTemplate
from workers.engine.chat.template_main import compiled
from workers.engine.events import JobRejected
from workers.engine.helper import HelperMissing
from workers.engine.llama.backend import load_backend

TOO_SLOW, TOO_LARGE, TOO_LONG = (
    "takes more than 200 ms of CPU time",
    "needs more than 512 MiB",
    "makes more than .* char",
)
#: Templates that try to hold a worker up, and the reasons of their rejections.
HOSTILE = {
    "a huge range": ("{% for i in range(10 ** 9) %}{% endfor %}", "fails on it: OverflowError"),
    "nested loops": ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", TOO_SLOW),
    "a loop in a macro": (
        "{% macro f(n) %}{% for i in range(9) if n %}{{ f(n - 1) }}{% endfor %}{% endmacro %}{{ f(99) }}",
        TOO_SLOW,
    ),
    "an endless macro": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "fails on it: RecursionError"),
    "a large power": ("{{ (8 + messages | length) ** 999999999 }}", TOO_SLOW),
    "a text that doubles": (
        "{% set n = namespace(t='a') %}{% for i in range(60) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
        f"{TOO_SLOW}|{TOO_LARGE}",
    ),
    "a long text": ("{{ messages[0].role * 1500000000 }}", TOO_LARGE),
    "a long list": ("{{ (messages * 1500000000) | length }}", TOO_LARGE),
    "a wide column": ("{{ '%1500000000d' % messages | length }}", TOO_LARGE),
    "a large prompt": ("{% for i in range(99999) %}{{ messages[0].role * 1000 }}{% endfor %}", TOO_LONG),
    "a long error": ("{{ raise_exception(messages[0].role * 9999999) }}", "does not accept it: useruser"),
}
#: Templates that try to hold a worker up while they are compiled, or for all messages.
HOSTILE_ALWAYS = {
    "a constant text": "{{ 'a' * 1500000000 }}",
    "a shorter constant text": "{{ 'a' * 150000000 }}",
    "a constant number": "{{ 9 ** 999999999 }}",
    "a constant list": "{{ [1] * 1500000000 }}",
    "loops": HOSTILE["nested loops"][0],
    "a large prompt": HOSTILE["a large prompt"][0],
}
MESSAGES = [{"role": "user", "content": "hello"}]


def guarded(source):
    """Return a template that does this only if the first message asks for it."""
    return "{% if 'hostile' in messages[0].content %}" + source + "{% endif %}<{{ messages[0].content }}>"


@contextlib.contextmanager
def rendering(source, **options):
    template = ChatTemplate(source, bos="<s>", eos="</s>", **options)
    with contextlib.closing(template):
        yield template


def processes(template):
    return [each._process for each in template._renderer._helpers._idle]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_template_that_holds_up_its_process_rejects_the_job_and_renders_the_next_one(name):
    source, why = HOSTILE[name]
    with rendering(guarded(source), cpu_ms=200) as template:
        with cpu_time_below(0.5), pytest.raises(JobRejected, match=why) as rejected:
            template.render([{"role": "user", "content": "hostile"}, *MESSAGES])
        assert (rejected.value.code, rejected.value.param) == ("invalid_value", "messages")
        assert len(rejected.value.message) <= 500
        assert rejected.value.helper_cpu_s < 1.0
        assert template.render(MESSAGES) == "<hello>"


@pytest.mark.parametrize("name", HOSTILE_ALWAYS)
def test_a_template_that_cannot_be_tried_within_the_limits_is_rejected(name):
    with cpu_time_below(0.5), pytest.raises(ModelError, match=r"chat template (takes|needs|makes|ends) "):
        ChatTemplate(HOSTILE_ALWAYS[name], bos="", eos="", cpu_ms=200)


def test_all_attempts_to_render_a_conversation_share_its_time():
    slow = "{% for i in range(500) %}{% for j in range(9000) %}{% endfor %}{% endfor %}{{ raise_exception('no') }}"
    with rendering(guarded(slow), cpu_ms=600) as template:
        with pytest.raises(JobRejected, match="does not accept it: no") as rejected:
            template.render([{"role": "user", "content": "hostile"}] * 4096)
        assert rejected.value.helper_cpu_s < 1.0


def test_a_job_whose_template_loops_is_rejected_and_the_model_answers_the_next_one(tmp_path, model_path):
    path = tmp_path / "loops.gguf"
    copy_gguf(model_path, path, template=guarded(HOSTILE["nested loops"][0]))
    backend = load_backend(load({}, None, device="cpu", max_batch_size=1, kv_cells=256, threads=1), path)
    with contextlib.closing(backend):
        driven = Driven(backend)
        with pytest.raises(JobRejected, match="PENSTOCK_TEMPLATE_CPU_MS") as rejected:
            driven.submit("a", {"messages": [{"role": "user", "content": "hostile"}], "max_tokens": 4})
        assert rejected.value.helper_cpu_s >= 1.0
        driven.submit("b", {"messages": MESSAGES, "max_tokens": 4})
        driven.run_until_idle()
        assert driven.ended["b"].outcome == "succeeded"


def test_a_model_whose_template_always_loops_answers_prompts(tmp_path, model_path):
    path = tmp_path / "loops.gguf"
    copy_gguf(model_path, path, template=HOSTILE["nested loops"][0])
    settings = load({}, None, device="cpu", max_batch_size=1, kv_cells=256, threads=1, template_cpu_ms=100)
    with contextlib.closing(load_backend(settings, path)) as backend:
        driven = Driven(backend)
        with pytest.raises(JobRejected, match=r"takes more than 100 ms of CPU time .*: send a prompt"):
            driven.submit("a", {"messages": MESSAGES, "max_tokens": 4})
        driven.submit("b", {"prompt": "hello", "max_tokens": 4})
        driven.run_until_idle()
        assert driven.ended["b"].outcome == "succeeded"


@pytest.mark.parametrize(
    ("messages", "tools"),
    [
        (MESSAGES, []),
        ([{"role": "system", "content": "be <kind>\n\"'"}, *MESSAGES], []),
        (MESSAGES, [a_tool("get_weather", city={"type": "string", "description": "é\u2028\x00🙂"})]),
        ([{"role": "user", "content": "é\n\x00\u2028🙂" * 200_000}], []),
        ([{"role": "user", "content": "\ud83d"}, {"role": "assistant", "content": "\ude00\ud83d\ude00"}], []),
        ([{"role": "user", "content": f"{i}" * 50} for i in range(10_000)], []),
    ],
    ids=["plain", "system", "tool", "a long message", "halves of surrogate pairs", "many messages"],
)
def test_prompts_are_those_that_the_template_gives_in_this_process(messages, tools):
    variables = {"messages": messages, "tools": tools or None, "documents": None, "add_generation_prompt": True}
    expected = compiled(TOOL_CHAT_TEMPLATE, bos="<s>", eos="</s>").render(variables)
    with rendering(TOOL_CHAT_TEMPLATE, cpu_ms=10_000) as template:
        assert "".join(template.pieces(messages, None, tools)) == expected


def test_a_process_that_was_killed_is_replaced_and_the_job_is_rendered(monkeypatch):
    with rendering("{{ messages[0].content }}") as template:
        os.kill(processes(template)[0].pid, 9)
        assert template.render(MESSAGES) == "hello"
        ask, killed = helper._Helper.ask, []

        def kill_first(self, line):
            if not killed:
                killed.append(self._process)
                self._process.kill()
            return ask(self, line)

        monkeypatch.setattr(helper._Helper, "ask", kill_first)
        assert template.render(MESSAGES) == "hello"
        assert killed[0].returncode == -9


def test_a_template_that_ends_its_process_again_is_rejected(monkeypatch):
    with rendering("{{ messages[0].content }}") as template:
        ask = helper._Helper.ask
        monkeypatch.setattr(helper._Helper, "ask", lambda self, line: self._process.kill() or ask(self, line))
        with pytest.raises(JobRejected, match="ends the process that renders it, with -9"):
            template.render(MESSAGES)
        monkeypatch.undo()
        assert template.render(MESSAGES) == "hello"


def test_a_process_that_cannot_start_is_a_fault_of_the_worker_and_not_of_the_job(monkeypatch):
    with rendering("{{ messages[0].content }}") as template:
        processes(template)[0].kill()
        monkeypatch.setattr(helper.sys, "executable", "/bin/false")
        with pytest.raises(HelperMissing):
            template.render(MESSAGES)


def test_no_process_is_left_behind_when_a_template_is_closed_or_forgotten():
    with rendering("{{ messages[0].content }}") as template:
        closed = processes(template)
    forgotten = ChatTemplate("{{ messages[0].content }}", bos="", eos="")
    left = processes(forgotten)
    del forgotten
    gc.collect()
    assert len(closed) == len(left) == 1
    assert all(each.returncode is not None for each in (*closed, *left))


def test_dates_are_those_of_the_workers_time_zone(monkeypatch):
    monkeypatch.setenv("TZ", "ABC-3")
    with rendering("{{ strftime_now('%Z%z') }}") as template:
        assert template.render(MESSAGES) == "ABC+0300"

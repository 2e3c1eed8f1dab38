"""Tests of chat templates, which are untrusted code: they run in a sandbox, and their faults reject one job only."""

import pytest

from shared.errors import ModelError
from workers.engine.chat.chat_template import ChatTemplate
from workers.engine.events import JobRejected

MESSAGES = [{"role": "user", "content": "hi"}]


def _template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos="<s>", eos="</s>")


def test_messages_are_rendered_with_the_models_tokens_and_the_generation_prompt():
    source = (
        "{{ bos_token }}{% for m in messages %}\n"
        "  [{{ m.role }}] {{ m['content'] }}{{ eos_token }}\n"
        "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    assert _template(source).render(MESSAGES) == "<s>  [user] hi</s>\n[assistant]"


def test_text_parts_are_joined_and_a_missing_content_is_empty():
    template = _template("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert template.render([{"role": "user", "content": parts}, {"role": "assistant", "content": None}]) == "<ab><>"


def test_a_null_field_is_left_out_of_the_message():
    template = _template("{% for m in messages %}{{ 'name' in m }}{% endfor %}")
    assert template.render([{"role": "user", "content": "a", "name": None}]) == "False"


def test_the_extensions_that_published_templates_use_are_supported():
    template = _template(
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m | tojson }}{% endgeneration %}{{ strftime_now('%Y') | length }}{% endfor %}"
    )
    assert template.render([{"role": "user", "content": "<é>"}] * 2) == '{"role": "user", "content": "<é>"}4'


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% set x = messages[0].update({'role': 'system'}) %}",
        "{% for i in range(999999999) %}{% endfor %}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content.nothing.at_all }}",
    ],
)
def test_a_template_that_tries_to_leave_the_sandbox_or_fails_rejects_the_job(source):
    with pytest.raises(JobRejected) as rejected:
        _template(source).render(MESSAGES)
    assert (rejected.value.code, rejected.value.param) == ("invalid_value", "messages")


def test_messages_that_the_template_refuses_are_rejected_with_the_templates_own_message():
    with pytest.raises(JobRejected, match="roles must alternate"):
        _template("{{ raise_exception('roles must alternate') }}").render(MESSAGES)


def test_a_template_that_cannot_be_compiled_raises_a_model_error():
    with pytest.raises(ModelError, match="chat template cannot be compiled"):
        _template("{% for %}")

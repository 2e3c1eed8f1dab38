"""Chat templates that call tools in each form, and the names of the control tokens that models of each family have."""

import re
from typing import Any

from workers.engine.chat.harmony import MARKS
from workers.engine.chat.tool_formats import HARMONY, ID, Parameters, ToolFormat

#: The texts of each form that are control tokens in the vocabularies of its family.
CONTROL: dict[str, tuple[str, ...]] = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "mistral": ("[TOOL_CALLS]",),
    "mistral-args": ("[TOOL_CALLS]", "[ARGS]"),
    "deepseek": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
}
CONTROL["deepseek-plain"] = CONTROL["deepseek"]
CONTROL["mistral-id"] = (*CONTROL["mistral-args"], "[CALL_ID]")
CONTROL["glm"] = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
CONTROL["harmony"] = MARKS

#: The relevant features of gpt-oss's own template: it has its own system message, shows one call of a message, and
#: takes the result for that of the last call. The text and thoughts of a message with calls are shown as reasoning,
#: until an answer without calls follows.
HARMONY_TEMPLATE = """\
<|start|>system<|message|>Reasoning: {{ reasoning_effort or 'medium' }}

# Valid channels: analysis, commentary, final.<|end|>
{%- set last = namespace(name=none) %}
{%- if tools or messages[0].role == 'system' %}
<|start|>developer<|message|>
{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{%- for tool in tools or [] %}
{{ "// " + tool.function.description }}
type {{ tool.function.name }} = (_: {{ (tool.function.parameters or {}) | tojson }}) => any;
{%- endfor %}<|end|>
{%- endif %}
{%- set shown = messages | rejectattr('role', 'equalto', 'system') | list %}
{%- for message in shown %}
{%- if message.role == 'tool' %}
{%- if last.name is none %}{{ raise_exception('no call before the result') }}{% endif -%}
<|start|>functions.{{ last.name }} to=assistant<|channel|>commentary<|message|>{{ message.content | tojson }}<|end|>
{%- elif message.tool_calls %}
{%- if message.content and message.thinking %}{{ raise_exception('content and thinking') }}{% endif %}
{%- set later = namespace(answer=false) %}
{%- for other in shown[loop.index:] if other.role == 'assistant' and 'tool_calls' not in other %}
{%- set later.answer = true %}
{%- endfor %}
{%- if (message.content or message.thinking) and not later.answer -%}
<|start|>assistant<|channel|>analysis<|message|>{{ message.content or message.thinking }}<|end|>
{%- endif %}
{%- set call, json = message.tool_calls[0].function, message.tool_calls[0].function.arguments | tojson -%}
<|start|>assistant to=functions.{{ call.name }}<|channel|>commentary json<|message|>{{ json }}<|call|>
{%- set last.name = call.name %}
{%- elif message.role == 'assistant' -%}
<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>
{%- set last.name = none %}
{%- else -%}
<|start|>user<|message|>{{ message.content }}<|end|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}
{%- if begun %}<|channel|>{{ begun }}<|message|>{% endif %}"""


#: A template that shows tools as JSON. Names in capitals stand for texts of a form.
_TEMPLATE = """\
{{- bos_token }}
{%- if tools %}<|system|>{{ tools | tojson }}{{ eos_token }}{% endif %}
{%- for message in messages -%}
<|{{ 'user' if message.role == 'tool' else message.role }}|>{{ message.content }}
{%- if message.tool_calls %}
{%- if message.tool_calls | length > 1 and not AGAIN %}{{ raise_exception('one call each') }}{% endif %}
{{- BEGIN }}
{%- for call in message.tool_calls %}
{{- (BEFORE if loop.first else AGAIN) + call.function.name + BETWEEN }}
{%- if BY_ONE %}
{%- for key, value in call.function.arguments.items() %}
{{- BEFORE_KEY + key + AFTER_KEY }}{{ value if value is string else value | tojson }}{{ AFTER_VALUE }}
{%- endfor %}
{%- else %}{{ call.function.arguments | tojson }}{% endif %}
{{- AFTER }}
{%- endfor %}{{ END }}
{%- endif %}{{ eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""


def template_of(form: ToolFormat) -> str:
    """Return a template that shows tools as JSON, and the calls of earlier messages in this form."""
    if form is HARMONY:
        return HARMONY_TEMPLATE
    each = form.parameters or Parameters("", "", "")
    texts = {
        "BEFORE_KEY": each.before,
        "AFTER_KEY": each.between,
        "AFTER_VALUE": each.after,
        "BEGIN": form.begin,
        "BEFORE": form.before,
        "BETWEEN": form.between,
        "BY_ONE": "yes" if form.parameters else "",
        "AGAIN": form.again,
        "AFTER": form.after,
        "END": form.end,
    }
    # Ids of calls have nine letters and digits in this template.
    literals = {name: repr(text.replace(ID, "a1b2c3d4e")) for name, text in texts.items()}
    return re.sub("[A-Z_]{3,}", lambda found: literals[found[0]], _TEMPLATE)


def a_tool(name: str, **properties: Any) -> dict[str, Any]:
    """Return a tool whose parameters have these properties, all required."""
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": f"It is {name}.", "parameters": schema}}

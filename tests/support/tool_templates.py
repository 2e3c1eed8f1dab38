"""Chat templates that call tools in each form, and the names of the control tokens that models of each family have."""

from typing import Any

from workers.engine.chat import tool_formats
from workers.engine.chat.tool_formats import ToolFormat

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
IN_TEMPLATE = [form for form in tool_formats.ALL if form.in_template]


def template_of(form: ToolFormat) -> str:
    """Return a template that shows tools as JSON, and the calls of earlier messages in this form."""
    arguments = "call.function.arguments" + ("" if form.text_arguments else " | tojson")
    before, again = _literal(form.before), _literal(form.again or form.before)
    return (
        "{# ipython #}{{ bos_token }}"
        "{% if tools %}<|system|>{{ tools | tojson }}{{ eos_token }}{% endif %}"
        "{% for message in messages %}"
        "<|{{ 'user' if message.role == 'tool' else message.role }}|>{{ message.content }}"
        "{% if message.tool_calls %}{{ " + _literal(form.begin) + " }}{% for call in message.tool_calls %}"
        "{{ (" + before + " if loop.first else " + again + ") + call.function.name + " + _literal(form.between) + " }}"
        "{{ " + arguments + " }}{{ " + _literal(form.after) + " }}"
        "{% endfor %}{{ " + _literal(form.end) + " }}{% endif %}{{ eos_token }}"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )


def _literal(text: str) -> str:
    return "'" + text.replace("\n", "\\n") + "'"


def a_tool(name: str, **properties: Any) -> dict[str, Any]:
    """Return a tool whose parameters have these properties, all of which are required."""
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": f"It is {name}.", "parameters": schema}}

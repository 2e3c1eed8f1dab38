"""Convert a JSON schema to a grammar with the converter of llama-cpp-python, and correct that converter's errors.

The errors were found in llama-cpp-python 0.3.36 (llama_grammar.py):

- The converter does not escape backslashes in the values of `enum` and `const` and in the names of properties.
- If the schema has a $ref at its top level, the converter does not find the definitions next to that $ref.
- The converter confuses definitions whose paths have the same end, and a definition with a property of the same name.
- The grammar allows raw control characters in strings, which JSON does not allow.
- The converter copies patterns character by character. So `.` matches a closing quote, and `a|b` ends the string early.
"""

import json
import re
from typing import Any

from workers.engine.structured.automaton import AutomatonBuilder
from workers.engine.structured.pattern import rules_of
from workers.engine.structured.schema_whole import resolve_references

#: Steps that the AutomatonBuilder may take for all patterns of one schema together. They take about half a second.
_PATTERN_STEPS = 50_000

#: The grammar rule for one character of a JSON string.
_CHAR = r'[^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F])'


def to_grammar(library: Any, schema: str) -> str:
    """Return the grammar for a schema, which is JSON text. `library` is llama-cpp-python's module `llama_grammar`.

    Raises ValueError for an unsupported pattern. Exceptions of the library's converter are passed on to the caller.
    """
    converter = library.SchemaConverter(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
    overrides = _Overrides(converter, schema)
    # The converter has no public way to replace its methods and rules.
    converter._format_literal = overrides.format_literal  # noqa: SLF001 - see above
    converter._resolve_ref = overrides.resolve_ref  # noqa: SLF001
    converter._visit_pattern = overrides.visit_pattern  # noqa: SLF001
    parsed = json.loads(schema)
    converter._refs = resolve_references(parsed)  # noqa: SLF001
    converter.visit(parsed, "")
    if converter._rules.get("char") == library.PRIMITIVE_RULES["char"].content:  # noqa: SLF001
        converter._rules["char"] = _CHAR  # noqa: SLF001
    grammar: str = converter.format_grammar()
    return grammar


class _Overrides:
    """Methods that replace private methods of the library's converter."""

    def __init__(self, converter: Any, schema: str) -> None:
        self._converter = converter
        #: Prefix for the names of added rules. The schema does not contain it, so these names cannot collide.
        self._prefix = "own"
        while self._prefix in schema:
            self._prefix += "n"
        #: $ref → name of the rule for its target.
        self._ref_rules: dict[str, str] = {}
        #: Pattern → the prefix that the names of its rules have in common.
        self._pattern_rules: dict[str, str] = {}
        self._builder = AutomatonBuilder(_PATTERN_STEPS)

    def format_literal(self, text: str) -> str:
        """Return a grammar literal that matches the JSON text `text`.

        Non-ASCII characters are not written as hexadecimal escapes, because a model seldom generates such escapes.
        """
        plain = json.dumps(json.loads(text), ensure_ascii=False)
        return '"' + re.sub(r'[\\"]', r"\\\g<0>", plain) + '"'

    def resolve_ref(self, ref: str) -> str:
        """Return the name of the rule for a $ref's target.

        A name is stored before the target is visited, because the target may contain the same $ref.
        """
        name = self._ref_rules.get(ref)
        if name is None:
            name = self._ref_rules[ref] = f"{self._prefix}-{len(self._ref_rules)}"
            name = self._ref_rules[ref] = self._converter.visit(self._converter._refs[ref], name)  # noqa: SLF001
        return name

    def visit_pattern(self, pattern: str, name: str) -> str:
        """Add a rule for JSON strings that match the pattern, and return the rule's name."""
        start = self._pattern_rules.get(pattern)
        if start is None:
            start = self._pattern_rules[pattern] = f"{self._prefix}-pattern-{len(self._pattern_rules)}-"
            for i, rule in enumerate(rules_of(pattern, lambda state: f"{start}{state}", self._builder)):
                self._converter._rules[f"{start}{i}"] = rule  # noqa: SLF001
        added: str = self._converter._add_rule(name, f'"\\"" {start}0')  # noqa: SLF001
        return added

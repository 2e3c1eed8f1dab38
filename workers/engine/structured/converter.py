"""The library's converter from JSON schemas to grammars, with what it gets wrong put right.

Seen in llama-cpp-python 0.3.36 (llama_grammar.py): it spells what stands in `enum`, `const` and names without regard to
backslashes; finds no definitions beside a $ref at the top; takes two definitions whose paths end alike for one, and a
definition called like a property for that; lets strings hold raw control characters, which JSON does not; and copies
patterns character by character, so that `.` allows a closing quote and `a|b` ends the string half way.
"""

import json
import re
from typing import Any

from workers.engine.structured.automaton import Search
from workers.engine.structured.pattern import rules_of
from workers.engine.structured.schema_whole import references_of

#: Steps that the patterns of one schema may take together: about half a second.
_PATTERN_STEPS = 50_000

#: A character of a JSON string.
_CHAR = r'[^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F])'


def to_grammar(library: Any, schema: str) -> str:
    """The grammar of a schema (JSON text). `library`: the module of the converter.

    Raises whatever the converter does not like, ValueError for a pattern.
    """
    made = library.SchemaConverter(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
    mended = _Mended(made, schema)
    made._format_literal, made._resolve_ref = mended.literal, mended.referred  # noqa: SLF001 - it has no other way in
    made._visit_pattern = mended.pattern  # noqa: SLF001 - as above
    read = json.loads(schema)
    made._refs = references_of(read)  # noqa: SLF001 - as above
    made.visit(read, "")
    if made._rules.get("char") == library.PRIMITIVE_RULES["char"].content:  # noqa: SLF001 - as above
        made._rules["char"] = _CHAR  # noqa: SLF001 - as above
    grammar: str = made.format_grammar()
    return grammar


class _Mended:
    """Methods that stand in for the converter's."""

    def __init__(self, converter: Any, schema: str) -> None:
        self._converter = converter
        #: Rules whose names begin so are made here: nothing in the schema is called like them.
        self._own = "own"
        while self._own in schema:
            self._own += "n"
        self._referred: dict[str, str] = {}
        self._patterns: dict[str, str] = {}
        self._search = Search(_PATTERN_STEPS)

    def literal(self, text: str) -> str:
        """JSON text as a literal of the grammar: characters as they are, not as codes, which a model seldom writes."""
        plain = json.dumps(json.loads(text), ensure_ascii=False)
        return '"' + re.sub(r'[\\"]', r"\\\g<0>", plain) + '"'

    def referred(self, ref: str) -> str:
        """The name of the rule of what a $ref names; while that is made, already its name to be."""
        name = self._referred.get(ref)
        if name is None:
            name = self._referred[ref] = f"{self._own}-{len(self._referred)}"
            name = self._referred[ref] = self._converter.visit(self._converter._refs[ref], name)  # noqa: SLF001 - as above
        return name

    def pattern(self, pattern: str, name: str) -> str:
        """The name of a rule for strings of the pattern."""
        start = self._patterns.get(pattern)
        if start is None:
            start = self._patterns[pattern] = f"{self._own}-pattern-{len(self._patterns)}-"
            for i, rule in enumerate(rules_of(pattern, lambda state: f"{start}{state}", self._search)):
                self._converter._rules[f"{start}{i}"] = rule  # noqa: SLF001 - as above
        made: str = self._converter._add_rule(name, f'"\\"" {start}0')  # noqa: SLF001 - as above
        return made

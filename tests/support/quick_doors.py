"""Compiles the templates and the routes of a door once in a process: its tests make a thousand doors that are alike."""

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from jinja2 import BytecodeCache
from jinja2.bccache import Bucket
from werkzeug.routing import Rule


class _Compiled(BytecodeCache):
    """Keeps the code of templates by a key of their names; a changed template has another checksum."""

    def __init__(self) -> None:
        self._code: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._code:
            bucket.bytecode_from_string(self._code[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[bucket.key] = bucket.bytecode_to_string()


def compile_once(patch: pytest.MonkeyPatch) -> None:
    """Let each app take the code of its templates and rules from the first one. It takes 60 ms to compile the rules."""
    patch.setattr(Flask, "jinja_options", {"bytecode_cache": _Compiled()})
    compile_builder: Any = Rule._compile_builder
    built: dict[object, Callable[..., tuple[str, str]]] = {}

    def compiled(rule: Any, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        # All that the code depends on. It reads the converters from the rule that it is bound to.
        key = (rule.rule, *rule._trace, repr(rule.defaults), append_unknown)
        if key not in built:
            built[key] = compile_builder(rule, append_unknown)
        return built[key]

    patch.setattr(Rule, "_compile_builder", compiled)

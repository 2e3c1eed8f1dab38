"""`make templates`: check that every chat template in llama.cpp's source renders chats and tools, and print a table.

The table is part of docs/tools.md: the check fails if the page has another one. Each case that a template does not pass
needs a reason below.
"""

import argparse
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.processes import ROOT
from tests.templates.cases import CASES, Message, faults, grammar_faults
from workers.engine.chat.chat_template import ChatTemplate
from workers.engine.chat.renderer import Allowance
from workers.engine.structured.compiler import GrammarCompiler, SchemaLimits, TokenTable

BOS, EOS = "<s>", "</s>"
PAGE = ROOT / "docs" / "tools.md"
BEGIN, END = "<!-- written by make templates -->\n", "<!-- end -->\n"
HEAD = "| template | form | tools | earlier calls | cases | misses |\n|---|---|---|---|---|---|\n"

#: Why a template does not pass a case: all cases (""), or one of this name.
REASONS: Mapping[tuple[str, str], str] = {
    ("fireworks-ai-llama-3-firefunction-v2", ""): "the template needs variables of its own, `functions` and `datetime`",
    ("google-gemma-2-2b-it", "system"): "the model has no system role",
    ("google-gemma-2-2b-it", "2 tools and a system message"): "the model has no system role",
}


class RecordedTemplate(ChatTemplate):
    """A template that records what it rendered last."""

    rendered: tuple[list[Message], Sequence[Mapping[str, Any]], str]

    def _rendered(
        self,
        messages: list[Message],
        tools: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        allowance: Allowance,
    ) -> str:
        prompt = super()._rendered(messages, tools, variables, allowance)
        self.rendered = (messages, tools, prompt)
        return prompt


@dataclass
class Result:
    """The result of one template. `rendered` are the prompts of the cases, each with its source."""

    name: str
    source: str
    form: str
    shows_tools: bool
    shows_calls: bool
    misses: dict[str, str] = field(default_factory=dict)
    rendered: dict[str, tuple[list[Message], Sequence[Mapping[str, Any]], str]] = field(default_factory=dict)

    @property
    def row(self) -> str:
        """The line of the table."""
        tools = "shown" if self.shows_tools else "explained"
        calls = "shown" if self.shows_calls else "as text"
        reasons = dict.fromkeys(filter(None, (reason_of(self.name, case) for case in self.misses)))
        passed = f"{len(CASES) - len(self.misses)}/{len(CASES)}"
        return f"| {self.name} | `{self.form}` | {tools} | {calls} | {passed} | {'; '.join(reasons)} |\n"


def reason_of(template: str, case: str) -> str:
    """Return the known reason why a template does not pass a case; "" without one."""
    return REASONS.get((template, case)) or REASONS.get((template, ""), "")


def main() -> None:
    """Check all templates; exit with 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.templates", description=__doc__)
    parser.add_argument("source", type=Path, help="the source distribution of llama-cpp-python")
    parser.add_argument("--reference", metavar="PYTHON", help="a Python in whose environment transformers is installed")
    parser.add_argument("--write", action="store_true", help="write the table to docs/tools.md")
    options = parser.parse_args()
    results = [_result(name, source) for name, source in _templates(options.source)]
    wrong = [
        f"{each.name}: {case}: {why}"
        for each in results
        for case, why in each.misses.items()
        if not reason_of(each.name, case)
    ]
    missed = {(each.name, case) for each in results for case in each.misses}
    wrong += [
        f"{name}: no case needs the reason {case!r}"
        for name, case in REASONS
        if not any(name == one and case in ("", other) for one, other in missed)
    ]
    wrong += _grammars(results)
    if options.reference:
        wrong += _differences(options.reference, results)
    table = HEAD + "".join(each.row for each in results)
    print(table)
    if not _is_on_page(table, write=options.write):
        wrong.append(f"{PAGE.name} has another table: run it with --write")
    print("\n".join(wrong) or f"{len(results)} templates, {len(CASES)} cases each: all as expected")
    sys.exit(bool(wrong))


def _templates(path: Path) -> Iterator[tuple[str, str]]:
    with tarfile.open(path) as archive:
        found = sorted(name for name in archive.getnames() if "/models/templates/" in name and name.endswith(".jinja"))
        for name in found:
            content = archive.extractfile(name)
            assert content is not None
            yield Path(name).stem, content.read().decode()


def _result(name: str, source: str) -> Result:
    template = RecordedTemplate(source, bos=BOS, eos=EOS)
    result = Result(name, source, template.traits.form.name, template.traits.shows_tools, template.traits.shows_calls)
    for case in CASES:
        why = faults(case, template)
        if why:
            result.misses[case.name] = why
        else:
            result.rendered[case.name] = template.rendered
    return result


def _grammars(results: Sequence[Result]) -> list[str]:
    """Return what is wrong with the grammars of the forms that the templates have."""
    table = TokenTable([*(bytes([byte]) for byte in range(256)), b""], frozenset({256}), frozenset({256}))
    compiler = GrammarCompiler(table, SchemaLimits(max_bytes=65_536, compile_ms=5_000, step_ms=50.0))
    forms = {each.form: RecordedTemplate(each.source, bos=BOS, eos=EOS).traits.form for each in results}
    try:
        found = [(name, grammar_faults(form, compiler)) for name, form in sorted(forms.items())]
    finally:
        compiler.close()
    return [f"{name}: {choice}: {why}" for name, each in found for choice, why in each.items()]


def _differences(python: str, results: Sequence[Result]) -> list[str]:
    """Return the cases that the reference renders otherwise. It may fail on what is rendered here."""
    asked = [(each, case, *rendered) for each in results for case, rendered in each.rendered.items()]
    lines = [
        json.dumps({"source": each.source, "messages": messages, "tools": list(tools) or None, "bos": BOS, "eos": EOS})
        for each, _, messages, tools, _ in asked
    ]
    program = Path(__file__).with_name("reference.py")
    done = subprocess.run([python, program], input="\n".join(lines), capture_output=True, text=True, check=True)
    prompts = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(prompts) == len(asked)
    pairs = list(zip(asked, prompts, strict=True))
    failed = sum(prompt is None for prompt in prompts)
    print(f"Hugging Face's renderer: {len(pairs) - failed} prompts compared; it fails on {failed}")
    return [
        f"{each.name}: {case}: the reference renders {reference!r}, and not {prompt!r}"
        for (each, case, _, _, prompt), reference in pairs
        if reference is not None and reference != prompt
    ]


def _is_on_page(table: str, *, write: bool) -> bool:
    """Return whether docs/tools.md has this table. With `write`, it is put there first."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    shown, _, after = rest.partition(END)
    if write:
        PAGE.write_text(f"{before}{BEGIN}{table}{END}{after}")
        return True
    return shown == table


if __name__ == "__main__":
    main()

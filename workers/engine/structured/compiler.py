"""Compiles what an answer must match, within limits, and keeps the last compiled grammars of each tenant."""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import llguidance

from workers.engine.events import JobRejected
from workers.engine.structured.constraint import JSON_SPACE, Constraint, Subject, unusable
from workers.engine.structured.matcher import NO_EXTENSION, GrammarSlow, GrammarStuck, MaskShape, Matcher
from workers.engine.structured.probe import Probes, Verdict

#: llguidance's own limits. They bound the memory of a grammar and the work of one step; its defaults allow ten times
#: as many lexer states, of 1 to 2 kB each, and five times as many parser items in a step. Without
#: `precompute_large_lexemes`, the time to compile a grammar does not depend on the vocabulary.
_LIMITS: dict[str, Any] = {
    "max_lexer_states": 25_000,
    "step_max_items": 20_000,
    "step_lexer_fuel": 200_000,
    "precompute_large_lexemes": False,
    "verbose_errors": False,
}
#: How many compiled grammars are kept, and how many of one tenant. A grammar keeps up to a few MB.
_MAX_KEPT, _MAX_KEPT_PER_TENANT = 64, 16


@dataclass(frozen=True)
class SchemaLimits:
    """The limits from the settings: size in bytes, CPU time to compile, and average CPU time for a token, in ms.

    `ignores_formats` says whether an unknown `format` of a schema restricts nothing.
    """

    max_bytes: int
    compile_ms: int
    step_ms: float
    ignores_formats: bool = False


@dataclass(frozen=True)
class TokenTable:
    """A model's vocabulary: the bytes of each token, and which tokens end an answer or stand for no text."""

    pieces: Sequence[bytes]
    end_tokens: frozenset[int]
    special: frozenset[int]


@dataclass(frozen=True)
class Grammar:
    """A compiled grammar, and the CPU time that the helper process took for it; 0 if the grammar was kept."""

    _matcher: llguidance.LLMatcher
    _vocab: MaskShape
    _step_ms: float
    helper_cpu_s: float = 0.0

    def start(self) -> Matcher:
        return Matcher(self._matcher, self._vocab, step_ms=self._step_ms)


class _Vocabulary:
    """The vocabulary in llguidance's form.

    llguidance calls it with the text that a grammar prescribes next, to find that text's tokens. They are taken from
    llguidance's own search for the longest tokens, because the model's tokenizer may take long.
    """

    bos_token_id, is_tokenizer_wrapper = None, True

    def __init__(self, table: TokenTable) -> None:
        names = {token: b"\xff<%d>" % token for token in table.special | table.end_tokens}
        self.tokens = [names.get(token, piece) for token, piece in enumerate(table.pieces)]
        if not table.end_tokens:
            # llguidance needs a token that ends the answer. The model cannot generate this one.
            self.tokens.append(b"\xff<end>")
        self.end_tokens = sorted(table.end_tokens) or [len(table.pieces)]
        self.eos_token_id = self.end_tokens[0]
        self.special_token_ids = sorted({*names, *self.end_tokens})
        self.tokenizer: llguidance.LLTokenizer | None = None

    def __call__(self, text: str | bytes) -> list[int]:
        if self.tokenizer is None:
            return []
        return self.tokenizer.greedy_tokenize(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


class GrammarCompiler:
    """Compiles grammars for one model. May be used from any thread. `close` ends its helper processes."""

    def __init__(self, table: TokenTable, limits: SchemaLimits) -> None:
        vocabulary: Any = _Vocabulary(table)
        self.limits = limits
        special = table.special - table.end_tokens
        self._vocab = MaskShape(len(table.pieces), len(vocabulary.tokens), special, table.end_tokens)
        self._tokenizer = llguidance.LLTokenizer(
            vocabulary, n_vocab=len(vocabulary.tokens), eos_token=vocabulary.end_tokens
        )
        vocabulary.tokenizer = self._tokenizer
        self._parser_limits = llguidance.LLParserLimits(**_LIMITS)
        self._probes = Probes(limits.compile_ms, _LIMITS)
        self._lock = threading.Lock()
        #: (tenant, digest) → grammar, the least recently used first. A tenant does not see the grammars of others: the
        #: time of an answer would tell.
        self._kept: OrderedDict[tuple[str, bytes], Grammar] = OrderedDict()

    def compile(self, constraint: Constraint, tenant: str) -> Grammar:
        """Return the grammar for the constraint. Raises JobRejected if it is unsupported or exceeds a limit.

        `helper_cpu_s` of the grammar or of the JobRejected is the CPU time that was spent outside this process.
        """
        key = tenant, hashlib.sha256(f"{constraint.kind} {constraint.marks} {constraint.text}".encode()).digest()
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept
        # The helper process has no control tokens. A text in their place takes the same time.
        verdict = self._probes.check(_grammar_text(constraint, ((name, '"mark"') for name, _ in constraint.marks)))
        if verdict.error:
            raise self._rejected_part(constraint, verdict)
        text = _grammar_text(constraint, ((name, f"<[{token}]>") for name, token in constraint.marks))
        matcher = llguidance.LLMatcher(self._tokenizer, text, log_level=0, limits=self._parser_limits)
        if matcher.is_error():
            raise _rejected(constraint.subject, matcher.get_error(), verdict.cpu_s)
        marks = frozenset(token for _, token in constraint.marks)
        shape = replace(self._vocab, special=self._vocab.special - marks) if marks else self._vocab
        grammar = Grammar(matcher, shape, self.limits.step_ms)
        try:
            # The first mask is the first to meet the limits of a step, and takes longest.
            grammar.start().allowed()
        except (GrammarStuck, GrammarSlow) as fault:
            raise _rejected(constraint.subject, str(fault), verdict.cpu_s) from None
        self._keep(key, grammar)
        return replace(grammar, helper_cpu_s=verdict.cpu_s)

    def _rejected_part(self, constraint: Constraint, verdict: Verdict) -> JobRejected:
        """Return the rejection of a constraint. It names the first tool whose schema alone cannot be compiled.

        The search and the attempt before it take about the CPU time that one grammar may take: a tool's schema alone
        takes no longer than all together, so the search ends when half of that time is spent.
        """
        spent_s = verdict.cpu_s
        for subject, schema in constraint.parts:
            if spent_s > self.limits.compile_ms / 2_000:
                break
            alone = self._probes.check(_grammar_text(Constraint("json", schema), ()))
            spent_s += alone.cpu_s
            if alone.error:
                return _rejected(subject, alone.error, spent_s)
        return _rejected(constraint.subject, verdict.error, spent_s)

    def _keep(self, key: tuple[str, bytes], grammar: Grammar) -> None:
        with self._lock:
            self._kept[key] = grammar
            own = [other for other in self._kept if other[0] == key[0]]
            if len(own) > _MAX_KEPT_PER_TENANT:
                del self._kept[own[0]]
            elif len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)

    def close(self) -> None:
        self._probes.close()


def _grammar_text(constraint: Constraint, marks: Iterable[tuple[str, str]]) -> str:
    """Return the grammar in llguidance's format. `marks` are the rules for the constraint's control tokens."""
    if constraint.kind == "json":
        try:
            return llguidance.LLMatcher.grammar_from_json_schema(
                constraint.text, overrides={"whitespace_pattern": JSON_SPACE}
            )
        except ValueError as fault:  # the schema is nested too deeply
            raise unusable(str(fault)[:200]) from None
    if constraint.kind == "regex":
        return llguidance.LLMatcher.grammar_from_regex(constraint.text)
    if constraint.kind == "tools":
        rules = "".join(f"\n{name}: {term}" for name, term in marks)
        return llguidance.LLMatcher.grammar_from_lark(constraint.text + rules)
    if constraint.kind == "lark":
        return llguidance.LLMatcher.grammar_from_lark(constraint.text)
    # JSON does not escape the character DEL, and Lark's strings may not contain it.
    choices = [json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f") for text in json.loads(constraint.text)]
    return llguidance.LLMatcher.grammar_from_lark("start: " + " | ".join(choices))


def _rejected(subject: Subject, error: str, helper_cpu_s: float) -> JobRejected:
    if NO_EXTENSION in error:
        # Even the helper process, whose vocabulary has all bytes, found no text to begin with.
        return unusable("no text matches it", subject, helper_cpu_s=helper_cpu_s)
    # With `verbose_errors` off, llguidance still adds a line that says so.
    return unusable(" ".join(error.replace("<non-verbose/>", "").split())[:300], subject, helper_cpu_s=helper_cpu_s)

"""The guard of the semantic cache: compares what vectors cannot see before an earlier answer may be used.

Vectors place "with sugar" and "without sugar" next to each other, closer than most paraphrases. So the guard finds
what changes the meaning of a prompt, and two prompts must agree on all of it. It rather refuses ten paraphrases than
lets one other question through: a refusal costs an answer that has to be generated. Pure functions.
"""

import re
import unicodedata
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import pairwise

from web.semantic_cache import guard_numbers as numbers
from web.semantic_cache import guard_phrases as phrases
from web.semantic_cache import guard_words as words
from web.semantic_cache.guard_stems import spelled, stem_of

_SPACES = re.compile(r"\s+")
_CODE = re.compile(r"```.*?(?:```|$)|`[^`]+`", re.DOTALL)
_QUOTED = re.compile(
    r"“[^”]*”|„[^„“”]*[“”]|«[^»]*»|»[^«]*«|\"[^\"]*\"|"
    r"(?<!\w)'[^']+'(?!\w)|「[^」]*」|\u2018[^\u2019]*\u2019(?!\w)"
)
_MARKS = " `\"'“”„«»「」\u2018\u2019"
#: Strings beside words: addresses, paths, operators, and names of programs with marks or capitals in them.
_IDENTIFIER = re.compile(
    r"https?://\S+|(?<!\S)\S*[/\\_@#$^|~=<>{}\[\]+*&]\S*|\b\w+\(\)|(?<!\S)--?[A-Za-z][\w-]*|"
    r"\b[^\W\d]\w*\.\w+(?:\.\w+)*\b|\b[a-z]+[A-Z]\w*\b|\b[A-Za-z]+\d\w*\b|\b\d+[A-Za-z]+\w*\b"
)
_NUMBER = re.compile(r"[-+]?\d+(?:[.,:]\d+)*%?")
_TOKEN = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*|[-+]?\d+(?:[.,:]\d+)*")
_CURRENCY = re.compile(r"[€$£¥₹%°]")
_CONTRACTIONS = (
    (re.compile(r"\bcannot\b|\bcan't\b", re.IGNORECASE), "can not"),
    (re.compile(r"\bwon't\b", re.IGNORECASE), "will not"),
    (re.compile(r"n't\b", re.IGNORECASE), " not"),
    (re.compile(r"\b(what|who|where|when|how|why|that|there|it|he|she|here|which)'s\b", re.IGNORECASE), r"\1 is"),
    (re.compile(r"'(s|re|ve|ll|d|m)\b", re.IGNORECASE), r" \1"),
)
#: A text is English if at least this part of its words are common English ones.
_ENGLISH_PART = 0.2
_UNIT_BEHIND = re.compile(r"(?<![\w.])(\d++(?:[.,]\d++)*+)([A-Za-z]++)")

#: Texts with more characters, after their characters were replaced by usual ones, must be the same.
_LONGEST = 4_000
#: The kinds of characters that become usual digits and letters, which would change `2³` into 23.
_RAISED = ("<super>", "<sub>", "<fraction>")
#: Words with capitals are compared letter by letter up to this length: `MB` and `Mb`, `CO` and `Co`.
_SYMBOL_CHARS = 3
#: Requests that may name how many things they want by a plural only.
_MAKING = frozenset({"", "write", "list"})

#: Numbers with units of thousands are divided so.
_THOUSANDS = re.compile(r"^[-+]?\d{1,3}(?:,\d{3})+$")


@dataclass(frozen=True)
class Meaning:
    """The parts of a prompt that must be equal. Their names are the reasons that `difference` gives."""

    language: str
    code: tuple[str, ...]
    quotes: tuple[str, ...]
    identifiers: tuple[str, ...]
    numbers: tuple[str, ...]
    dates: tuple[str, ...]
    negations: int
    question: str
    polarity: tuple[str, ...]
    tense: tuple[str, ...]
    connectives: tuple[str, ...]
    persons: tuple[str, ...]
    #: The auxiliary verb that begins a question for yes or no, and whether there is a passive.
    voice: tuple[str, ...]
    #: The plurals in a request for texts or lists: `a poem` and `poems` differ.
    plurals: tuple[str, ...]
    #: Words in capitals that would have no content in small letters: `US`, `IT`, `WHO`.
    acronyms: tuple[str, ...]


@dataclass(frozen=True)
class _Read:
    meaning: Meaning
    #: The words with content in their order, and the prepositions before them.
    content: tuple[str, ...]
    directions: tuple[tuple[str, str], ...]
    #: The last word without content before each of them, such as a preposition.
    leads: tuple[str, ...]
    #: The words that limit or deny, each with the word with content behind it.
    bindings: tuple[tuple[str, str], ...]
    #: The capitalized words.
    names: frozenset[str]
    #: Short words with capitals as they are written, by the same in small letters.
    symbols: dict[str, str]
    #: A preposition at the end, as in `Who do I report a manager to?`
    last: str


def difference(asked: str, earlier: str) -> str | None:
    """Return in what two prompts differ, as a word, or None if the guard finds that they ask the same."""
    one, other = _usual(asked), _usual(earlier)
    if max(len(one), len(other)) > _LONGEST:
        return None if one == other else "length"
    return _difference(_read(one), _read(other))


def _usual(text: str) -> str:
    """Return a text with usual characters in place of those that mean the same."""
    marked = (f" ^{each}" if unicodedata.decomposition(each).startswith(_RAISED) else each for each in text)
    return unicodedata.normalize("NFKC", text if text.isascii() else "".join(marked))


def _difference(one: "_Read", other: "_Read") -> str | None:
    for each in fields(Meaning):
        if getattr(one.meaning, each.name) != getattr(other.meaning, each.name):
            return each.name
    if one.meaning.language != "en":
        return None if one.content == other.content else "words"
    # A name may be written in small letters, but it may not be missing.
    if not (one.names <= {*other.content, *other.names} and other.names <= {*one.content, *one.names}):
        return "names"
    if any(other.symbols.get(word, form) != form for word, form in one.symbols.items()):
        return "names"
    return _difference_of_content(one, other)


def _difference_of_content(one: _Read, other: _Read) -> str | None:
    if one.last != other.last and {one.last, other.last} & phrases.DISTINCT_LEADS:
        return "direction"
    leads = dict(zip(other.content, other.leads, strict=True))
    for stem, lead in zip(one.content, one.leads, strict=True):
        pair = {lead, leads.get(stem, lead)}
        if len(pair) == 2 and pair <= phrases.DISTINCT_LEADS:
            return "direction"
    if one.content == other.content and one.bindings == other.bindings:
        return None if one.directions == other.directions else "direction"
    if sorted(one.directions) != sorted(other.directions):
        return "direction"
    if sorted(one.content) != sorted(other.content):
        return "words"
    return None if sorted(one.bindings) == sorted(other.bindings) and _is_turned(one, other) else "order"


def _is_turned(one: _Read, other: _Read) -> bool:
    """Return whether a part with a preposition, such as `in Python`, has moved from one end to the other."""
    first, second = one.content, other.content
    for at in range(1, len(first)):
        if first[at:] + first[:at] != second:
            continue
        # The part is the beginning of one of the texts, and the end of the other one.
        leads = {(one.leads[0], other.leads[len(first) - at]), (one.leads[at], other.leads[0])}
        if any(before == after and before in words.MOVABLE for before, after in leads):
            return True
    return False


@lru_cache(maxsize=256)
def _read(text: str) -> _Read:
    code, rest = _cut(_CODE, text)
    quotes, rest = _cut(_QUOTED, rest)
    rest = rest.replace("\u2019", "'").replace("\u2018", "'")
    for pattern, instead in _CONTRACTIONS:
        rest = pattern.sub(instead, rest)
    rest = _UNIT_BEHIND.sub(_apart, rest)
    signs = tuple(_CURRENCY.findall(rest))
    identifiers, rest = _cut(_IDENTIFIER, rest)
    tokens = _TOKEN.findall(rest)
    rest = phrases.POLITE.sub(" ", re.sub(r"[ \t]+", " ", rest))
    lower = phrases.HOW_TO.sub("howto", " ".join(map(spelled, _words_of(_with_may(rest).lower()))))
    lower = phrases.HAVE_TO.sub(r"\1 must", lower)
    plain = lower.split()
    is_english = _is_english([token.lower() for token in tokens])
    if not is_english:
        plain = [token.lower() for token in tokens]
    words_read = _content(plain, is_english=is_english)
    kind = _kind(lower) if is_english else ""
    meaning = Meaning(
        language="en" if is_english else "other",
        code=code,
        quotes=quotes,
        identifiers=tuple(map(_identifier, identifiers)),
        numbers=(*_numbers(plain), *signs),
        dates=tuple(numbers.DATES[word] for word in plain if word in numbers.DATES),
        negations=sum(word in words.NEGATIONS for word in plain),
        question=kind,
        polarity=_polarity(plain),
        tense=tuple(name for name, of in phrases.TENSES.items() if of & set(plain)) if is_english else (),
        connectives=tuple(sorted(word for word in plain if word in words.CONNECTIVES)),
        persons=_persons(plain) if is_english else (),
        voice=_voice(plain, kind) if is_english else (),
        plurals=tuple(sorted(filter(_is_plural, plain))) if is_english and kind in _MAKING else (),
        acronyms=_acronyms(rest) if is_english else (),
    )
    return _Read(
        meaning, *words_read, _names(rest) if is_english else frozenset(), _symbols(rest), plain[-1] if plain else ""
    )


def _identifier(found: str) -> str:
    """Return a string beside words as it is compared. The case counts if it has marks: `-d` and `-D`."""
    found = found.strip(".,?!:;")
    return found.lower() if found.isalnum() else found


def _with_may(text: str) -> str:
    """Return a text whose month May is no verb."""
    return re.sub(r"(?<=[\w,] )May\b", "monthofmay", text)


def _persons(plain: list[str]) -> tuple[str, ...]:
    """Return the persons in the order in which they follow each other; () if there is only the one who asks."""
    found: list[str] = []
    for word in plain:
        person = "i" if word in phrases.ASKING else _PERSON_OF.get(word)
        if person and found[-1:] != [person]:
            found.append(person)
    return () if set(found) <= {"i"} else tuple(found)


_PERSON_OF = {word: name for name, of in phrases.PERSONS.items() for word in of}


def _voice(plain: list[str], kind: str) -> tuple[str, ...]:
    is_passive = any(
        one in phrases.PASSIVES
        and (other in phrases.PARTICIPLES or other.endswith("ed"))
        and other not in phrases.NO_PARTICIPLES
        for one, other in pairwise(plain)
    )
    begins = phrases.AUXILIARIES.get(plain[0], "") if kind == "yesno" and "must" not in plain else ""
    return (begins, "passive" if is_passive else "")


def _is_plural(word: str) -> bool:
    return len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")) and not _is_left_out(word)


def _acronyms(text: str) -> tuple[str, ...]:
    if text.upper() == text:
        return ()
    found = (word for word in _TOKEN.findall(text) if len(word) > 1 and word.isupper())
    return tuple(word for word in found if word.lower() in words.FUNCTION)


def _symbols(text: str) -> dict[str, str]:
    found = (word for word in _TOKEN.findall(text) if len(word) <= _SYMBOL_CHARS and word != word.lower())
    return {word.lower(): word for word in found}


def _apart(match: re.Match[str]) -> str:
    """Return a number and its unit with a space between them; an ordinal without its ending."""
    number, unit = match.group(1), match.group(2).lower()
    return number if unit in numbers.ORDINALS else f"{number} {unit}" if unit in numbers.UNITS else match.group()


def _is_english(tokens: list[str]) -> bool:
    common, perhaps = (sum(token in of for token in tokens) for of in (words.ENGLISH, words.ALSO_ENGLISH))
    is_foreign = any(token in words.FOREIGN for token in tokens)
    return not is_foreign and (common > 0 or perhaps > 1) and common + perhaps >= _ENGLISH_PART * len(tokens)


def _cut(pattern: re.Pattern[str], text: str) -> tuple[tuple[str, ...], str]:
    """Return what a pattern finds, and the text without it."""
    return tuple(_SPACES.sub(" ", each).strip(_MARKS) for each in pattern.findall(text)), pattern.sub(" ", text)


def _words_of(text: str) -> list[str]:
    """Return the words and numbers of a text. Parts with hyphens are words, but `e-mail` is one."""
    found: list[str] = []
    for token in _TOKEN.findall(text):
        parts = token.split("-") if token[0].isalpha() else [token]
        found += ["".join(parts)] if len(parts[0]) == 1 else parts
    return [each for each in found if each]


def _names(text: str) -> frozenset[str]:
    """Return the stems of capitalized words, those at the beginning of a sentence only if they are rare words."""
    found = set()
    starts = True
    for match in re.finditer(r"[^\W\d_]+(?:['-][^\W\d_]+)*|[.?!:\n]", text):
        word = match.group()
        if word in ".?!:\n":
            starts = True
            continue
        if word[0].isupper() and word != "I":
            lower = word.lower()
            if not starts or not (lower in words.FUNCTION or lower in words.NEGATIONS or lower in _OPENERS):
                found |= {stem_of(spelled(part)) for part in _words_of(lower) if not _is_left_out(part)}
        starts = False
    return frozenset(found)


#: The first words of many sentences. Their capitals do not make them names.
_OPENERS = words.word_set(
    "write list summarize summarise translate compare create generate draft compose convert calculate compute solve "
    "suggest recommend explain name outline discuss provide identify are in on at for during after before with under "
    "sure given draft fix play ask make give assuming all every some most each both only should must steps tips best"
)


def _kind(text: str) -> str:
    for kind, pattern in phrases.KINDS:
        if pattern.search(text):
            return phrases.SAME_KINDS.get(kind, kind)
    return ""


def _numbers(plain: list[str]) -> list[str]:
    """Return the numbers in their order, each with its unit, and units without numbers."""
    found = []
    before = ""
    for word in plain:
        number = _number(word)
        if number:
            found.append(number)
        elif word in numbers.UNITS and (word not in numbers.AFTER_NUMBERS or before):
            found.append(numbers.UNITS[word])
        before = number
    return found


def _number(word: str) -> str:
    if _NUMBER.fullmatch(word):
        text = word.replace(",", "") if _THOUSANDS.match(word) else word.replace(",", ".")
        return text.lstrip("+")
    if word in numbers.NUMBERS:
        return numbers.NUMBERS[word]
    parts = word.split("-")
    if len(parts) > 1 and all(part in numbers.NUMBERS for part in parts):
        return " ".join(numbers.NUMBERS[part] for part in parts)
    return ""


def _polarity(plain: list[str]) -> tuple[str, ...]:
    """Return which sides of opposites the words take: the number of the pair, and the number of the side."""
    return tuple(sorted({place for word in plain for place in _SIDES.get(word, ())}))


_SIDES: dict[str, tuple[str, ...]] = {}
for _pair, _sides in enumerate(words.POLARITIES):
    for _side, _of in enumerate(_sides):
        for _word in _of:
            _SIDES[_word] = (*_SIDES.get(_word, ()), f"{_pair}.{_side}")


def _content(
    plain: list[str], *, is_english: bool
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...], tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the content, directions, leads and bindings of a text."""
    if not is_english:
        return tuple(plain), (), (), ()
    content, directions, leads, bindings = [], [], [], list[tuple[str, str]]()
    direction, lead, limits = "", "", list[str]()
    for word in plain:
        if word in words.LIMITS or word in words.NEGATIONS:
            limits.append("not" if word in words.NEGATIONS else word)
        direction = word if word in phrases.DIRECTIONS else direction
        if _is_left_out(word):
            lead = word if word not in words.ARTICLES else lead
            continue
        stem = stem_of(word)
        content.append(stem)
        leads.append(lead)
        if direction:
            directions.append((stem, direction))
        if word not in words.LIMITS:
            bindings += [(limit, stem) for limit in limits]
            limits = []
        direction, lead = "", ""
    bindings += [(limit, "") for limit in limits]
    return tuple(content), tuple(directions), tuple(leads), tuple(bindings)


def _is_left_out(word: str) -> bool:
    """Return whether a word has no content, or is compared as a negation, number, unit or date."""
    is_unit = word in numbers.UNITS and word not in numbers.AFTER_NUMBERS
    is_plain = word in words.FUNCTION or word == "howto" or word in words.NEGATIONS
    return is_plain or bool(_number(word)) or word in numbers.DATES or is_unit

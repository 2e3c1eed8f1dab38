"""Makes tools from verbs and nouns, so that the model learns to find the words of a request among the tools."""

from random import Random

from tools.demo_model.calls.skill import Skill
from tools.demo_model.calls.values import words
from tools.demo_model.stories import made_up_word, upper_first

#: The last N_UNSEEN_WORDS of each list are only for the evaluation.
N_UNSEEN_WORDS = 6
VERBS = words(
    "open close start stop check find show rent order cancel rename paint repair wash feed count list delete print "
    "lock sell visit measure move copy test pause share hide update create remove send clean book watch follow join "
    "leave save load archive inspect restart approve export"
)
NOUNS = words(
    "door gate car room lamp printer invoice parcel ticket server robot camera report project garden bus train ship "
    "boat account user customer product task meeting photo video letter page folder backup game table window bridge "
    "machine playlist engine contract lesson sensor recipe route elevator drone warehouse oven tractor"
)
#: The questions about a thing.
FACTS = words(
    "price age size weight height color speed name owner address length status phone date author distance level "
    "rating number balance birthday email depth location width salary deadline version"
)
#: The share of verbs, nouns and facts that are made up.
_MADE_UP_SHARE = 0.35
_SLOTS = ("odd", "code", "ticket", "name", "person", "city", "noun", "company", "file")
_PARAMETERS = ("name", "id", "which", "key", "item", "value", "target")


def made_up_skill(rng: Random, *, unseen: bool = False, verb: str = "", noun: str = "") -> Skill:
    """Return a skill with a name of two words. With `unseen`, the words are those that training never uses."""
    noun = noun or a_noun(rng, unseen=unseen)
    slot = rng.choice(_SLOTS)
    names = tuple(rng.sample(_PARAMETERS, 3)) + ((slot,) if slot in ("name", "person", "city", "file") else (noun,))
    if not verb and rng.random() < 0.4:
        return _fact(rng, noun, slot, names, unseen=unseen)
    verb = verb or _word(rng, VERBS, unseen=unseen)
    thing = f"{noun} {{{slot}}}"
    return Skill(
        (f"{verb}_{noun}", f"{verb}_{noun}", f"{verb}_a_{noun}", f"{noun}_{verb}"),
        (f"{upper_first(verb)} a {noun}.", f"{upper_first(verb)} the {noun}.", f"Can {verb} a {noun}."),
        {slot: names},
        (
            f"{upper_first(verb)} the {thing}",
            f"{upper_first(verb)} {thing}",
            f"Please {verb} the {thing}",
            f"Please {verb} {thing} now",
            f"Can you {verb} the {thing}",
            f"I want to {verb} the {thing}",
            f"{upper_first(verb)} the {noun} called {{{slot}}}",
            f"Could you {verb} the {thing} for me",
            f"I would like you to {verb} {thing}",
        ),
        (
            ("done", f"I did it: {verb} the {thing}."),
            ({"status": "{state}"}, f"The {thing} is {{state}}."),
            ("{state}", f"The {thing} is {{state}}."),
        ),
    )


def a_noun(rng: Random, *, unseen: bool = False) -> str:
    """Return a noun for the name of a tool."""
    return _word(rng, NOUNS, unseen=unseen)


def _fact(rng: Random, noun: str, slot: str, names: tuple[str, ...], *, unseen: bool) -> Skill:
    fact = _word(rng, FACTS, unseen=unseen)
    thing = f"{noun} {{{slot}}}"
    answer = f"The {fact} of the {thing} is {{code}}."
    return Skill(
        (f"get_{fact}", f"{noun}_{fact}", f"get_{noun}_{fact}", f"find_{fact}", fact),
        (f"Get the {fact} of a {noun}.", f"Return the {fact} of the {noun}.", f"{upper_first(fact)} of a {noun}."),
        {slot: names},
        (
            f"What is the {fact} of the {thing}",
            f"What is the {fact} of {thing}",
            f"Tell me the {fact} of the {thing}",
            f"Give me the {fact} of {thing}",
            f"{upper_first(fact)} of the {thing}",
            f"I need the {fact} of the {thing}",
            f"What's the {fact} of the {thing}",
            f"Can you tell me the {fact} of the {thing}",
        ),
        (({fact: "{code}"}, answer), ("{code}", answer)),
    )


def _word(rng: Random, known: tuple[str, ...], *, unseen: bool) -> str:
    if rng.random() < _MADE_UP_SHARE:
        return made_up_word(rng, rng.choice((1, 2, 2, 3)))
    return rng.choice(known[-N_UNSEEN_WORDS:] if unseen else known[:-N_UNSEEN_WORDS])

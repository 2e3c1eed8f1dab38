"""Generates short stories from a seed: a hero, a plot, a helper and an ending, with consistent names and pronouns."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from tools.demo_model import story_cast as cast
from tools.demo_model.story_plot import Plot
from tools.demo_model.story_plots_more import PLOTS

_PRONOUNS = {"he": ("him", "his"), "she": ("her", "her"), "it": ("it", "its")}
_SHE_WONDERS = {"queen"}
_HE_WONDERS = {"king", "knight", "wizard", "giant"}
_SENTENCE_END = re.compile(r'(?<=[.!?"]) (?=[A-Z"])')


@dataclass(frozen=True)
class Hero:
    """The main character of a story. `kind` is a noun, or empty for a hero that has only a name."""

    name: str
    kind: str
    adjective: str
    pronoun: str

    @property
    def introduced(self) -> str:
        """The phrase that introduces the hero, for example `a little fox named Fern`."""
        noun = f"{self.adjective} {self.kind}".strip()
        return f"{an(noun)} named {self.name}"


def an(noun: str) -> str:
    """Return the noun with `a` or `an` before it."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def upper_first(text: str) -> str:
    """Return the text with its first letter in upper case and the others unchanged."""
    return text[:1].upper() + text[1:]


def made_up_word(rng: Random, syllables: int = 2) -> str:
    """Return a random word made of syllables, which is not taken from any word list."""
    return "".join(
        rng.choice("bdfgklmnprstvwz")
        + rng.choice(["a", "e", "i", "o", "u", "ee", "oo"])
        + rng.choice(["", "", "n", "r", "l", "s"])
        for _ in range(syllables)
    )


def a_hero(rng: Random, kind: str = "", name: str = "") -> Hero:
    """Return a random hero. A given `kind` or `name` is used as it is."""
    if not kind:
        groups = (("girl", "boy"), cast.ANIMALS, cast.WONDERS)
        kind = rng.choice(rng.choices(groups, weights=(40, 45, 15))[0])
    if kind in _SHE_WONDERS or kind == "girl":
        pronoun = "she"
    elif kind in _HE_WONDERS or kind == "boy":
        pronoun = "he"
    else:
        pronoun = rng.choice(("he", "she"))
    if not name:
        if kind in {"girl", "boy"}:
            name = rng.choice(cast.GIRL_NAMES if kind == "girl" else cast.BOY_NAMES)
        else:
            name = rng.choice(cast.SHE_NAMES if pronoun == "she" else cast.HE_NAMES)
    return Hero(name, kind, rng.choice(cast.HERO_ADJECTIVES) if rng.random() < 0.8 else "", pronoun)


def a_story(rng: Random, hero: Hero | None = None, plot: Plot | None = None) -> str:
    """Return one complete story of about 90 to 200 words, in one paragraph."""
    hero = hero or a_hero(rng)
    plot = plot or rng.choice(PLOTS)
    slots = _slots(rng, hero, plot)
    beats = [_opening(rng)]
    if rng.random() < 0.35:
        beats.append(rng.choice(cast.HABITS))
    beats += [rng.choice(beat) for beat in plot.beats]
    if rng.random() < 0.4:
        beats.append(rng.choice(plot.lesson))
    if rng.random() < 0.85:
        beats.append(rng.choice(cast.ENDINGS))
    if rng.random() < 0.1:
        beats.append("The end.")
    return " ".join(_filled(rng, beat, slots) for beat in beats)


def sentences_of(story: str) -> list[str]:
    """Split a story into its sentences; joined with spaces, they give the story again."""
    return _SENTENCE_END.split(story)


def _opening(rng: Random) -> str:
    once = [opening for opening in cast.OPENINGS if opening.startswith("Once upon a time")]
    return rng.choice(once if rng.random() < cast.ONCE_UPON_A_TIME_SHARE else cast.OPENINGS)


def _slots(rng: Random, hero: Hero, plot: Plot) -> dict[str, str]:
    kind, helper, helper_pronoun = rng.choice(
        [row for row in cast.HELPERS if not row[0].endswith(hero.kind) and row[1] != hero.name]
    )
    time = rng.choice(cast.TIMES)
    him, his = _PRONOUNS[hero.pronoun]
    hhim, hhis = _PRONOUNS[helper_pronoun]
    slots = {
        "hero": hero.name,
        "a_hero": hero.introduced,
        "he": hero.pronoun,
        "him": him,
        "his": his,
        "helper": helper,
        "a_helper": f"{an(kind)} named {helper}" if rng.random() < 0.7 else f"{helper} the {kind.split()[-1]}",
        "hhe": helper_pronoun,
        "hhim": hhim,
        "hhis": hhis,
        "home": rng.choice(cast.HOMES),
        "time": time,
        "time_low": time[0].lower() + time[1:],
    }
    return slots | rng.choice(plot.rows)


def _filled(rng: Random, beat: str, slots: Mapping[str, str]) -> str:
    """Fill the slots of a beat, also those within slot values. A capitalized slot name gives the value capitalized."""
    feelings = {
        "joy": rng.choice(cast.JOYS),
        "sorrow": rng.choice(cast.SORROWS),
        "thanks": rng.choice(cast.THANKS),
    }
    known = {**slots, **feelings}
    known |= {upper_first(name): upper_first(value) for name, value in known.items()} | {
        "HHe": upper_first(slots["hhe"])
    }
    text = beat
    while "{" in text:
        text = text.format_map(known)
    return text

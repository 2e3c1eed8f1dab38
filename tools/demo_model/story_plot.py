"""What a plot is: the beats of one kind of story, each in several wordings, with slots to fill.

A plot is a list of beats, told in order; of each beat one wording is chosen. A plot's `rows` hold
what must fit together in one story: the slots `{thing}` and `{where}` of one row, say. Beyond its
own slots a plot may use those of the cast: `{hero}`, `{helper}`, `{a_helper}`, `{time}`, the
pronouns `{he}`, `{him}`, `{his}` of the hero, and `{hhe}`, `{hhim}`, `{hhis}` of the helper, each
also with a capital. `{joy}`, `{sorrow}` and `{thanks}` stand for one such sentence.
"""

from dataclasses import dataclass

Row = dict[str, str]
Beat = tuple[str, ...]


@dataclass(frozen=True)
class Plot:
    """One kind of story. `lesson` is said before the ending, or not at all."""

    rows: tuple[Row, ...]
    beats: tuple[Beat, ...]
    lesson: Beat


def rows_of(names: str, *values: str) -> tuple[Row, ...]:
    """Make one row of each value, whose fields are parted by ` | ` and named by `names`."""
    return tuple(dict(zip(names.split(), value.split(" | "), strict=True)) for value in values)

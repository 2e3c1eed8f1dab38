"""Defines a plot: the beats of one kind of story, each in several wordings with slots to fill.

A plot is a list of beats in the order of the story; a story uses one wording of each beat. Each of a plot's `rows`
holds values that must be used together in one story, for example those of the slots `{thing}` and `{where}`. A plot can
also use the slots of the cast: `{hero}`, `{helper}`, `{a_helper}`, `{time}`, the hero's pronouns `{he}`, `{him}`,
`{his}`, and the helper's pronouns `{hhe}`, `{hhim}`, `{hhis}`. Each of these also exists with a capital letter.
`{joy}`, `{sorrow}` and `{thanks}` are each replaced by a sentence that expresses that feeling.
"""

from dataclasses import dataclass

Row = dict[str, str]
Beat = tuple[str, ...]


@dataclass(frozen=True)
class Plot:
    """One kind of story. Some stories contain one wording of `lesson` before the ending."""

    rows: tuple[Row, ...]
    beats: tuple[Beat, ...]
    lesson: Beat


def rows_of(names: str, *values: str) -> tuple[Row, ...]:
    """Return one row for each value. The value's fields are separated by ` | ` and named by `names`."""
    return tuple(dict(zip(names.split(), value.split(" | "), strict=True)) for value in values)

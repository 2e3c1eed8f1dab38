"""Pages of lists that are ordered by ids, so that a page begins behind an id that may be gone by now."""

from dataclasses import dataclass, replace
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list: up to `limit` items behind the id `after` and in front of `before`, in the list's order."""

    limit: int
    after: str | None = None
    before: str | None = None
    oldest_first: bool = False

    def without_prefix(self, prefix: str) -> "Page":
        """Return the page of a list whose ids are stored without the prefix that clients see."""
        after, before = (None if id_ is None else id_.removeprefix(prefix) for id_ in (self.after, self.before))
        return replace(self, after=after, before=before)


def page_clauses(wanted: Page) -> tuple[str, str, list[object]]:
    """Return the condition of a page, the end of its statement, and the values of both.

    A page in front of an id is read backwards; `cut_page` turns it around.
    """
    backwards = wanted.before is not None and wanted.after is None
    behind, before = (">", "<") if wanted.oldest_first else ("<", ">")
    conditions, values = ["true"], list[object]()
    for id_, comparison in ((wanted.after, behind), (wanted.before, before)):
        if id_ is not None:
            conditions.append(f'id COLLATE "C" {comparison} %s')
            values.append(id_)
    order = "ASC" if wanted.oldest_first != backwards else "DESC"
    return " AND ".join(conditions), f'ORDER BY id COLLATE "C" {order} LIMIT %s', [*values, wanted.limit + 1]


def cut_page(found: list[T], wanted: Page) -> tuple[list[T], bool]:
    """Return the items of a page in their order, and whether there are more behind it or, read backwards, before it."""
    items, has_more = found[: wanted.limit], len(found) > wanted.limit
    return (items[::-1] if wanted.before is not None and wanted.after is None else items), has_more

"""Regular expressions as values, and the deterministic automaton of one, by Brzozowski's derivatives; pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

#: Most states of an automaton.
MAX_STATES = 1000

#: Disjoint and ascending: first and last code point of each.
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Cat:
    """One after the other; of no parts: the empty text."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """Any of them; of none: no text at all."""

    nodes: frozenset["Node"]


@dataclass(frozen=True, slots=True)
class Rep:
    """So many times in a row; `high` None: any number."""

    node: "Node"
    low: int
    high: int | None


Node = Chars | Cat | Alt | Rep
EMPTY, NOTHING = Cat(()), Alt(frozenset())


@dataclass(frozen=True)
class State:
    """Whether a text may end here, and by which characters it goes on to which state."""

    ends: bool
    moves: dict[int, Ranges]


def cat(nodes: Iterable[Node]) -> Node:
    """The nodes in a row, in the one form that equal rows share."""
    parts: list[Node] = []
    for node in nodes:
        if node == NOTHING:
            return NOTHING
        parts += node.parts if isinstance(node, Cat) else (node,)
    return parts[0] if len(parts) == 1 else Cat(tuple(parts))


def alt(nodes: Iterable[Node]) -> Node:
    """Any of the nodes, in the one form that equal choices share."""
    found: set[Node] = set()
    for node in nodes:
        found |= node.nodes if isinstance(node, Alt) else {node}
    return found.pop() if len(found) == 1 else Alt(frozenset(found))


def rep(node: Node, low: int, high: int | None) -> Node:
    """The node repeated."""
    if high == 0 or node == EMPTY:
        return EMPTY
    if (low, high) == (1, 1):
        return node
    return Rep(node, 0 if may_be_empty(node) else low, high)


def may_be_empty(node: Node) -> bool:
    """Whether the empty text fits."""
    match node:
        case Chars():
            return False
        case Cat(parts):
            return all(map(may_be_empty, parts))
        case Alt(nodes):
            return any(map(may_be_empty, nodes))
        case Rep(inner, low, _):
            return low == 0 or may_be_empty(inner)


def both(one: Ranges, other: Ranges) -> Ranges:
    """The characters that are in both sets."""
    pairs = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return tuple((low, high) for low, high in pairs if low <= high)


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The characters of all ranges, in whatever order and however they overlap."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return tuple(joined)


def without(one: Ranges, other: Ranges) -> Ranges:
    """The characters of `one` that are not in `other`."""
    edges = [-1, *(edge for low, high in other for edge in (low, high)), 1 << 21]
    return both(one, tuple((edges[i] + 1, edges[i + 1] - 1) for i in range(0, len(edges), 2)))


class Search:
    """Makes automata, in so many `steps` of some ten microseconds for all of them together."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def states_of(self, start: Node) -> list[State]:
        """The automaton, its first state first. Only states from which a text leads to an end are led to.

        Raises ValueError when it has too many states, or they are too hard to find.
        """
        found, moves = {start: 0}, list[dict[int, list[tuple[int, int]]]]()
        for node in (waiting := [start]):
            ways: dict[int, list[tuple[int, int]]] = {}
            for piece in _pieces(self._firsts(node)):
                target = self._derived(node, piece[0])
                if target not in found:
                    found[target] = len(found)
                    waiting.append(target)
                ways.setdefault(found[target], []).append(piece)
            moves.append(ways)
            if len(found) > MAX_STATES:
                raise ValueError(f"it comes to over {MAX_STATES} states")
        alive = _alive(moves, {i for node, i in found.items() if may_be_empty(node)})
        return [
            State(may_be_empty(node), {target: union(pieces) for target, pieces in moves[i].items() if target in alive})
            for node, i in found.items()
        ]

    def _step(self, n: int = 1) -> None:
        self._left -= n
        if self._left < 0:
            raise ValueError("it takes too long to be read")

    def _firsts(self, node: Node) -> list[Ranges]:
        """The sets of characters with which the node's texts begin."""
        self._step()
        match node:
            case Chars(ranges):
                return [ranges]
            case Cat(parts):
                found = []
                for part in parts:
                    found += self._firsts(part)
                    if not may_be_empty(part):
                        break
                return found
            case Alt(nodes):
                return [ranges for one in nodes for ranges in self._firsts(one)]
            case Rep(inner, _, _):
                return self._firsts(inner)

    def _derived(self, node: Node, code: int) -> Node:
        """What may follow the character at the beginning of the node's texts."""
        self._step()
        match node:
            case Chars(ranges):
                return EMPTY if any(low <= code <= high for low, high in ranges) else NOTHING
            case Cat(parts):
                ways = []
                for i, part in enumerate(parts):
                    self._step(len(parts) // 16)
                    ways.append(cat([self._derived(part, code), *parts[i + 1 :]]))
                    if not may_be_empty(part):
                        break
                return alt(ways)
            case Alt(nodes):
                return alt(self._derived(one, code) for one in nodes)
            case Rep(inner, low, high):
                left = rep(inner, max(0, low - 1), None if high is None else high - 1)
                return cat([self._derived(inner, code), left])


def _pieces(sets: list[Ranges]) -> list[tuple[int, int]]:
    """All characters of the sets, cut so that each piece is wholly within a set or wholly without."""
    edges = sorted({edge for ranges in sets for low, high in ranges for edge in (low, high + 1)})
    covered = union(pair for ranges in sets for pair in ranges)
    cut = ((low, high - 1) for low, high in pairwise(edges))
    return [piece for piece in cut if both((piece,), covered)]


def _alive(moves: list[dict[int, list[tuple[int, int]]]], ends: set[int]) -> set[int]:
    """The states from which an end can be reached."""
    before: dict[int, list[int]] = {}
    for state, ways in enumerate(moves):
        for target in ways:
            before.setdefault(target, []).append(state)
    alive, waiting = set(ends), list(ends)
    while waiting:
        new = set(before.get(waiting.pop(), ())) - alive
        alive |= new
        waiting += new
    return alive

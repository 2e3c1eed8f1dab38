"""Regular expressions as trees of nodes, and their conversion to deterministic automata (Brzozowski derivatives)."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

#: Maximum number of states that an automaton may have.
MAX_STATES = 1000

#: A set of characters, as disjoint ranges of code points (first, last) in ascending order.
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Chars:
    """Matches a single character, which must be in one of the ranges."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Cat:
    """The concatenation of the parts. If there are no parts, it matches only the empty text."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """Matches what any one of the nodes matches. If there are no nodes, it matches no text at all."""

    nodes: frozenset["Node"]


@dataclass(frozen=True, slots=True)
class Rep:
    """The node, repeated `low` to `high` times. If `high` is None, the number of repetitions has no upper limit."""

    node: "Node"
    low: int
    high: int | None


Node = Chars | Cat | Alt | Rep
EMPTY, NOTHING = Cat(()), Alt(frozenset())


@dataclass(frozen=True)
class State:
    """One state of an automaton.

    `accepting` says whether a text may end in this state. `transitions` maps each target state to the characters that
    lead from this state to the target state.
    """

    accepting: bool
    transitions: dict[int, Ranges]


def cat(nodes: Iterable[Node]) -> Node:
    """Return the concatenation of the nodes. Nested concatenations are flattened, so that equal ones compare equal."""
    parts: list[Node] = []
    for node in nodes:
        if node == NOTHING:
            return NOTHING
        parts += node.parts if isinstance(node, Cat) else (node,)
    return parts[0] if len(parts) == 1 else Cat(tuple(parts))


def alt(nodes: Iterable[Node]) -> Node:
    """Return the alternation of the nodes. Nested alternations are flattened, so that equal ones compare equal."""
    found: set[Node] = set()
    for node in nodes:
        found |= node.nodes if isinstance(node, Alt) else {node}
    return found.pop() if len(found) == 1 else Alt(frozenset(found))


def rep(node: Node, low: int, high: int | None) -> Node:
    """Return the node, repeated `low` to `high` times, in its simplest form, so that equal nodes compare equal."""
    if high == 0 or node == EMPTY:
        return EMPTY
    if (low, high) == (1, 1):
        return node
    return Rep(node, 0 if is_nullable(node) else low, high)


def is_nullable(node: Node) -> bool:
    """Return whether the node matches the empty text."""
    match node:
        case Chars():
            return False
        case Cat(parts):
            return all(map(is_nullable, parts))
        case Alt(nodes):
            return any(map(is_nullable, nodes))
        case Rep(inner, low, _):
            return low == 0 or is_nullable(inner)


def intersection(one: Ranges, other: Ranges) -> Ranges:
    """Return the characters that are in both sets."""
    pairs = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return tuple((low, high) for low, high in pairs if low <= high)


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the characters that are in any of the ranges. The ranges may overlap and be in any order."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return tuple(joined)


def difference(one: Ranges, other: Ranges) -> Ranges:
    """Return the characters of `one` that are not in `other`."""
    edges = [-1, *(edge for low, high in other for edge in (low, high)), 1 << 21]
    return intersection(one, tuple((edges[i] + 1, edges[i + 1] - 1) for i in range(0, len(edges), 2)))


class AutomatonBuilder:
    """Builds automata. All automata of one builder together may take `steps` steps of about ten microseconds each."""

    def __init__(self, steps: int) -> None:
        self._steps_left = steps

    def build(self, start: Node) -> list[State]:
        """Return the states of the node's automaton, the start state first.

        Transitions to a state are omitted if no accepting state can be reached from that state. Raises ValueError if
        the automaton has more than MAX_STATES states, or if the builder's steps are used up.
        """
        found, moves = {start: 0}, list[dict[int, list[tuple[int, int]]]]()
        # The loop also visits the nodes that its body appends to `waiting`.
        for node in (waiting := [start]):
            targets: dict[int, list[tuple[int, int]]] = {}
            for piece in _pieces(self._first_sets(node)):
                target = self._derivative(node, piece[0])
                if target not in found:
                    found[target] = len(found)
                    waiting.append(target)
                targets.setdefault(found[target], []).append(piece)
            moves.append(targets)
            if len(found) > MAX_STATES:
                raise ValueError(f"it needs more than {MAX_STATES} states")
        live = _live_states(moves, {i for node, i in found.items() if is_nullable(node)})
        return [
            State(is_nullable(node), {target: union(pieces) for target, pieces in moves[i].items() if target in live})
            for node, i in found.items()
        ]

    def _spend(self, steps: int = 1) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise ValueError("it takes too long to convert")

    def _first_sets(self, node: Node) -> list[Ranges]:
        """Return sets of characters. Every non-empty text that the node matches begins with a character of one set."""
        self._spend()
        match node:
            case Chars(ranges):
                return [ranges]
            case Cat(parts):
                found = []
                for part in parts:
                    found += self._first_sets(part)
                    if not is_nullable(part):
                        break
                return found
            case Alt(nodes):
                return [ranges for one in nodes for ranges in self._first_sets(one)]
            case Rep(inner, _, _):
                return self._first_sets(inner)

    def _derivative(self, node: Node, code: int) -> Node:
        """Return the Brzozowski derivative of the node.

        The derivative matches a text if the node matches that text with the character `code` in front of it.
        """
        self._spend()
        match node:
            case Chars(ranges):
                return EMPTY if any(low <= code <= high for low, high in ranges) else NOTHING
            case Cat(parts):
                choices = []
                for i, part in enumerate(parts):
                    self._spend(len(parts) // 16)
                    choices.append(cat([self._derivative(part, code), *parts[i + 1 :]]))
                    if not is_nullable(part):
                        break
                return alt(choices)
            case Alt(nodes):
                return alt(self._derivative(one, code) for one in nodes)
            case Rep(inner, low, high):
                rest = rep(inner, max(0, low - 1), None if high is None else high - 1)
                return cat([self._derivative(inner, code), rest])


def _pieces(sets: list[Ranges]) -> list[tuple[int, int]]:
    """Split the union of the sets into ranges, so that each range lies entirely inside or entirely outside each set."""
    edges = sorted({edge for ranges in sets for low, high in ranges for edge in (low, high + 1)})
    covered = union(pair for ranges in sets for pair in ranges)
    cut = ((low, high - 1) for low, high in pairwise(edges))
    return [piece for piece in cut if intersection((piece,), covered)]


def _live_states(moves: list[dict[int, list[tuple[int, int]]]], accepting: set[int]) -> set[int]:
    """Return the states from which an accepting state can be reached."""
    sources: dict[int, list[int]] = {}
    for state, targets in enumerate(moves):
        for target in targets:
            sources.setdefault(target, []).append(state)
    live, waiting = set(accepting), list(accepting)
    while waiting:
        new = set(sources.get(waiting.pop(), ())) - live
        live |= new
        waiting += new
    return live

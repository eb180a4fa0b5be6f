"""A pattern as a non-deterministic automaton whose choices are ordered by preference.

A state waits for one row. What may come after a row that it took is a list of targets, most preferred first: further
states, or ``ACCEPT``. The lists are closed: no target leads on without a row. So a run of the automaton is a sequence
of rows and targets, and of two runs from one row the preferred one is the one with the better target where they part.

A loop whose round took no row ends there and goes on to what follows, as in Trino and Perl. So loops around parts that
can be empty do end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from headrace.errors import UsageError
from headrace.spark.patterns.syntax import (
    Absence,
    Anchor,
    Choice,
    Exclusion,
    Node,
    Repeat,
    Sequence,
    Variable,
)

__all__ = ["ACCEPT", "Automaton", "State", "Target", "compile_pattern"]

ACCEPT = -1
STATES_MAX = 4096

Kind = Literal["row", "seek", "seek_any", "absent_next", "absent_end"]


@dataclass(frozen=True, slots=True)
class State:
    """What is waited for.

    row          the next row has to match the variable
    seek         the next row that matches the variable; rows before it are passed over
    seek_any     the same, and also every later one
    absent_next  the next row must not match; it is not consumed
    absent_end   no row may match until the time of the pattern is over
    """

    kind: Kind
    variable: str
    excluded: bool = False
    forbidden: tuple[str, ...] = ()
    until: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    state: int
    at_start: bool = False
    """Only at the first row of the partition."""
    at_end: bool = False
    """Only after its last row."""


@dataclass(frozen=True, slots=True)
class Automaton:
    states: tuple[State, ...]
    start: tuple[Target, ...]
    after: tuple[tuple[Target, ...], ...]
    """By state: the targets after the row that it took."""

    @property
    def needs_end(self) -> bool:
        """Whether a match may depend on being the last of the partition."""
        return any(target.at_end for targets in (self.start, *self.after) for target in targets)

    @property
    def depths(self) -> dict[str, int]:
        """By variable: how many rows a match has at least before a row of it."""
        found: dict[int, int] = {}
        waiting, depth = {each.state for each in self.start} - {ACCEPT}, 0
        while waiting:  # all states that a row number ``depth`` can be tested by
            held = list(waiting)
            for state in held:  # an absence takes no row
                if self.states[state].kind.startswith("absent"):
                    held += [each.state for each in self.after[state] if each.state not in (ACCEPT, *held)]
            found |= {state: depth for state in held if state not in found}
            taking = [each for each in held if not self.states[each].kind.startswith("absent")]
            waiting = {each.state for state in taking for each in self.after[state]} - {ACCEPT} - set(found)
            depth += 1
        depths: dict[str, int] = {}
        for state, rows in found.items():
            name = self.states[state].variable
            depths[name] = min(rows, depths.get(name, rows))
        return depths

    @property
    def open_ended(self) -> bool:
        """Whether a match can wait without end for a better one: after some row the pattern could be over, and a state
        that can come back to itself is preferred."""
        for number, targets in enumerate(self.after):
            preferred = [each.state for each in targets[: _accepting(targets)]]
            if len(preferred) < len(targets) and any(self._reaches(each, number) for each in preferred):
                return True
        return False

    def _reaches(self, first: int, wanted: int) -> bool:
        found, waiting = set(), [first]
        while waiting:
            state = waiting.pop()
            if state == ACCEPT or state in found:
                continue
            if state == wanted:
                return True
            found.add(state)
            waiting += [each.state for each in self.after[state]]
        return False


def _accepting(targets: tuple[Target, ...]) -> int:
    return next((index for index, each in enumerate(targets) if each.state == ACCEPT), len(targets))


@dataclass(slots=True)
class _Step:
    """An instruction before closing: a state, a choice, an anchor or the end."""

    state: State | None = None
    anchor: Literal["start", "end"] | None = None
    next: tuple[int, ...] = ()
    again: int = -1
    """Of a loop without an upper bound: which of ``next`` begins another round."""


class _Compiler:
    """Builds steps from the end of the pattern to its beginning: each part knows what comes after it."""

    def __init__(self) -> None:
        self.steps: list[_Step] = [_Step()]  # step 0 accepts

    def add(self, step: _Step) -> int:
        if len(self.steps) >= STATES_MAX:
            raise UsageError(f"the pattern needs more than {STATES_MAX} states", "use smaller bounds in {n,m}")
        self.steps.append(step)
        return len(self.steps) - 1

    def compile(self, node: Node, then: int, excluded: bool = False) -> int:
        match node:
            case Variable():
                return self.add(_Step(state=_state_of(node, excluded), next=(then,)))
            case Absence(name=name, contiguity=contiguity):
                kind: Kind = "absent_next" if contiguity == "next" else "absent_end"
                return self.add(_Step(state=State(kind, name), next=(then,)))
            case Sequence(parts=parts):
                for each in reversed(parts):
                    then = self.compile(each, then, excluded)
                return then
            case Choice(options=options):
                return self.add(_Step(next=tuple(self.compile(each, then, excluded) for each in options)))
            case Exclusion(part=part):
                return self.compile(part, then, True)
            case Anchor(at=at):
                return self.add(_Step(anchor=at, next=(then,)))
            case Repeat():
                return self.repeat(node, then, excluded)

    def repeat(self, node: Repeat, then: int, excluded: bool) -> int:
        def ordered(again: int, leave: int) -> tuple[int, ...]:
            return (again, leave) if node.greedy else (leave, again)

        if node.most is None:
            loop = self.add(_Step())
            again = self.compile(node.part, loop, excluded)
            self.steps[loop].next, self.steps[loop].again = ordered(again, then), again
            current = loop
        else:
            current = then
            for _ in range(node.most - node.least):
                current = self.add(_Step(next=ordered(self.compile(node.part, current, excluded), then)))
        for _ in range(node.least):
            current = self.compile(node.part, current, excluded)
        return current


def _state_of(node: Variable, excluded: bool) -> State:
    kinds: dict[str, Kind] = {"next": "row", "followed": "seek", "any": "seek_any"}
    return State(kinds[node.contiguity], node.name, excluded, node.forbidden, node.until)


def compile_pattern(node: Node) -> Automaton:
    compiler = _Compiler()
    first = compiler.compile(node, 0)
    numbers: dict[int, int] = {}
    order: list[int] = []

    def closed(entry: int) -> tuple[Target, ...]:
        targets = []
        for each in _reached(compiler.steps, entry):
            step = each.state
            if step != 0 and step not in numbers:
                numbers[step] = len(order)
                order.append(step)
            targets.append(Target(ACCEPT if step == 0 else numbers[step], each.at_start, each.at_end))
        return tuple(targets)

    start = tuple(each for each in closed(first) if each.state == ACCEPT or not each.at_end)
    after: list[tuple[Target, ...]] = []
    for step in order:  # grows while states are found
        targets = closed(compiler.steps[step].next[0])
        after.append(tuple(each for each in targets if not each.at_start and (each.state == ACCEPT or not each.at_end)))
    states = [each for each in (compiler.steps[step].state for step in order) if each is not None]
    start = tuple(_at_once(each, states, after) for each in start)
    return Automaton(tuple(states), start, tuple(after))


def _at_once(target: Target, states: list[State], after: list[tuple[Target, ...]]) -> Target:
    """A match begins with its first row: a state that seeks a row has a twin that takes this one."""
    if target.state == ACCEPT or not states[target.state].kind.startswith("seek"):
        return target
    states.append(replace(states[target.state], kind="row", forbidden=(), until=()))
    after.append(after[target.state])
    return replace(target, state=len(states) - 1)


class _Place(NamedTuple):
    """A step that is reached without a row, and what is known of the way to it."""

    step: int
    at_start: bool = False
    at_end: bool = False
    rounds: frozenset[int] = frozenset()
    """The loops of which a round has begun since the last row. If it comes back to its loop, it took no row."""


def _reached(steps: list[_Step], entry: int) -> list[Target]:
    """What is reached without a row, by preference. Targets carry the number of their step here."""
    found: dict[Target, None] = {}
    seen: set[_Place] = set()
    waiting = [_Place(entry)]
    while waiting:  # depth first
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        step = steps[place.step]
        at_start = place.at_start or step.anchor == "start"
        at_end = place.at_end or step.anchor == "end"
        if place.step == 0 or step.state is not None:
            found.setdefault(Target(place.step, at_start, at_end))
            continue
        for each in reversed(step.next):
            rounds = place.rounds
            if step.again >= 0:
                if each == step.again and place.step in rounds:
                    continue
                rounds = rounds | {place.step} if each == step.again else rounds - {place.step}
            waiting.append(_Place(each, at_start, at_end, rounds))
    return list(found)

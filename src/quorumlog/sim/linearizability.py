"""Whether a history of operations is linearizable: as if each had happened at one moment.

A moment between an operation's invocation and its return, that is; which moment is not known, so
an order is searched in which every operation returned what it did. This is the search of Wing and
Gong ("Testing and verifying concurrent objects", 1993), with Lowe's memory of what was tried
("Testing for linearizability", 2017), each key by itself, as Porcupine does it. Four rules beyond
that keep it short, and change no verdict:

- A read that fits is taken at once and never reconsidered: it changes nothing, so any order that
  has it later is as good with it now.
- An operation of unknown outcome may be left out for ever, so where the same completed ones led to
  the same state, whoever used up fewer of the unknown ones can do all that the other can. They
  are therefore tried last, and only in front of a completed one.
- Of unknown operations that do the same, the one invoked first is used first.
- A state is not left while somebody still needs it whom nothing that is left can bring back to it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple

from quorumlog.model.errors import QuorumlogError
from quorumlog.sim.operations import (
    CounterModel,
    Kind,
    Model,
    Operation,
    RegisterModel,
    State,
    Value,
)

__all__ = [
    "CounterModel",
    "Kind",
    "Model",
    "Operation",
    "RegisterModel",
    "UndecidedError",
    "Violation",
    "check",
]

STEPS_MAX = 5_000_000
"""Steps of the model in the search for one key (some seconds); beyond, nothing is claimed."""
SHOWN_MAX = 8
"""How many operations of a sort a violation shows."""
NEVER = float("inf")


class UndecidedError(QuorumlogError):
    """The search was given up: the history may be linearizable or not."""


@dataclass(frozen=True, slots=True)
class Violation:
    """No order explains what a key's operations returned.

    `reason` is for people. `operations` are those around: the end of an order of all that had
    returned before, and then the one (or those) whose return no order explains any more.
    """

    key: bytes
    reason: str
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        return self.reason


def check(
    history: Iterable[Operation], model: Model[State], *, steps_max: int = STEPS_MAX
) -> Violation | None:
    """Return the first key's violation, or None: the history is linearizable.

    Raises `UndecidedError` when a key took more than `steps_max` and no other is violated.
    """
    keys: dict[bytes, list[Operation]] = {}
    for operation in history:
        keys.setdefault(operation.key, []).append(operation)
    undecided: UndecidedError | None = None
    for key, operations in keys.items():
        try:
            if _Search(key, operations, model, steps_max).run() is None:
                return _explain(key, operations, model, steps_max)
        except UndecidedError as error:
            undecided = undecided or error
    if undecided is not None:
        raise undecided
    return None


class _Done(NamedTuple):
    """Which completed operations are ordered: all before `base`, and base + n for each bit n."""

    base: int
    mask: int

    def with_(self, index: int) -> "_Done":
        """Return the same with one more."""
        mask = self.mask | 1 << (index - self.base)
        ones = (~mask & (mask + 1)).bit_length() - 1
        return _Done(self.base + ones, mask >> ones)

    def lacks_any(self, indexes: list[int]) -> bool:
        """Return whether one of these (rising) is not among them."""
        for index in reversed(indexes):
            if index < self.base:
                return False
            if not self.mask >> (index - self.base) & 1:
                return True
        return False


class _Detour(NamedTuple, Generic[State]):
    """A state that unknown operations lead to; `used` has the bits of all used so far."""

    state: State
    used: int
    path: tuple[Operation, ...]


@dataclass(slots=True)
class _Node(Generic[State]):
    """An order of some operations, and what can come next.

    `moves` are those after the parent's. `waiting` are the completed ones that nothing unordered
    precedes, `horizon` is when the first of them had returned, `options` are those that fit, with
    the state after them.
    """

    parent: "_Node[State] | None"
    moves: list[Operation]
    done: _Done
    state: State
    used: int
    waiting: list[int]
    horizon: float
    options: list[tuple[int, State]]


class _Search(Generic[State]):
    """A search for an order of one key's operations, depth first."""

    def __init__(
        self, key: bytes, operations: list[Operation], model: Model[State], steps_max: int
    ) -> None:
        self._key = key
        self._model = model
        self._steps_left = self._steps_max = steps_max
        ordered = sorted(operations, key=lambda operation: operation.invoked)
        self._completed = [each for each in ordered if each.returned is not None]
        self._returned = [each.returned for each in self._completed if each.returned is not None]
        self._unknown = [
            each for each in ordered if each.returned is None and not model.is_read(each)
        ]
        self._unknown_invoked = [each.invoked for each in self._unknown]
        self._twins = _twins(self._unknown)
        self._is_read = [model.is_read(each) for each in self._completed]
        self._needing: dict[tuple[State], list[int]] = {}
        self._making: dict[tuple[State] | None, list[int]] = {}
        self._making_unknown: dict[tuple[State] | None, int] = {}
        self._index_states()
        self._tried: dict[tuple[_Done, State], list[int]] = {}
        self._detours_known: dict[
            tuple[State, int, int], tuple[list[_Detour[State]], Iterator[_Detour[State]]]
        ] = {}

    def _index_states(self) -> None:
        """Record which operations need which state, and which can make it (None: any)."""
        for index, operation in enumerate(self._completed):
            needed = self._model.needs(operation)
            if needed is not None:
                self._needing.setdefault(needed, []).append(index)
            if not self._is_read[index]:
                self._making.setdefault(self._model.makes(operation), []).append(index)
        for index, operation in enumerate(self._unknown):
            made = self._model.makes(operation)
            self._making_unknown[made] = self._making_unknown.get(made, 0) | 1 << index

    def run(self) -> _Node[State] | None:
        """Return an order of all completed operations, or None: there is none."""
        start, initial = _Done(0, 0), self._model.initial
        if any(state != initial and self._is_lost(state, start, 0) for (state,) in self._needing):
            return None
        root = self._reach(None, [], start, initial, 0)
        stack = [iter([] if root is None else [root])]
        while stack:
            node = next(stack[-1], None)
            if node is None:
                stack.pop()
            elif not node.waiting:
                return node
            else:
                stack.append(self._successors(node))
        return None

    # -- moves --------------------------------------------------------------------------------

    def _successors(self, node: _Node[State]) -> Iterator[_Node[State]]:
        """Order one more completed operation: at once, then after more and more unknown ones."""
        returned = self._returned
        for index, state in sorted(node.options, key=lambda option: returned[option[0]]):
            here = _Detour(node.state, node.used, ())
            successor = self._move(node, here, index, state)
            if successor is not None:
                yield successor
        for detour in self._detours(node):
            for index in node.waiting:
                fits, state = self._step(detour.state, self._completed[index])
                if fits and (index, state) not in node.options:
                    successor = self._move(node, detour, index, state)
                    if successor is not None:
                        yield successor

    def _move(
        self, node: _Node[State], detour: _Detour[State], index: int, state: State
    ) -> _Node[State] | None:
        """Go a detour and order a completed operation; None: nothing can come of it."""
        done, used = node.done.with_(index), detour.used
        for left in (node.state, detour.state):
            if left != state and self._is_lost(left, done, used):
                return None
        moves = [*detour.path, self._completed[index]]
        return self._reach(node, moves, done, state, used)

    def _is_lost(self, state: State, done: _Done, used: int) -> bool:
        """Return whether somebody needs a state that nothing leads to any more."""
        if not done.lacks_any(self._needing.get((state,), [])):
            return False
        return not any(
            done.lacks_any(self._making.get(made, [])) or self._making_unknown.get(made, 0) & ~used
            for made in ((state,), None)
        )

    def _reach(
        self,
        parent: _Node[State] | None,
        moves: list[Operation],
        done: _Done,
        state: State,
        used: int,
    ) -> _Node[State] | None:
        """Return the order with these moves more, and all reads that then fit.

        None: one that can do as much was tried before.
        """
        if not self._is_new(done, state, used):
            return None
        before = done
        while True:
            waiting, horizon = self._waiting(done)
            outcomes = [(index, *self._step(state, self._completed[index])) for index in waiting]
            reads = [index for index, fits, _ in outcomes if fits and self._is_read[index]]
            if not reads:
                break
            for index in reads:
                done = done.with_(index)
                moves.append(self._completed[index])
        if done != before and not self._is_new(done, state, used):
            return None
        options = [(index, after) for index, fits, after in outcomes if fits]
        return _Node(parent, moves, done, state, used, waiting, horizon, options)

    def _is_new(self, done: _Done, state: State, used: int) -> bool:
        """Remember what is tried now; False: the same was, with no other unknown ones used."""
        tried = self._tried.setdefault((done, state), [])
        if any(less & ~used == 0 for less in tried):
            return False
        tried.append(used)
        return True

    def _waiting(self, done: _Done) -> tuple[list[int], float]:
        """Return the completed operations that may come next, and when the first had returned."""
        waiting: list[int] = []
        horizon = NEVER
        free = ~done.mask
        while True:
            lowest = free & -free
            index = done.base + lowest.bit_length() - 1
            if index >= len(self._completed) or self._completed[index].invoked > horizon:
                return waiting, horizon
            waiting.append(index)
            horizon = min(horizon, self._returned[index])
            free ^= lowest

    def _step(self, state: State, operation: Operation) -> tuple[bool, State]:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise UndecidedError(
                f"key {self._key!r}: no verdict on {len(self._completed)} completed and "
                f"{len(self._unknown)} unknown operations within {self._steps_max} steps"
            )
        return self._model.step(state, operation)

    # -- unknown operations -------------------------------------------------------------------

    def _detours(self, node: _Node[State]) -> Iterator[_Detour[State]]:
        """Yield the states that unknown operations lead to; found once, and only when asked for."""
        available = bisect_right(self._unknown_invoked, node.horizon)
        begin = (node.state, node.used, available)
        if begin not in self._detours_known:
            self._detours_known[begin] = ([], self._find_detours(*begin))
        found, more = self._detours_known[begin]
        position = 0
        while True:
            if position == len(found):
                detour = next(more, None)
                if detour is None:
                    return
                found.append(detour)
            yield found[position]
            position += 1

    def _find_detours(self, state: State, used: int, available: int) -> Iterator[_Detour[State]]:
        """Yield shorter ones first, and none that uses more than another to the same state."""
        level = [_Detour(state, used, ())]
        fewest: dict[State, list[int]] = {state: [used]}
        while level:
            longer: list[_Detour[State]] = []
            for detour in level:
                for index in range(available):
                    bit, twin = 1 << index, self._twins[index]
                    if detour.used & bit or detour.used & twin != twin:
                        continue
                    operation = self._unknown[index]
                    fits, after = self._step(detour.state, operation)
                    mask = detour.used | bit
                    known = fewest.setdefault(after, [])
                    if not fits or any(less & ~mask == 0 for less in known):
                        continue
                    known.append(mask)
                    longer.append(_Detour(after, mask, (*detour.path, operation)))
                    yield longer[-1]
            level = longer


def _twins(unknown: list[Operation]) -> list[int]:
    """Return for each operation the bit of the last before it that does the same; 0: none."""
    last: dict[tuple[Kind, Value, Value], int] = {}
    twins = []
    for index, operation in enumerate(unknown):
        does = (operation.kind, operation.value, operation.expected)
        twins.append(last.get(does, 0))
        last[does] = 1 << index
    return twins


def _order(node: _Node[State]) -> list[Operation]:
    """Return all operations of an order, first one first."""
    moves: list[list[Operation]] = []
    before: _Node[State] | None = node
    while before is not None:
        moves.append(before.moves)
        before = before.parent
    return [operation for part in reversed(moves) for operation in part]


# -- report -----------------------------------------------------------------------------------


def _until(operations: list[Operation], time: int) -> list[Operation]:
    """Return what was known of a history at a time."""
    return [
        replace(operation, returned=None, result=None)
        if operation.returned is not None and operation.returned > time
        else operation
        for operation in operations
        if operation.invoked <= time
    ]


def _explain(
    key: bytes, operations: list[Operation], model: Model[State], steps_max: int
) -> Violation:
    """Find the first return that no order explains: every prefix of a good history is good."""
    times = sorted({each.returned for each in operations if each.returned is not None})
    good, bad = -1, len(times) - 1
    order: list[Operation] = []
    state = model.initial
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            node = _Search(key, _until(operations, times[middle]), model, steps_max).run()
        except UndecidedError:
            break
        if node is None:
            bad = middle
        else:
            good, order, state = middle, _order(node), node.state
    unexplained = [
        each
        for each in operations
        if each.returned is not None and times[good + 1] <= each.returned <= times[bad]
    ]
    open_then = [each for each in _until(operations, times[bad]) if each.returned is None]
    shown = order[-SHOWN_MAX:]
    lines = [
        f"key {key!r} is not linearizable: no order explains what had returned at {times[bad]}",
        f"all that had returned before can be ordered ({len(order)} operations), one order ends:",
        *(f"  {operation}" for operation in shown),
        f"state then: {state!r}",
        "what no order explains together with these:",
        *(f"  {operation}" for operation in unexplained),
        f"not returned by then, {len(open_then)} (may have happened or not), the last of them:",
        *(f"  {operation}" for operation in open_then[-SHOWN_MAX:]),
    ]
    return Violation(key, "\n".join(lines), (*shown, *unexplained))

"""Operations on replicated objects as clients saw them, and what such objects do one at a time."""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

Value = bytes | int | None
State = TypeVar("State", bound=Hashable)


class Kind(Enum):
    """What an operation does; `Operation` says with what."""

    PUT = "put"
    GET = "get"
    DELETE = "delete"
    COMPARE_AND_SET = "compare_and_set"
    ADD = "add"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a client, with times of any rising clock.

    `value` is what is put, set or added; `expected` what a compare-and-set compares with.
    `result`: what a get read; whether a compare-and-set took place, or a delete found something;
    the total after an add. None of any operation but a get: the result is not known. `returned`
    None: the outcome is unknown, and it may have happened at any time since, or never. Operations
    that certainly did not happen are left out of a history. Two operations of which one returned
    at the moment in which the other was invoked overlap.
    """

    client: int
    key: bytes
    kind: Kind
    invoked: int
    returned: int | None
    value: Value = None
    expected: Value = None
    result: Value = None

    def __post_init__(self) -> None:
        if self.returned is None and self.result is not None:
            raise ValueError(f"an operation of unknown outcome has no result: {self}")
        if self.returned is not None and self.returned < self.invoked:
            raise ValueError(f"an operation returned before it was invoked: {self}")

    def __str__(self) -> str:
        until = "?" if self.returned is None else self.returned
        is_known = self.result is not None or (self.kind is Kind.GET and self.returned is not None)
        result = f" -> {self.result!r}" if is_known else ""
        return f"[{self.invoked}, {until}] client {self.client}: {self._call()}{result}"

    def _call(self) -> str:
        match self.kind:
            case Kind.PUT | Kind.ADD:
                return f"{self.kind.value} {self.value!r}"
            case Kind.COMPARE_AND_SET:
                return f"{self.kind.value} {self.expected!r} to {self.value!r}"
        return f"{self.kind.value}"


class Model(Protocol[State]):
    """What one key is, when its operations come one at a time."""

    @property
    def initial(self) -> State:
        """The state before the first operation."""
        ...

    def step(self, state: State, operation: Operation, /) -> tuple[bool, State]:
        """Return whether the operation can have had its result here, and the state after it.

        Without side effects. One of unknown outcome has no result, so it fits wherever it can
        happen. Raises `ValueError` for a kind that is none of the model's.
        """
        ...

    def is_read(self, operation: Operation, /) -> bool:
        """Return whether it changes no state at all in which it can have had its result."""
        ...

    def needs(self, operation: Operation, /) -> tuple[State] | None:
        """Return the only state in which it can have had its result; None: there are several."""
        ...

    def makes(self, operation: Operation, /) -> tuple[State] | None:
        """Return the only state that it can change another to; None: there are several."""
        ...


@dataclass(frozen=True, slots=True)
class RegisterModel:
    """A value or None (nothing there): put, get, delete, compare-and-set."""

    initial: Value = None

    def step(self, state: Value, operation: Operation, /) -> tuple[bool, Value]:
        """See `Model`."""
        match operation.kind:
            case Kind.PUT:
                return True, operation.value
            case Kind.GET:
                return operation.result == state, state
            case Kind.DELETE:
                return operation.result in (None, state is not None), None
            case Kind.COMPARE_AND_SET:
                holds = state == operation.expected
                return operation.result in (None, holds), operation.value if holds else state
        raise ValueError(f"no operation of a register: {operation}")

    def is_read(self, operation: Operation, /) -> bool:
        """See `Model`."""
        may_find_nothing = operation.kind in (Kind.DELETE, Kind.COMPARE_AND_SET)
        return operation.kind is Kind.GET or (may_find_nothing and operation.result is False)

    def needs(self, operation: Operation, /) -> tuple[Value] | None:
        """See `Model`."""
        match operation.kind, operation.result:
            case Kind.GET, _:
                return (operation.result,)
            case Kind.COMPARE_AND_SET, True:
                return (operation.expected,)
            case Kind.DELETE, False:
                return (None,)
        return None

    def makes(self, operation: Operation, /) -> tuple[Value] | None:
        """See `Model`."""
        return (None if operation.kind is Kind.DELETE else operation.value,)


@dataclass(frozen=True, slots=True)
class CounterModel:
    """A total: add returns the new one, get the present one."""

    initial: int = 0

    def step(self, state: int, operation: Operation, /) -> tuple[bool, int]:
        """See `Model`."""
        if operation.kind is Kind.GET:
            return operation.result == state, state
        if operation.kind is Kind.ADD and isinstance(operation.value, int):
            total = state + operation.value
            return operation.result in (None, total), total
        raise ValueError(f"no operation of a counter: {operation}")

    def is_read(self, operation: Operation, /) -> bool:
        """See `Model`."""
        return operation.kind is Kind.GET

    def needs(self, operation: Operation, /) -> tuple[int] | None:
        """See `Model`."""
        match operation.kind, operation.result, operation.value:
            case Kind.ADD, int(total), int(added):
                return (total - added,)
            case Kind.GET, int(total), _:
                return (total,)
        return None

    def makes(self, operation: Operation, /) -> tuple[int] | None:
        """See `Model`."""
        return (operation.result,) if isinstance(operation.result, int) else None

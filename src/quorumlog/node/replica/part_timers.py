"""When the parts of a replica are due: one deadline for the whole replica."""

from collections.abc import Sequence
from typing import Protocol

from quorumlog.node.replica.context import ReplicaContext

TICK_MS = 5
"""Timers may be late by this: asking all parts after each event would cost more than the event."""


class Timed(Protocol):
    """A part that has something to do at certain times."""

    def tick(self, now_ms: int) -> None:
        """Do what is due."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When something is due next; None: nothing will be."""
        ...


class PartTimers:
    """Ticks the parts of one replica; `writing` are those that stop once a write has failed."""

    def __init__(
        self, context: ReplicaContext, parts: Sequence[Timed], writing: Sequence[Timed]
    ) -> None:
        self._context = context
        self._parts = parts
        self._writing = writing
        self._not_before_ms = 0

    def tick(self, now_ms: int) -> None:
        """Let all parts do what is due."""
        for part in self._parts:
            part.tick(now_ms)
        if not self._context.health_text:
            for part in self._writing:
                part.tick(now_ms)

    def wake(self) -> None:
        """Have the replica ticked when the next thing is due.

        All changes of the next milliseconds are handled together, in one tick after them.
        """
        environment = self._context.environment
        now_ms = environment.now_ms()
        if now_ms < self._not_before_ms:
            environment.wake_at(self._not_before_ms)
            return
        self._not_before_ms = now_ms + TICK_MS
        due_ms = self._context.core.next_deadline_ms()
        for part in self._parts:
            deadline_ms = part.next_deadline_ms()
            if deadline_ms is not None and deadline_ms < due_ms:
                due_ms = deadline_ms
        if not self._context.health_text:
            for part in self._writing:
                deadline_ms = part.next_deadline_ms()
                if deadline_ms is not None and deadline_ms < due_ms:
                    due_ms = deadline_ms
        environment.wake_at(due_ms)

"""The sessions in which a client sends commands, so that each is executed once.

A session has one block under way, so a block is always the next one or a repetition of the last.
With several sessions several blocks are under way at a time, in no particular order. After an
unknown outcome a session is not used again, since nobody knows which block was its last.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from quorumlog.model.errors import LeaderPendingFullError

COMMAND_SESSIONS_MAX = 64
"""Blocks of commands of one client that are under way at a time; more wait."""


@dataclass(slots=True)
class CommandSession:
    """A producer session of commands."""

    producer_id: int
    next_sequence: int = 0


class CommandSessions:
    """The sessions of one client; the one that was used last is used next."""

    def __init__(self) -> None:
        self._free: list[CommandSession] = []
        self._slots = asyncio.Semaphore(COMMAND_SESSIONS_MAX)

    @asynccontextmanager
    async def one(self, limit_ms: float) -> AsyncGenerator[CommandSession, None]:
        """Lend a session; an error while it is lent ends it.

        Raises `LeaderPendingFullError` when none becomes free within limit_ms.
        """
        try:
            async with asyncio.timeout(limit_ms / 1_000):
                await self._slots.acquire()
        except TimeoutError:
            raise LeaderPendingFullError(
                f"{COMMAND_SESSIONS_MAX} blocks of commands are under way, and none was answered "
                f"within {limit_ms:.0f} ms"
            ) from None
        try:
            session = self._free.pop() if self._free else CommandSession(secrets.randbits(63))
            yield session
            self._free.append(session)
        finally:
            self._slots.release()

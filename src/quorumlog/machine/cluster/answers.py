"""Results of commands that may come again, so that each command is applied once.

The nodes that give commands number them, and say with each one which of the earlier ones they still
wait for. So a result is kept for as long as its command may come again, however many others are
applied meanwhile.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

COMMANDS_MAX: Final = 2_048
"""Commands of one session that may be without an answer."""
SESSIONS_MAX: Final = 256
"""Sessions that are remembered; the one whose last command is the longest ago is forgotten first.
There are 50 brokers, and each start of a node makes two sessions."""
BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of results. Above it the oldest are forgotten, but not that they were applied."""
SESSION_BYTES: Final = 8
"""Bytes of a session's id."""
NUMBER_BYTES: Final = 8
"""Bytes of a command's number."""
NO_RESULT: Final = b""
"""Instead of the result of a command that was applied: it was too large to be kept."""
OVER: Final = "the node that gave this command does not wait for it any more"
AHEAD: Final = "a session has at most {} commands without an answer"


def command_id(session: bytes, number: int) -> bytes:
    """Return the id of a command."""
    return session + number.to_bytes(NUMBER_BYTES)


def _parts(identity: bytes) -> tuple[bytes, int]:
    return identity[:SESSION_BYTES], int.from_bytes(identity[SESSION_BYTES:])


@dataclass(slots=True)
class _Session:
    """One run of a node: it waits for no command below `lowest`."""

    lowest: int = 0
    results: dict[int, bytes] = field(default_factory=dict)


class Answers:
    """The results that are remembered. Equal histories lead to equal tables."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, _Session] = {}
        self._bytes = 0

    def find(self, identity: bytes) -> bytes | None:
        """Return the result of a command, or `NO_RESULT`; None: it was not applied."""
        session, number = _parts(identity)
        known = self._sessions.get(session)
        return None if known is None else known.results.get(number)

    def refusal(self, identity: bytes, lowest: int | None) -> str:
        """Return why a command is not applied; empty: it is, as it was not before.

        `lowest`: the first command of its session that has no answer yet; None: it is not told.
        """
        session, number = _parts(identity)
        known = self._sessions.get(session)
        if known is not None and number < known.lowest:
            return OVER
        if lowest is not None and number - lowest >= COMMANDS_MAX:
            return AHEAD.format(COMMANDS_MAX)
        return ""

    def remember(self, identity: bytes, lowest: int | None, result: bytes) -> None:
        """Remember the result of a command, and forget those that its node does not wait for."""
        name, number = _parts(identity)
        session = self._sessions.pop(name, None) or _Session()
        self._sessions[name] = session  # the last one now
        session.results[number] = result
        self._bytes += len(result)
        lowest = number if lowest is None else lowest
        if lowest > session.lowest:
            session.lowest = lowest
            for over in [one for one in session.results if one < lowest]:
                self._bytes -= len(session.results.pop(over))
        while len(self._sessions) > SESSIONS_MAX:
            self._forget(next(iter(self._sessions)))
        if self._bytes > BYTES_MAX:
            self._shrink()

    def _forget(self, name: bytes) -> None:
        self._bytes -= sum(map(len, self._sessions.pop(name).results.values()))

    def _shrink(self) -> None:
        for session in self._sessions.values():
            for number, result in session.results.items():
                if self._bytes <= BYTES_MAX:
                    return
                session.results[number] = NO_RESULT
                self._bytes -= len(result)

    # -- as a whole ---------------------------------------------------------------------------

    def saved(self) -> tuple[list[tuple[bytes, bytes]], list[tuple[bytes, int]]]:
        """Return all results by the ids of their commands, and the `lowest` of all sessions."""
        results = [
            (command_id(name, number), result)
            for name, session in self._sessions.items()
            for number, result in session.results.items()
        ]
        return results, [(name, session.lowest) for name, session in self._sessions.items()]

    @classmethod
    def restored(
        cls, results: Iterable[tuple[bytes, bytes]], sessions: Iterable[tuple[bytes, int]]
    ) -> "Answers":
        """Return what `saved` was made of. Results of unknown sessions are from before these."""
        answers = cls()
        answers._sessions = {name: _Session(lowest) for name, lowest in sessions}
        for identity, result in results:
            name, number = _parts(identity)
            if name in answers._sessions:
                answers._sessions[name].results[number] = result
                answers._bytes += len(result)
            else:
                answers.remember(identity, None, result)
        return answers

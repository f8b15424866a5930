"""Lines in the log about clients: each client has one a minute, however often it errs.

Neither do many names fill the log, nor long ones, nor does what they send become more than text in
a line (`model.wording.foreign`).
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from quorumlog.auth.hosts import without_port
from quorumlog.log_events import FieldValue, log_event
from quorumlog.model.wording import TEXT_LENGTH_MAX, foreign

CLIENTS_MAX: Final = 1_024
"""Clients whose last line is remembered, and as many of whose last fault is. While all had it
within the last minute, no other client has one."""
PAUSE_S: Final = 60.0
"""Time between two lines about a client, in seconds."""
_Client: TypeAlias = tuple[str, str]
"""Its id and its host."""
_Lines: TypeAlias = dict[_Client, tuple[float, int]]
"""When the last line about each client was written, the longest ago first, and how many were left
out since."""


class ClientLines:
    """Writes lines about clients; `now` is in seconds."""

    def __init__(self, logger: logging.Logger, now: Callable[[], float]) -> None:
        self._logger = logger
        self._now = now
        self._last: dict[int, _Lines] = {logging.WARNING: {}, logging.ERROR: {}}
        """By level: clients that err, however many, keep no fault of this node out of the log."""

    def warn(self, event: str, client_id: str, address: str, **fields: FieldValue) -> None:
        """Write a line about a client, unless it had one within the last minute.

        A client is its id and the host in `address`: each connection has another port. With no id,
        all connections of a host are one client. Texts are shortened, and made printable.
        """
        self._write(logging.WARNING, event, (client_id, address), None, fields)

    def fault(
        self, event: str, client_id: str, address: str, error: Exception, **fields: FieldValue
    ) -> None:
        """Write a line with a traceback about a client whose request has met a fault of this node.

        A client has one a minute of these, too.
        """
        self._write(logging.ERROR, event, (client_id, address), error, fields)

    def _write(
        self,
        level: int,
        event: str,
        client: tuple[str, str],
        error: Exception | None,
        fields: Mapping[str, FieldValue],
    ) -> None:
        client_id, address = foreign(client[0]), client[1]
        left_out = self._left_out(self._last[level], (client_id, without_port(address)))
        if left_out is None:
            return
        told = {
            name: foreign(value, TEXT_LENGTH_MAX) if isinstance(value, str) else value
            for name, value in fields.items()
        }
        if client_id:
            told = {"client": client_id, **told}
        if left_out:
            told["lines_left_out"] = left_out
        log_event(
            self._logger,
            level,
            event,
            exc_info=error,
            **told,
            remote=address,
        )

    def _left_out(self, lines: _Lines, client: _Client) -> int | None:
        """Return how many lines were left out before this one; None: it is left out, too."""
        now = self._now()
        known = lines.get(client)
        if known is not None:
            since, left_out = known
            if now - since < PAUSE_S:
                lines[client] = (since, left_out + 1)
                return None
            del lines[client]
        elif len(lines) >= CLIENTS_MAX:
            first = next(iter(lines))
            if now - lines[first][0] < PAUSE_S:
                return None
            del lines[first]
        lines[client] = (now, 0)
        return 0 if known is None else known[1]

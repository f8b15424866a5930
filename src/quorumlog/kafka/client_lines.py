"""Lines in the log about clients: each client has one a minute, however often it errs."""

import logging
from collections.abc import Callable
from typing import Final

from quorumlog.log_events import FieldValue, log_event

CLIENTS_MAX: Final = 1_024
"""Clients whose last line is remembered; that of the one longest ago is forgotten first."""
PAUSE_S: Final = 60.0
"""Time between two lines about a client, in seconds."""


class ClientLines:
    """Writes lines about clients; `now` is in seconds."""

    def __init__(self, logger: logging.Logger, now: Callable[[], float]) -> None:
        self._logger = logger
        self._now = now
        self._last: dict[tuple[str, str], tuple[float, int]] = {}
        """When the last line about each client was written, the longest ago first, and how many
        were left out since."""

    def warn(self, event: str, client_id: str, address: str, **fields: FieldValue) -> None:
        """Write a line about a client, unless it had one within the last minute.

        A client is its id and the host in `address`: each connection has another port.
        """
        client = (client_id, address.rpartition(":")[0])
        now = self._now()
        since, left_out = self._last.get(client, (now - PAUSE_S, 0))
        if now - since < PAUSE_S:
            self._last[client] = (since, left_out + 1)
            return
        self._last.pop(client, None)
        if len(self._last) >= CLIENTS_MAX:
            del self._last[next(iter(self._last))]
        self._last[client] = (now, 0)
        more: dict[str, FieldValue] = {"lines_left_out": left_out} if left_out else {}
        log_event(
            self._logger,
            logging.WARNING,
            event,
            client=client_id,
            remote=address,
            exc_info=None,
            **fields,
            **more,
        )

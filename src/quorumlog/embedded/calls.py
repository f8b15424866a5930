"""Calls of the program that wait for an answer of its node."""

import asyncio
from typing import Any

from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import Outcome, RequestError, UnexpectedArgumentError


class Calls:
    """The calls to one node that have no answer yet; they end when the node does.

    There are as many as the node's limits let wait: appends (`pendingRequestsMax`), fetches
    (`fetchWaitersMax`), and what else a replica bounds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: set[asyncio.Future[Any]] = set()
        self._ended_text = ""

    def check_loop(self) -> None:
        """Raise `UnexpectedArgumentError` in another event loop than the node's."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is not self._loop:
            raise UnexpectedArgumentError(
                "a node is used in the event loop in which it was started; from another thread, "
                "asyncio.run_coroutine_threadsafe has a coroutine run there"
            )

    def check(self) -> None:
        """Raise `RequestError` in another event loop than the node's, or if the node has ended."""
        self.check_loop()
        if self._ended_text:
            error = self._error()
            error.outcome = Outcome.DID_NOT_HAPPEN
            raise error

    def new(self) -> "asyncio.Future[Any]":
        """Return a future for the answer to a call."""
        future = self._loop.create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future

    def end(self, text: str) -> None:
        """Refuse all later calls; those that wait fail, and it is unknown what becomes of them."""
        self._ended_text = self._ended_text or text
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(self._error())

    def _error(self) -> RequestError:
        return RequestError(self._ended_text, code=ResponseCode.NODE_STOPPING)

"""The thread pool as one group sees it: its jobs can be ended, so that its files may be closed."""

import threading
from collections.abc import Callable
from typing import TypeVar

from quorumlog.model.errors import UnknownGroupError
from quorumlog.node.environment import Executor

T = TypeVar("T")


class GroupExecutor:
    """An `Executor` for one group; its methods run on the loop's thread, as all callbacks do.

    Once it is ended no job begins. Those of clients fail with an `UnknownGroupError`, which is
    their answer; those of the node itself are dropped.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = threading.Lock()
        self._under_way = 0
        self._reason = ""
        self._on_idle: Callable[[], None] | None = None

    def run(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        client: object = None,
        dropped: Callable[[], None] | None = None,
    ) -> None:
        """See `Executor`."""
        has_begun = False

        def guarded() -> T:
            nonlocal has_begun
            with self._lock:  # on a thread
                if self._reason:
                    raise UnknownGroupError(self._reason)
                self._under_way += 1
                has_begun = True
            return work()

        def has_failed(error: Exception) -> None:
            if self._reason and not has_begun and client is None:
                return
            try:
                failed(error)
            finally:
                self._finish(has_begun=has_begun)

        def has_finished(result: T) -> None:
            try:
                done(result)
            finally:
                self._finish(has_begun=True)

        def was_dropped() -> None:
            try:
                if dropped is not None:
                    dropped()
            finally:
                self._finish(has_begun=True)

        self._executor.run(guarded, has_finished, has_failed, client, was_dropped)

    def _finish(self, *, has_begun: bool) -> None:
        """A job has ended, and its callback was called."""
        with self._lock:
            self._under_way -= has_begun
            is_idle = not self._under_way
        if is_idle and self._on_idle is not None:
            idle, self._on_idle = self._on_idle, None
            idle()

    def end(self, reason: str, idle: Callable[[], None]) -> None:
        """Let no job begin any more; `idle` is called once none is under way, maybe at once."""
        with self._lock:
            self._reason = reason
            is_idle = not self._under_way
        if is_idle:
            idle()
        else:
            self._on_idle = idle

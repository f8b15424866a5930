"""`MachineCalls` for code without an event loop."""

from collections.abc import Iterable

from quorumlog.client.loop_thread import LoopThread
from quorumlog.client.machine_calls import MachineCalls
from quorumlog.client.results import Executed, Queried
from quorumlog.model.block import Buffer


class SyncMachineCalls:
    """The state machine of the group of a `SyncClient`; get it as `client.machine`.

    See `MachineCalls` for arguments, results and errors.
    """

    def __init__(self, machine: MachineCalls, thread: LoopThread) -> None:
        self._machine = machine
        self._thread = thread

    def execute(self, command: Buffer, *, timeout_ms: float | None = None) -> Executed:
        """See `MachineCalls.execute`."""
        return self._thread.wait(self._machine.execute(command, timeout_ms=timeout_ms))

    def execute_batch(
        self, commands: Iterable[Buffer], *, timeout_ms: float | None = None
    ) -> list[Executed]:
        """See `MachineCalls.execute_batch`."""
        return self._thread.wait(self._machine.execute_batch(commands, timeout_ms=timeout_ms))

    def query(
        self,
        question: Buffer,
        *,
        linearizable: bool = True,
        after_index: int = -1,
        wait_ms: int = 0,
        timeout_ms: float | None = None,
    ) -> Queried:
        """See `MachineCalls.query`."""
        return self._thread.wait(
            self._machine.query(
                question,
                linearizable=linearizable,
                after_index=after_index,
                wait_ms=wait_ms,
                timeout_ms=timeout_ms,
            )
        )

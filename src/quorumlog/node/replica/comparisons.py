"""Compares the states of the replicas' machines (decision 0021; see `digest_comparison`).

A replica whose state differs from a majority's rebuilds it from a snapshot. While no majority
agrees, those that differ check their own state.
"""

from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.digest_comparison import DigestComparison
from quorumlog.node.replica.machine_jobs import MachineControl
from quorumlog.node.replica.machine_scrub import MachineScrub
from quorumlog.node.replica.machine_state import MachineState
from quorumlog.node.replica.snapshotter import Snapshotter


class Comparisons(DigestComparison):
    """The part of a replica that compares its machine's state with that of others.

    All methods run on the event loop's thread.
    """

    def __init__(
        self,
        context: ReplicaContext,
        machine: MachineState,
        control: MachineControl,
        snapshotter: Snapshotter,
        scrub: MachineScrub,
    ) -> None:
        super().__init__(context, "the state")
        self._machine = machine
        self._control = control
        self._snapshotter = snapshotter
        self._scrub = scrub

    def _compares(self, index: int) -> bool:
        return self._machine.machine is not None and super()._compares(index)

    def _agreed(self) -> None:
        self._snapshotter.agreed()

    def _differs(self, text: str, index: int, *, is_majority: bool) -> None:
        if is_majority:
            self._control.rebuild(text, trusted_index=self.agreed_index)
        else:
            self._scrub.check_soon()

"""What must always hold of a simulated group: one invariant a file, all asked after every event."""

from random import Random

from quorumlog.sim.invariants.acknowledged_kept import AcknowledgedKept
from quorumlog.sim.invariants.acknowledged_order import AcknowledgedOrder
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.invariants.bounds import Bounds
from quorumlog.sim.invariants.chain_agreement import ChainAgreement
from quorumlog.sim.invariants.committed import Committed
from quorumlog.sim.invariants.committed_kept import CommittedKept
from quorumlog.sim.invariants.committed_reads import CommittedReads
from quorumlog.sim.invariants.election_safety import ElectionSafety
from quorumlog.sim.invariants.given_up import GivenUp
from quorumlog.sim.invariants.hook_once import HookOnce
from quorumlog.sim.invariants.leader_append_only import LeaderAppendOnly
from quorumlog.sim.invariants.leader_completeness import LeaderCompleteness
from quorumlog.sim.invariants.leader_eligibility import LeaderEligibility
from quorumlog.sim.invariants.linearizable import Linearizable
from quorumlog.sim.invariants.log_matching import LogMatching
from quorumlog.sim.invariants.machine_agreement import MachineAgreement
from quorumlog.sim.invariants.membership import MembershipSafety
from quorumlog.sim.invariants.monotonic import Monotonic
from quorumlog.sim.invariants.no_early_removal import NoEarlyRemoval
from quorumlog.sim.invariants.no_retraction import NoRetraction
from quorumlog.sim.invariants.offered_kept import OfferedKept
from quorumlog.sim.invariants.one_vote_per_term import OneVotePerTerm
from quorumlog.sim.invariants.own_term import OwnTerm
from quorumlog.sim.invariants.partitions import Partitions
from quorumlog.sim.invariants.promises import Promises
from quorumlog.sim.invariants.state_machine_safety import StateMachineSafety
from quorumlog.sim.invariants.table_agreement import TableAgreement
from quorumlog.sim.invariants.transactions import Transactions


def all_invariants(random: Random) -> list[Invariant]:
    """Return one of each; `random` chooses which promises are checked on a copy of the disk."""
    committed, partitions = Committed(), Partitions()
    return [
        ElectionSafety(),
        OneVotePerTerm(),
        Monotonic(),
        LeaderAppendOnly(),
        LeaderCompleteness(committed),
        StateMachineSafety(committed),
        OwnTerm(),
        LogMatching(),
        NoRetraction(random),
        LeaderEligibility(),
        MembershipSafety(committed),
        ChainAgreement(committed),
        AcknowledgedKept(),
        AcknowledgedOrder(),
        CommittedReads(committed),
        CommittedKept(committed),
        Promises(random),
        Bounds(),
        NoEarlyRemoval(),
        OfferedKept(),
        MachineAgreement(),
        TableAgreement(),
        Linearizable(),
        Transactions(),
        HookOnce(),
        partitions,
        GivenUp(partitions.history),
    ]

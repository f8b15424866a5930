"""Scenes that chance brings about too rarely, which a recovered group goes through at the end."""

from collections.abc import Callable

from quorumlog.model.membership import Member
from quorumlog.raft.events import AddMember, ChangeRequested, PromoteMember
from quorumlog.sim.cluster import STEP_MS, SimulatedCluster
from quorumlog.sim.faults import Faults
from quorumlog.sim.node import SimulatedNode

STEPS_MAX = 30


def lose_a_disk_while_idle(cluster: SimulatedCluster, faults: Faults, limit_ms: int) -> None:
    """Nobody appends, and a follower comes back empty: the leader must notice by itself (R13)."""
    if faults.wipe_a_follower():
        cluster.run_until_equal(limit_ms)


def promote_without_telling(cluster: SimulatedCluster, limit_ms: int) -> None:
    """The leader dies before a new voter hears that it is one; its vote is needed (R18)."""
    leader = cluster.leader()
    spare = _a_spare(cluster)
    if leader is None or spare is None or leader.core.membership.learners:
        return
    spare.start()
    name = spare.node_id
    leader.ask(lambda number: ChangeRequested(number, AddMember(Member(name, spare.address))))
    if not _wait(cluster, lambda: spare.is_up and spare.log.end_index == leader.log.end_index):
        return
    cluster.network.cut.add((leader.node_id, name))
    leader.ask(lambda number: ChangeRequested(number, PromoteMember(name)))
    promoted = _wait(
        cluster,
        lambda: (
            name in leader.core.membership.voters
            and not leader.core.membership.is_joint
            and leader.core.membership_index <= leader.core.committed_index
        ),
    )
    if promoted:
        leader.stop(power=False, why="died after it had promoted a learner")
    cluster.network.cut.clear()
    if promoted:
        cluster.run_until_served(limit_ms)
        leader.start()
    cluster.run_until_equal(limit_ms)


def _a_spare(cluster: SimulatedCluster) -> SimulatedNode | None:
    """Return a node that was never a member, or None."""
    for node_id in cluster.spares:
        if not cluster.nodes[node_id].life and not cluster.nodes[node_id].is_up:
            return cluster.nodes[node_id]
    return None


def _wait(cluster: SimulatedCluster, condition: Callable[[], bool]) -> bool:
    for _ in range(STEPS_MAX):
        cluster.run_until(cluster.clock.now_ms + STEP_MS)
        if condition():
            return True
    return False

"""What a node does to a replica whose group is altered or deleted while it runs."""

from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.config import GroupConfig
from quorumlog.model.errors import StorageError
from quorumlog.model.group_records import running
from quorumlog.node.bootstrap import reconfigured
from quorumlog.node.environment import WriteOwner
from quorumlog.node.replica.replica import Replica
from quorumlog.raft.events import Reconfigured


def reconfigure(replica: Replica, config: GroupConfig) -> None:
    """Use a configuration from now on; keys that count from the next start only change nothing.

    What a part does next at a time that it has set stays set: pauses change with the next one.
    """
    replica.context.config = config = running(replica.context.config, config)
    replica.appends.pending.set_time_out(config.max_wait_ack_time_ms)
    replica.step(Reconfigured(reconfigured(replica.core.config, config)))


def end_replica(replica: Replica, reason: str) -> None:
    """Let a replica promise nothing and write nothing any more, and answer everything that waits.

    Appends under way get an unknown outcome, as after a failed write: others may have them.
    """
    replica.write_failed(StorageError(reason))
    replica.appends.tick(NEVER_MS)
    replica.pending_requests.tick(NEVER_MS)
    replica.pending_requests.leaders.expire(NEVER_MS)
    replica.fetches.expire(NEVER_MS)
    applier = replica.applier
    applier.state.failed_text = reason
    applier.queries.refuse_all()
    applier.snapshotter.end(reason)


def write_owners(replica: Replica) -> list[WriteOwner]:
    """Return all that submit writes for a replica."""
    return [replica, replica.maintenance, replica.repairer]

"""What a node does to a replica whose group is altered or deleted while it runs."""

from collections.abc import Callable, Sequence
from typing import Protocol

from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.config import GroupConfig
from quorumlog.model.errors import StorageError
from quorumlog.model.group_records import running
from quorumlog.node.bootstrap import reconfigured
from quorumlog.node.environment import WriteOwner
from quorumlog.node.replica.replica import Replica
from quorumlog.raft.events import Reconfigured


class EndingExecutor(Protocol):
    """Runs jobs of one group until it is ended (`GroupExecutor`)."""

    def end(self, reason: str, idle: Callable[[], None]) -> None:
        """Let no job begin any more; `idle` is called once none is under way, maybe at once."""
        ...


def reconfigure(replica: Replica, config: GroupConfig) -> None:
    """Use a configuration from now on; keys that count from the next start only change nothing.

    What a part does next at a time that it has set stays set: pauses change with the next one.
    """
    replica.context.config = config = running(replica.context.config, config)
    replica.appends.pending.set_time_out(config.max_wait_ack_time_ms)
    replica.step(Reconfigured(reconfigured(replica.core.config, config)))


def close_replica(
    replica: Replica,
    executors: Sequence[EndingExecutor],
    reason: str,
    closed: Callable[[], None],
) -> None:
    """Let a replica take part in nothing any more, and answer all that waits for it.

    `closed` is called once nothing runs or writes for it, so that its files may be closed.
    """
    environment, group = replica.context.environment, replica.config.group
    environment.liveness.forget(group)
    environment.election_throttle.over(group)
    end_replica(replica, reason)
    running = list(executors)

    def idle() -> None:
        running.pop()
        if not running:
            environment.disk.end(_write_owners(replica), replica.log.settle(), ended)

    def ended() -> None:
        replica.context.is_broken = True
        closed()

    for executor in executors:
        executor.end(reason, idle)


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


def _write_owners(replica: Replica) -> list[WriteOwner]:
    """Return all that submit writes for a replica."""
    return [replica, replica.maintenance, replica.repairer]

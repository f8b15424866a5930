"""How an opened group becomes the core's configuration and state, in real and simulated nodes."""

from dataclasses import replace

from quorumlog.model.config import GroupConfig, NodeConfig
from quorumlog.model.errors import StorageError, UnexpectedArgumentError
from quorumlog.model.membership import Membership
from quorumlog.raft.config import BootState, RaftConfig
from quorumlog.storage.log.store import OpenedGroup


def raft_config(
    config: GroupConfig, node: NodeConfig, opened: OpenedGroup, identity: bytes = b""
) -> RaftConfig:
    """Return what the core needs to know of a group's configuration.

    A group that was made while nodes run was given its `identity`.
    """
    limits = node.limits
    return RaftConfig(
        group=config.group,
        self_id=node.self_id,
        members=tuple(config.members),
        addresses=config.members,
        incarnation=opened.incarnation,
        heartbeat_ms=config.heart_beat_time_interval_ms,
        election_timeout_min_ms=config.election_timeout_min_ms,
        election_timeout_max_ms=config.election_timeout_max_ms,
        push_timeout_ms=config.max_push_time_out_ms,
        push_bytes_max=limits.push_bytes_max,
        push_window_bytes=limits.push_window_bytes,
        push_window_requests=limits.push_window_requests,
        preferred_leader_ids=config.preferred_leaders,
        transfer_timeout_ms=config.leadership_transfer_wait_timeout,
        transfer_lag_max=config.max_leadership_transfer_wait_index,
        transfer_lag_bytes_max=config.max_leadership_transfer_wait_bytes,
        push_quota_bytes=config.peer_push_quota,
        original_compatible=founds_compatible(config, opened),
        identity=identity,
    )


def reconfigured(raft: RaftConfig, config: GroupConfig) -> RaftConfig:
    """Return a core's configuration with what may change of a group's while it runs."""
    return replace(
        raft,
        heartbeat_ms=config.heart_beat_time_interval_ms,
        election_timeout_min_ms=config.election_timeout_min_ms,
        election_timeout_max_ms=config.election_timeout_max_ms,
        push_timeout_ms=config.max_push_time_out_ms,
        preferred_leader_ids=config.preferred_leaders,
        transfer_timeout_ms=config.leadership_transfer_wait_timeout,
        transfer_lag_max=config.max_leadership_transfer_wait_index,
        transfer_lag_bytes_max=config.max_leadership_transfer_wait_bytes,
        push_quota_bytes=config.peer_push_quota,
    )


def founds_compatible(config: GroupConfig, opened: OpenedGroup) -> bool:
    """Whether a group that is not founded yet writes its own entries as DLedger reads them.

    If the configuration does not say so, it does if its log is one of DLedger's.
    """
    if config.original_compatible:
        return config.original_compatible != "no"
    return is_adopted(opened)


def is_adopted(opened: OpenedGroup) -> bool:
    """Whether a log has entries and no group of ours was founded with it: DLedger wrote them."""
    return opened.log.end_index >= 0 and not opened.log.config_entries()


def boot_state(opened: OpenedGroup) -> BootState:
    """Return what the replica found on its disk.

    Raises `StorageError` when the log names a membership that this version cannot read.
    """
    log = opened.log
    try:
        memberships = [(index, Membership.decode(body)) for index, body in log.config_entries()]
    except UnexpectedArgumentError as error:
        raise StorageError(f"a CONFIG_CHANGE entry of the log cannot be read: {error}") from error
    return BootState(
        hard_state=opened.hard_state,
        before_begin_index=log.before_begin_index,
        before_begin_term=log.before_begin_term,
        term_runs=log.term_runs(),
        end_index=log.end_index,
        committed_index=opened.committed_index,
        memberships=memberships,
    )

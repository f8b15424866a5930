"""A replica's state as an answer to a status request."""

from quorumlog.model.codes import FAILED
from quorumlog.model.config import NodeConfig
from quorumlog.model.errors import StorageError
from quorumlog.model.messages.client import StatusResponse
from quorumlog.model.release import RELEASE
from quorumlog.model.wording import counted
from quorumlog.node.replica.replica import Replica


def status_of(replica: Replica, node_id: str) -> StatusResponse:
    """Return everything an operator may want to know of one replica."""
    core, log, committed = replica.core, replica.log, replica.core.committed_index
    return StatusResponse(
        leader_id=core.leader_id,
        term=core.term,
        group=replica.config.group,
        address=_address_of(replica, node_id),
        node_id=node_id,
        role=core.role.value,
        vote=core.vote,
        begin_index=log.before_begin_index + 1,
        end_index=log.end_index,
        end_term=log.term_runs()[-1][0] if log.term_runs() else log.before_begin_term,
        durable_index=core.durable_index,
        committed_index=committed,
        applied_index=replica.applied_index,
        end_chain_crc=log.end_chain_crc,
        committed_chain_crc=_chain_crc_at(replica, committed),
        flush=replica.config.flush,
        healthy=not (
            replica.health_text
            or log.damaged
            or replica.applier.state.failed_text
            or _machine_trouble(replica)
            or replica.derived.lost_tables.text
            or replica.placement.misplaced_text
        ),
        health_text=replica.health_text
        or replica.applier.state.failed_text
        or replica.placement.misplaced_text
        or _machine_trouble(replica)
        or _damage_text(replica)
        or replica.derived.lost_tables.text
        or _founding_text(replica),
        voters=list(core.membership.voters),
        outgoing=list(core.membership.outgoing),
        learners=list(core.membership.learners),
        membership_index=core.membership_index,
        is_transferring=core.is_transferring,
        disk_stalled=core.disk_is_stalled,
        last_vote_result=core.last_vote_result.name if core.last_vote_result else "",
        pending_requests=len(replica.appends.pending),
        pending_bytes=replica.appends.pending.size_bytes,
        store_bytes=log.size_bytes,
        peers=list(core.peer_progress()),
        damaged_entries=log.damaged.count,
        damaged_ranges=list(log.damaged),
        disk_text=replica.maintenance.space.full_text(0) or core.no_room_text,
        scrub_passes=replica.repairer.scrubber.passes,
        scrub_last_pass_ms=replica.repairer.scrubber.last_pass_ms,
        scrub_checked_index=replica.repairer.scrubber.index,
        state_machine=replica.config.state_machine,
        snapshot_index=replica.applier.state.newest_index,
        install_state=_install_state(replica),
        scrub_found=replica.repairer.scrubber.damage_found,
        stable_index=min(committed, replica.tables.stable_index),
        open_transactions=len(replica.tables.at_end.open_ids),
        identity=core.identity.hex(),
        address_text=replica.placement.text,
        retention_text=replica.maintenance.retention.text,
        machine_text=replica.applier.condition_text,
        machine_rebuilds=replica.counters.machine_rebuilds,
        machine_compared_index=replica.applier.comparisons.agreed_index,
        machine_checked_ms=replica.applier.scrub.checked_ms,
        tables_compared_index=replica.derived.agreed_index,
        tables_rebuilt=replica.counters.tables_rebuilt,
        original_compatible=core.membership.original_compatible,
        release=RELEASE,
    )


def status_of_failed(config: NodeConfig, group: str, reason: str) -> StatusResponse:
    """Return what is known of a group whose data the node cannot open."""
    members = next((one.members for one in config.groups if one.group == group), {})
    return StatusResponse(
        group=group,
        address=members.get(config.self_id, config.listen_address),
        node_id=config.self_id,
        role=FAILED,
        healthy=False,
        health_text=reason,
        release=RELEASE,
    )


def _install_state(replica: Replica) -> str:
    if replica.applier.state.machine is None:
        return ""
    if replica.applier.is_loading:
        return "loading"
    found = replica.snapshot_receiver.state
    return replica.applier.condition or found if found == "ready" else found


def _machine_trouble(replica: Replica) -> str:
    """Return what is wrong with the machine; reading its files at the start is no trouble."""
    applier = replica.applier
    return "" if applier.condition == "recovering" else applier.condition_text


def _damage_text(replica: Replica) -> str:
    damaged = replica.log.damaged
    if not damaged:
        return ""
    return (
        f"{counted(damaged.count, 'damaged entry', 'damaged entries')} from "
        f"{damaged.ranges[0][0]} on; peers are asked for them"
    )


def _founding_text(replica: Replica) -> str:
    """Return what a group that is not founded yet waits for."""
    core = replica.core
    if core.membership_index >= 0 or core.leader_id is not None:
        return ""
    return f"the group begins once all of {', '.join(core.membership.voters)} are up together"


def _address_of(replica: Replica, node_id: str) -> str:
    member = replica.core.membership.member(node_id)
    if member is None or replica.placement.misplaced_text:
        return replica.config.members[node_id]
    return member.address


def _chain_crc_at(replica: Replica, index: int) -> int:
    """Return the chain CRC at an index; 0 if it is not known (no such entry, or damaged)."""
    try:
        return replica.log.chain_crc_at(index) or 0
    except StorageError:
        return 0

"""What a message may claim: terms, memberships and snapshots that no group can have reached.

There is no authentication between nodes, and one forged or corrupt message could do lasting harm: a
term is durable and only rises. So whatever is impossible for this group is refused with an alarm,
before anything is changed.
"""

from quorumlog.model.bounds import FIRST_TERM_MAX, INDEX_JUMP_MAX, TERM_JUMP_MAX
from quorumlog.model.messages.peer import InstallSnapshotRequest, PeerMessage
from quorumlog.raft.state import RaftState


def has_impossible_term(state: RaftState, message: PeerMessage) -> bool:
    """Whether this group cannot have reached the message's term; raises an alarm if so.

    A term near the end of its range, once adopted, leaves the group without a leader permanently. A
    replica that has neither a term nor a log has nothing to compare with, and nothing to lose: it
    takes over any term that leaves room for further elections.
    """
    if message.term <= state.term:
        return False
    known = state.known_term
    is_new = known == 0 and state.log.end_index < 0
    if message.term <= (FIRST_TERM_MAX if is_new else known + TERM_JUMP_MAX):
        return False
    advice = f"stop {message.local_id} and look at it"
    if not is_new:
        advice = (
            "if the group has really come so far, start this replica with an empty directory; "
            f"else {advice}"
        )
    state.alarm_once(
        f"{message.local_id} speaks of term {message.term}, and {known} is the newest term "
        f"known here: not believed, no group moves on so far; {advice}"
    )
    return True


def is_known_peer(state: RaftState, node_id: str, membership_index: int) -> bool:
    """Whether to deal with a node: it is a member, or knows a newer membership than this one (R18).

    `membership_index` is the index of the membership that the node acts on. It is compared with the
    newest one committed here: an uncommitted membership may never be committed, and then its index
    says nothing. The shell has checked that the node is of this group at all
    (`node/peer_handler.py`).
    """
    if node_id in state.memberships.ids:
        return True
    if membership_index > state.log.end_index + INDEX_JUMP_MAX:
        state.alarm_once(
            f"{node_id}, which is no member here, claims a membership of index "
            f"{membership_index}: not believed"
        )
        return False
    own_index = state.committed_membership_index
    return membership_index > own_index or membership_index == own_index >= 0


def contradicts_log(state: RaftState, offer: InstallSnapshotRequest) -> bool:
    """Whether no leader of this log could offer such a snapshot; raises an alarm if so."""
    index, term = offer.last_included_index, offer.last_included_term
    committed_term = state.log.term_at(state.committed_index)
    reason = ""
    if term > offer.term:
        reason = f"its end is of term {term}, after the leader's own {offer.term}"
    elif 0 <= term < committed_term:
        reason = f"its end is of term {term}, but index {state.committed_index}, which is "
        reason += f"committed and comes before it, of term {committed_term}"
    elif offer.config is not None and offer.config[0] > index:
        reason = f"it names a membership of index {offer.config[0]}, which comes after it"
    elif index > state.log.end_index + INDEX_JUMP_MAX:
        reason = f"it ends more than {INDEX_JUMP_MAX} entries after this log"
    if reason:
        state.alarm_once(
            f"{offer.local_id} offers a log that begins after index {index} and cannot be "
            f"this group's: {reason}; nothing was removed"
        )
    return bool(reason)

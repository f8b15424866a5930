"""What a replica logs of the changes that operators look for."""

import logging

from quorumlog.log_events import log_event
from quorumlog.raft.effects import MembershipChanged, RoleChanged, TruncateLog

logger = logging.getLogger(__name__)


def log_role_change(group: str, effect: RoleChanged) -> None:
    """Role, term or leader changed."""
    log_event(
        logger,
        logging.INFO,
        "role changed",
        group=group,
        role=effect.role.value,
        term=effect.term,
        leader=effect.leader_id,
    )


def log_membership_change(group: str, effect: MembershipChanged) -> None:
    """Another membership counts."""
    current = effect.membership
    log_event(
        logger,
        logging.INFO,
        "membership changed",
        group=group,
        index=effect.index,
        voters=current.voters,
        before=current.outgoing,
        learners=current.learners,
    )


def log_truncation(group: str, effect: TruncateLog, end_index: int) -> None:
    """Entries are removed from the end."""
    log_event(
        logger,
        logging.WARNING,
        "truncating entries that were never committed",
        group=group,
        from_index=effect.from_index,
        end_index=end_index,
    )

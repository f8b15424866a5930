"""What a replica logs of the changes that operators look for."""

import logging

from quorumlog.log_lines import say
from quorumlog.raft.effects import MembershipChanged, RoleChanged, TruncateLog

logger = logging.getLogger(__name__)


def say_role(group: str, effect: RoleChanged) -> None:
    """Role, term or leader changed."""
    say(
        logger,
        logging.INFO,
        "role changed",
        group=group,
        role=effect.role.value,
        term=effect.term,
        leader=effect.leader_id,
    )


def say_membership(group: str, effect: MembershipChanged) -> None:
    """Another membership counts."""
    current = effect.membership
    say(
        logger,
        logging.INFO,
        "membership changed",
        group=group,
        index=effect.index,
        voters=current.voters,
        before=current.outgoing,
        learners=current.learners,
    )


def say_truncation(group: str, effect: TruncateLog, end_index: int) -> None:
    """Entries are removed from the end."""
    say(
        logger,
        logging.WARNING,
        "truncating entries that were never committed",
        group=group,
        from_index=effect.from_index,
        end_index=end_index,
    )

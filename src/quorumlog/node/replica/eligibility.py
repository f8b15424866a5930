"""Whether a replica may lead: with a whole log, its tables, a working machine, at its place."""

import logging

from quorumlog.log_events import log_event
from quorumlog.model.errors import StorageError
from quorumlog.node.replica.applier import Applier
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.placement import Placement
from quorumlog.node.replica.tables import Tables
from quorumlog.raft.events import EligibilityChanged

logger = logging.getLogger(__name__)


class Eligibility:
    """The part of a replica that reports to the core whether this replica is eligible to lead."""

    def __init__(
        self, context: ReplicaContext, tables: Tables, placement: Placement, applier: Applier
    ) -> None:
        self._context = context
        self._tables = tables
        self._placement = placement
        self._applier = applier
        self._is_eligible = True

    def update(self) -> None:
        """Report to the core if eligibility has changed."""
        is_eligible = (
            not self._context.log.damaged
            and self._applier.is_eligible
            and not self._applier.state.is_installing
        )
        is_eligible = is_eligible and self._knows_tables() and not self._placement.misplaced_text
        if is_eligible != self._is_eligible:
            self._is_eligible = is_eligible
            self._context.step(EligibilityChanged(is_eligible))

    def _knows_tables(self) -> bool:
        """Whether the tables are whole, also after a repair: then no block is appended twice."""
        context, tables = self._context, self._tables
        if tables.is_doubted:
            return False
        if tables.is_incomplete:
            try:
                unread = tables.scan(context.core.committed_index)
            except StorageError as error:
                log_event(
                    logger,
                    logging.WARNING,
                    "cannot read producer sessions",
                    group=context.config.group,
                    text=str(error),
                )
                context.check_damage_later()
                return False
            if unread is not None:  # damage not yet found by a reader, or a damaged index record
                context.check_entry(unread)
                context.check_damage_later()
        return not tables.is_incomplete

"""Writing what the core decides about this replica's own log and hard state."""

import logging

from quorumlog.log_events import log_event
from quorumlog.model.block import Block, first_index_of
from quorumlog.model.errors import InvariantViolation, check
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.tables import Tables
from quorumlog.raft import effects as fx
from quorumlog.storage.log.hard_state import HardStates

logger = logging.getLogger(__name__)


class LogWriter:
    """The part of a replica that queues the core's writes, and knows which of them are durable.

    All methods run on the event loop's thread.
    """

    def __init__(self, context: ReplicaContext, hard_states: HardStates, tables: Tables) -> None:
        self._context = context
        self._log = context.log
        self._hard_states = hard_states
        self._tables = tables
        self._durable_token = self._reported_token = 0

    # -- what the disk reports ----------------------------------------------------------------

    def written(self, token: int | None) -> None:
        """A write is durable."""
        if token is not None:
            check(token > self._durable_token, "tokens rise", token, self._durable_token)
            self._durable_token = token

    @property
    def durable_token(self) -> int:
        """The newest write that is durable, as are all before it."""
        return self._durable_token

    def take_unreported(self) -> int | None:
        """Return the newest durable write if it was not reported to the core yet."""
        if self._durable_token == self._reported_token:
            return None
        self._reported_token = self._durable_token
        return self._durable_token

    # -- what the core decides ----------------------------------------------------------------

    def save_hard_state(self, effect: fx.SaveHardState) -> None:
        """Save term, vote and what else must outlive the process."""
        compatible = self._context.core.membership.original_compatible
        plan = self._hard_states.plan_save(effect.hard_state, original_compatible=compatible)
        self._context.submit(effect.token, plan)

    def append_noop(self, effect: fx.AppendNoop) -> None:
        """Append a new leader's first entry."""
        compatible = self._context.core.membership.original_compatible
        plan = self._log.append_noop(effect.term, compatible=compatible)
        check(self._log.end_index == effect.index, "core and log agree on the end")
        self._context.submit(effect.token, plan)

    def append_membership(self, effect: fx.AppendMembership) -> None:
        """Append the entry of a membership."""
        membership = effect.membership
        plan = self._log.append_config(
            membership.encode(),
            effect.term,
            compatible=membership.original_compatible,
        )
        check(self._log.end_index == effect.index, "core and log agree on the end")
        self._context.submit(effect.token, plan)

    def append_received(self, effect: fx.AppendReceived, block: Block | None) -> None:
        """Append those entries of a push that the log does not have yet."""
        if block is None:
            raise InvariantViolation(f"entry {effect.first_index} without the block of a push")
        skipped = effect.first_index - first_index_of(block)
        kept = effect.last_index - effect.first_index + 1
        if skipped or kept != block.count:
            block = block.slice(skipped, skipped + kept)
        plan = self._log.append_received(block)
        self._tables.appended(block, effect.first_index)
        check(self._log.end_index == effect.last_index, "core and log agree on the end")
        self._context.submit(effect.token, plan)

    def truncate(self, effect: fx.TruncateLog) -> None:
        """Remove entries from the end that the leader does not have: they were never committed.

        A deposed leader may have replicated them to a minority. Every leader holds all committed
        entries (Raft 5.4.1), so an entry that conflicts with the leader's cannot be committed, and
        its producer got no acknowledgement. The derived tables follow at once, before the disk
        has carried out the removal: a block that is sent again must not be taken for appended
        because its removed copy was.
        """
        log_event(
            logger,
            logging.WARNING,
            "truncating entries that were never committed",
            group=self._context.config.group,
            from_index=effect.from_index,
            end_index=self._log.end_index,
        )
        self._context.submit(effect.token, self._log.truncate(effect.from_index))
        self._tables.truncated(effect.from_index)
